"""Which model sleeps so that another wakes, and when? Pure: no clock, lock or thread.

Models that wait for room stand in one line, in the order in which they began to wait. One that woke
keeps its room for a *turn*, as long as its swap takes, while requests wait there or several are
expected before the turn ends: so swaps take at most about half of the time however models are
called. The set of models that is expected to cost least goes to sleep. One loads at a time, but for
a short load beside a long one. docs/decisions/0065-turns-on-a-device.md has the bound of the wait,
the figures, and rejected alternatives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, inf
from typing import Literal

import msgspec

State = Literal["asleep", "waking", "ready", "stopping"]
#: Sets of models that may make room are compared exactly up to this number, then every second one.
MOST_SETS = 512

#: Seconds added to what a swap takes: else quick models would be swapped at any time.
SWAP_OVERHEAD = 2.0
#: A turn goes on with an empty queue if at least this many requests are expected before its end.
EXPECTED = 3
#: The most that a load may take of what is left of the one beside which it runs.
BESIDE = 0.25
#: What is left of that one, times this, must fit into the seconds until the next request of the
#: models that sleep for it.
UNUSED = 10.0
#: Seconds within which callers in a loop send again after an answer.
BACK = 0.02
#: Seconds after which a request counts 1/e in the rate of them.
RATE_WINDOW = 60.0
#: Seconds that are not worth waiting for.
LEAST_WAIT = 1e-6


class ArrivalRate:
    def __init__(self, now: float) -> None:
        self.last_at = -inf
        self._start = self._counted_at = now
        self._count = 0.0

    def arrived(self, now: float, requests: int = 1) -> None:
        self._count = self._decayed(now) + requests
        self._counted_at = self.last_at = now

    def rate(self, now: float) -> float:
        """Requests a second. By the time since the start, too: the first requests count."""
        seen = RATE_WINDOW * (1 - exp((self._start - now) / RATE_WINDOW))
        return self._decayed(now) / max(seen, 1.0)

    def _decayed(self, now: float) -> float:
        return self._count * exp((self._counted_at - now) / RATE_WINDOW)


class ModelView(msgspec.Struct, frozen=True):
    """What the policy knows of a model. Seconds are measured or forecast."""

    name: str
    #: Bytes that it takes on the device unless it is asleep.
    footprint: int
    #: "waking", "ready" and "stopping" (going to sleep, or unloading) hold the footprint.
    state: State
    wake_seconds: float
    #: Without the end of what runs.
    sleep_seconds: float = 0.0
    #: Requests that wait in its queue, and for how long the oldest has.
    queued: int = 0
    oldest_wait: float = 0.0
    #: Of what waits and runs. For a stream without a known end: as long as it has run.
    work_seconds: float = 0.0
    #: Requests a second, and the seconds since the last one came.
    arrival_rate: float = 0.0
    last_arrival: float = inf
    #: Whether batches or streams run, and the seconds since any did.
    running: bool = False
    last_ran: float = inf
    always: bool = False
    #: With 2 it counts as waiting half as long as with 1 (Triton's rate limiter).
    priority: int = 1
    #: When it became ready, or began to wake.
    awake_since: float = 0.0

    @property
    def swap_seconds(self) -> float:
        return self.wake_seconds + self.sleep_seconds

    @property
    def next_use(self) -> float:
        """Expected seconds until a request waits there."""
        if self.queued:
            return 0.0
        return max(1 / self.arrival_rate if self.arrival_rate else 0.0, self.last_arrival)

    @property
    def cost_of_sleep(self) -> float:
        """Seconds that its sleep costs for each second of room."""
        work = self.work_seconds if self.running or self.queued else 0.0
        swap = self.swap_seconds
        return (SWAP_OVERHEAD + swap + work) / max(self.next_use + swap, LEAST_WAIT)

    def turn_end(self, now: float) -> float:
        """Until when it keeps its room: now, if the turn has paid or nothing waits there."""
        if self.state == "waking":
            return max(now, self.awake_since + self.wake_seconds) + self.swap_seconds
        end = self.awake_since + self.swap_seconds
        if not self.queued:  # until EXPECTED requests, a `next_use` apart, would end after it
            gap = 1 / self.arrival_rate if self.arrival_rate else inf
            last = now - self.last_arrival
            early = min(end - EXPECTED * gap, (end + EXPECTED * last) / (1 + EXPECTED))
            end = max(early, min(end, now - self.last_ran + BACK))
        return end if end > now + LEAST_WAIT else now


class Swaps(msgspec.Struct):
    """What to do now. Decide again after each of these: a request came to a model that is not
    ready, an awake model has no more requests while others wait, a state changed."""

    #: Begin to wake these: their footprints are free. One that is "stopping" and has not begun to
    #: unload takes requests again.
    wake: list[str] = msgspec.field(default_factory=list)
    #: Take nothing more from the queues of these, end what runs, then unload.
    sleep: list[str] = msgspec.field(default_factory=list)
    #: Decide again then, even if nothing happens.
    look_again_at: float | None = None
    #: For each model that waits or goes to sleep: a sentence.
    why: dict[str, str] = msgspec.field(default_factory=dict)

    def look_again(self, at: float) -> None:
        self.look_again_at = at if self.look_again_at is None else min(at, self.look_again_at)


class DeviceTurns:
    """Decides for one device, whose models may take `budget_bytes` in all."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        #: Since when each model waits for its turn.
        self._line: dict[str, float] = {}
        #: When each one of the line could be ready at the soonest, and the next one that comes.
        self._ready_at: dict[str, float] = {}
        self._next_at = 0.0
        self._leaving: set[str] = set()

    def decide(self, models: Sequence[ModelView], now: float) -> Swaps:
        decision = Swaps()
        room = _Room(models, self.budget_bytes, now)
        self._leaving &= {m.name for m in models if m.state == "stopping"}
        if room.later < 0:
            victims = _cheapest(room.awake(), -room.later)
            self._sleep(victims, decision, now, "the models take more than the device's budget")
            room.leave(victims)
        self._ready_at = {}
        line = self._waiting(models, now, decision)
        self._next_at = max([now, *(m.awake_since + m.wake_seconds for m in room.waking)])
        for model in line:
            self._serve(model, room, decision)
        for model in models:  # its room is not needed any more
            leaves = model.name in self._leaving and model.state == "stopping" and model.running
            if leaves and model.footprint <= room.spare:
                self._leaving.remove(model.name)
                self._line.pop(model.name, None)
                decision.wake.append(model.name)
                decision.why[model.name] = "takes requests again: no model waits for its room"
                room.spare -= model.footprint
        return decision

    def refused(self, model: ModelView, now: float) -> float:
        """Seconds until a request that comes now could be served at best, by the last decision;
        inf: the model does not fit."""
        if model.state == "ready":
            return 0.0
        if model.state == "waking":
            return max(0.0, model.awake_since + model.wake_seconds - now)
        known = self._ready_at.get(model.name)
        return max(self._next_at + model.wake_seconds if known is None else known, now) - now

    def _waiting(self, models: Sequence[ModelView], now: float, decision: Swaps) -> list[ModelView]:
        largest = self.budget_bytes
        waiting = dict[str, ModelView]()
        for m in sorted(models, key=lambda m: not m.always):
            if m.footprint > largest and m.state != "ready":
                self._ready_at[m.name] = inf
                decision.why[m.name] = (
                    f"never fits: it takes {_size(m.footprint)}, and of the device's"
                    f" {_size(self.budget_bytes)} at most {_size(largest)} can be free"
                )
            elif m.state in ("asleep", "stopping") and (m.queued or m.always):
                waiting[m.name] = m
                self._line.setdefault(m.name, now - m.oldest_wait)
            if m.always:
                largest -= m.footprint
        self._line = {name: since for name, since in self._line.items() if name in waiting}
        return sorted(  # those that began to wait at the same moment in the order of the line
            (waiting[name] for name in self._line),
            key=lambda m: (not m.always, (self._line[m.name] - now) / m.priority),
        )

    def _serve(self, model: ModelView, room: _Room, decision: Swaps) -> None:
        """Plan the turn of the next model in the line; models after it cannot have its bytes."""
        name, now = model.name, room.now
        if model.state == "stopping":
            decision.why[name] = "is going to sleep, and then waits for its next turn"
            return
        need = model.footprint - room.later
        victims: Sequence[ModelView] = ()
        start = now
        if need > 0:
            start = room.free_at(need)
            if start == inf:
                decision.why[name] = "waits for those before it in the line"
                room.spare = 0
                return
            victims = _cheapest(room.ended(start + BACK), need)
            start = room.end_of(victims)
        fits = not victims and model.footprint <= room.free
        room.leave(victims)
        room.later -= model.footprint
        room.spare = 0 if victims else room.spare - model.footprint
        self._next_at = max(self._next_at, start) + model.wake_seconds
        self._ready_at[name] = self._next_at
        if start > now:
            decision.look_again(start)
            names = ", ".join(m.name for m in victims)
            decision.why[name] = f"waits {start - now:.3g} s for the end of the turn of {names}"
        elif room.busy and not room.may_wake_beside(model, victims):
            decision.why[name] = f"waits for {room.busy}"
        elif fits:
            decision.wake.append(name)
            decision.why[name] = "wakes: there is room"
            room.free -= model.footprint
            room.busy, room.left = f"{name}, which is waking", 0.0
        elif victims:
            self._sleep(victims, decision, now, f"makes room for {name}")
            decision.why[name] = f"waits until {', '.join(m.name for m in victims)} sleeps"
            room.busy, room.left = f"{name}, which wakes next", 0.0
        else:
            decision.why[name] = "waits for room that is being made"
            if room.ends <= model.swap_seconds:  # else others wake while a stream runs to its end
                room.busy = f"{name}, which wakes next"

    def _sleep(self, victims: Iterable[ModelView], decision: Swaps, now: float, why: str) -> None:
        for victim in victims:
            decision.sleep.append(victim.name)
            decision.why[victim.name] = (
                f"{why}: its sleep costs {victim.cost_of_sleep:.2g} s of each second,"
                f" the next request is expected in {victim.next_use:.3g} s"
            )
            self._leaving.add(victim.name)
            if victim.queued:  # at the end of the line, however long these have waited
                self._line[victim.name] = max([now, *self._line.values()])

    def __repr__(self) -> str:
        return f"<DeviceTurns of {_size(self.budget_bytes)}: {len(self._line)} waiting>"


