"""Which owners should a front have links to, and when does it try each again?

    wanted --due--> trying --connected--> up --ended--> wanted, after a pause
                      +-------failed----> wanted, after a pause, longer each time

An address that is wanted no more is forgotten. Pure: the shell resolves names, connects, leaves
links, and tells what happened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from wherry.values.errors import ConfigError

#: Seconds to the first attempt after an end, and the most between two.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0

#: Owners are told at run time, by `OwnerPool.add`.
MANAGED: Final = "managed"
_DNS: Final = "dns:"
_ADDRESS: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\]):([0-9]{1,5})")

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ReplicaSource:
    """Where owners are, as the option `replicas` says it."""

    addresses: tuple[Address, ...] = ()
    #: A name whose addresses are all of owners.
    name: Address | None = None

    def __str__(self) -> str:
        if self.name is not None:
            return f"{_DNS}{text_of(self.name)}"
        return ",".join(map(text_of, self.addresses)) or "any address"


def replicas_of(text: str) -> ReplicaSource:
    """What HOST:PORT,HOST:PORT, dns:NAME:PORT or `managed` means. ConfigError for anything else."""
    if text == MANAGED:
        return ReplicaSource()
    if text.startswith(_DNS):
        return ReplicaSource(name=address_of(text.removeprefix(_DNS)))
    return ReplicaSource(tuple(dict.fromkeys(address_of(one.strip()) for one in text.split(","))))


def address_of(text: str) -> Address:
    """HOST:PORT, [IPV6]:PORT. ConfigError for anything else."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[2]) < 2**16:
        raise ConfigError(
            f"replicas: {text!r} is not HOST:PORT, as owner-1:8002 or dns:owners:8002"
        )
    return match[1].strip("[]"), int(match[2])


def text_of(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One owner of a pool, for people. What is not known is empty."""

    address: str
    #: "connecting", "connected" (it has no model yet), "ready" or "leaving".
    state: str
    name: str = ""
    version: str = ""
    device: str = ""
    #: Requests of this front that it has not answered.
    rows: int = 0
    #: Why it is not connected.
    error: str = ""


@dataclass(slots=True)
class _Member:
    #: Trying or up; else it is due at `next_at`.
    is_busy: bool = False
    next_at: float = 0.0
    pause: float = 0.0
    #: Why the last attempt failed, or the last link ended.
    error: str = ""


class WantedOwners:
    """The wanted addresses of one front, and what has become of each. `spread()` is a number from
    0 to 1, by which pauses differ between fronts."""

    def __init__(self, spread: Callable[[], float]) -> None:
        self._spread = spread
        self._members: dict[Address, _Member] = {}

    def __contains__(self, address: Address) -> bool:
        return address in self._members

    def __iter__(self) -> Iterator[Address]:
        return iter(self._members)

    def set(self, addresses: Iterable[Address]) -> set[Address]:
        """These are wanted, and no others. Returns those that are not wanted any more."""
        wanted = dict.fromkeys(addresses)
        gone = self._members.keys() - wanted
        self._members = {one: self._members.get(one) or _Member() for one in wanted}
        return gone

    def add(self, address: Address) -> None:
        self._members.setdefault(address, _Member())

    def remove(self, address: Address) -> bool:
        """False if it was not wanted."""
        return self._members.pop(address, None) is not None

    def due(self, now: float) -> list[Address]:
        """Those to connect to now: they are being tried from then on."""
        due = [
            one
            for one, member in self._members.items()
            if not member.is_busy and member.next_at <= now
        ]
        for one in due:
            self._members[one].is_busy = True
        return due

    def next_at(self) -> float | None:
        """When `due` has something, if nothing happens until then."""
        return min((m.next_at for m in self._members.values() if not m.is_busy), default=None)

    def connected(self, address: Address) -> None:
        """A link to it is up."""
        if (member := self._members.get(address)) is not None:
            member.pause, member.error = 0.0, ""

    def ended(self, address: Address, now: float, why: str) -> bool:
        """An attempt has failed, or the link has ended. True if that is news."""
        member = self._members.get(address)
        if member is None:
            return True
        is_new = member.error != why
        member.pause = min(LONGEST_PAUSE, 2 * member.pause or FIRST_PAUSE)
        member.next_at = now + member.pause * (0.5 + 0.5 * self._spread())
        member.is_busy, member.error = False, why
        return is_new

    def errors(self) -> dict[Address, str]:
        """Why those that are not up are not, as far as that is known."""
        return {one: member.error for one, member in self._members.items() if member.error}
