"""Which connections of one listener are open, and how are its limits enforced on them?"""

import asyncio
import weakref
from dataclasses import dataclass, field

import pytest

from tests.unit.server.grpc.raw import looped
from wherry.server.connections.limits import Limits
from wherry.server.connections.open_connections import (
    RESERVE,
    SCAN_INTERVAL,
    USED,
    Admitted,
    OpenConnections,
)


@dataclass(eq=False)
class FakeConnection:
    """A connection that is idle or not, as the test says, and remembers what it was told."""

    idle_since: float | None = None
    stays: bool = False
    owes: bool = False
    told: list[str] = field(default_factory=list)

    def make_room(self) -> bool:
        self.told.append("make room")
        return not self.stays

    def check(self, now: float) -> None:
        self.told.append(f"check {now}")

    def drain(self) -> None:
        self.told.append("drain")

    def end(self) -> None:
        self.told.append("end")

    def abort(self) -> None:
        self.told.append("abort")


class Socket:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor


class House:
    """Connections that came in one after the other, at a time of the test's choice."""

    def __init__(self, limits: Limits) -> None:
        self.now = 1.0
        self.open: OpenConnections[FakeConnection] = OpenConnections(lambda: self.now, limits)

    def enter(self, connection: FakeConnection, descriptor: int = 0) -> Admitted:
        transport = asyncio.BaseTransport({"socket": Socket(descriptor)})
        return self.open.admit(connection, transport)

    def close(self) -> None:
        for connection in tuple(self.open.open):
            self.open.remove(connection)


@looped
async def test_one_that_is_no_longer_idle_is_passed_over() -> None:
    house = House(Limits(max_connections=2))
    asked_again, idle = FakeConnection(0.1, stays=True), FakeConnection(0.2)
    house.enter(asked_again)
    house.enter(idle)
    assert house.enter(FakeConnection()) is Admitted.ANYTHING
    assert idle.told == ["make room"]
    house.close()


@looped
async def test_one_in_reserve_that_has_closed_leaves_its_place_and_is_not_kept() -> None:
    house = House(Limits(max_connections=1))
    house.enter(FakeConnection())
    reserve = [FakeConnection() for _ in range(RESERVE)]
    for connection in reserve:
        house.enter(connection)
    gone = weakref.ref(reserve[0])
    house.open.remove(reserve.pop(0))
    assert gone() is None
    assert house.enter(FakeConnection()) is Admitted.HEALTH
    assert [c for c in reserve if c.told] == []
    house.close()


@looped
async def test_one_with_a_reserved_descriptor_stays_only_if_another_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = "wherry.server.connections.open_connections"
    monkeypatch.setattr(f"{module}.for_connections", lambda: 100)
    monkeypatch.setattr(f"{module}.never_for_connections", lambda: 110)
    house = House(Limits())
    idle = FakeConnection(0.5)
    house.enter(idle)
    assert house.enter(FakeConnection(), 99) is Admitted.ANYTHING
    assert house.enter(FakeConnection(), 100) is Admitted.ANYTHING
    assert idle.told == ["make room"]
    house.open.remove(idle)
    house.now += SCAN_INTERVAL
    assert house.enter(FakeConnection(), 100) is Admitted.NOTHING
    house.enter(FakeConnection(0.5))
    house.now += SCAN_INTERVAL
    assert house.enter(FakeConnection(), 110) is Admitted.NOTHING
    house.close()


@looped
async def test_a_connection_is_used_for_some_seconds_after_its_last_request() -> None:
    house = House(Limits())
    busy, quiet = FakeConnection(), FakeConnection(1.0)
    house.enter(busy)
    house.enter(quiet)
    assert house.open.used == 2  # new ones are, until a sweep has seen them
    house.now = 1.0 + USED - 0.5
    house.open.sweep()
    assert house.open.used == 2
    house.now = 1.0 + USED
    house.open.sweep()
    assert house.open.used == 1
    quiet.idle_since = house.now
    house.open.sweep()
    assert house.open.used == 2
    house.close()
    assert house.open.used == 0