class _Room:
    """The bytes of a device while one decision is made."""

    def __init__(self, models: Sequence[ModelView], budget_bytes: int, now: float) -> None:
        self.now = now
        #: Free now, and once those that stop are asleep. Negative: they take too much.
        self.free = budget_bytes - sum(m.footprint for m in models if m.state != "asleep")
        self.later = self.free + sum(m.footprint for m in models if m.state == "stopping")
        #: Of that, what no model in the line needs.
        self.spare = self.later
        self.waking = [m for m in models if m.state == "waking"]
        #: Those that could make room, and when their turn ends.
        self._turns = {
            m.name: (m.turn_end(now), m)
            for m in models
            if m.state in ("ready", "waking") and not m.always
        }
        #: Until the only one that is waking has woken, as far as is known.
        self.left = 0.0
        if len(self.waking) == 1:
            self.left = self.waking[0].awake_since + self.waking[0].wake_seconds - now
        #: What the next one that could wake has to wait for.
        self.busy = f"{self.waking[0].name}, which is waking" if self.waking else ""
        self.ends = max(
            (m.work_seconds for m in models if m.state == "stopping" and m.running), default=0.0
        )

    def may_wake_beside(self, model: ModelView, victims: Iterable[ModelView]) -> bool:
        """Whether its load is short enough to run beside the one that is under way, and makes only
        models sleep that will get no request for long."""
        short = model.wake_seconds > 0 and model.swap_seconds <= BESIDE * self.left
        return short and all(victim.next_use > UNUSED * self.left for victim in victims)

    def free_at(self, need: int) -> float:
        """When enough turns have ended to free `need` bytes; inf: models before it take them."""
        for end, model in sorted(self._turns.values(), key=lambda turn: turn[0]):
            need -= model.footprint
            if need <= 0:
                return end
        return inf

    def awake(self) -> list[ModelView]:
        return [model for _, model in self._turns.values() if model.state == "ready"]

    def ended(self, at: float) -> list[ModelView]:
        return [model for end, model in self._turns.values() if end <= at]

    def end_of(self, models: Iterable[ModelView]) -> float:
        return max([self.now, *(self._turns[model.name][0] for model in models)])

    def leave(self, models: Iterable[ModelView]) -> None:
        for model in models:
            del self._turns[model.name]
            self.later += model.footprint


def _cheapest(models: Iterable[ModelView], need: int) -> Sequence[ModelView]:
    """The set of least cost that takes `need` bytes; all of them if they take less."""
    # Sets that no other dominates: bytes (no more than needed), cost, models.
    sets: list[tuple[int, float, tuple[ModelView, ...]]] = [(0, 0.0, ())]
    for model in models:
        sets += [
            (min(need, size + model.footprint), cost + model.cost_of_sleep, (*those, model))
            for size, cost, those in sets
            if size < need
        ]
        sets.sort(key=lambda one: (-one[0], one[1]))
        kept, least = [], inf
        for one in sets:
            if one[1] < least:
                kept.append(one)
                least = one[1]
        sets = kept if len(kept) <= MOST_SETS else [kept[0], *kept[1::2]]
    return sets[0][2]


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"
