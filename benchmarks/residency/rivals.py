"""Who else could decide: two that know the future, and two that servers use."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.residency.simulator import Model, Run, honest, next_request
from wherry.core.residency.policy import EXPECTED, ModelView, Swaps


class Foresight(ModelView, frozen=True):
    """A model of which `last_arrival` is when it is asked next."""

    @property
    def next_use(self) -> float:
        return 0.0 if self.queued else self.last_arrival

    def turn_end(self, now: float) -> float:
        end = self.awake_since + self.swap_seconds
        return end if now + EXPECTED * self.next_use < end else now


class FarthestNext(Foresight, frozen=True):
    """Belady's rule as it stands: only the next request counts, not what a swap costs."""

    @property
    def cost_of_sleep(self) -> float:
        return 1 / (self.next_use + 1e-6)


def clairvoyant(run: Run, model: Model, now: float) -> ModelView:
    """What wherry's policy sees if it knows when each model is asked next."""
    return _knowing(Foresight, run, model, now)


def belady(run: Run, model: Model, now: float) -> ModelView:
    return _knowing(FarthestNext, run, model, now)


def _knowing(kind: type[Foresight], run: Run, model: Model, now: float) -> ModelView:
    view = honest(run, model, now)
    how = {name: getattr(view, name) for name in view.__struct_fields__}
    return kind(**how | {"last_arrival": next_request(model, now)})


class LastUsed:
    """LRU by request: the model that waits longest wakes; who was asked least recently sleeps,
    when what runs there has ended, whatever waits there."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes

    def decide(self, models: Sequence[ModelView], now: float) -> Swaps:
        swaps = Swaps()
        free = self.budget_bytes - sum(m.footprint for m in models if m.state != "asleep")
        later = free + sum(m.footprint for m in models if m.state == "stopping")
        waiting = [m for m in models if m.state == "asleep" and m.queued]
        if not waiting or any(m.state == "waking" for m in models):
            return swaps
        first = max(waiting, key=lambda m: m.oldest_wait)
        if first.footprint <= free:
            swaps.wake.append(first.name)
        else:
            ready = [m for m in models if m.state == "ready"]
            for model in self.order(ready, now, swaps):
                if later >= first.footprint:
                    break
                swaps.sleep.append(model.name)
                later += model.footprint
        return swaps

    def order(self, ready: list[ModelView], now: float, swaps: Swaps) -> list[ModelView]:
        return sorted(ready, key=lambda m: -m.last_arrival)


class KeepAlive(LastUsed):
    """A fixed keep-alive: a model sleeps when it has had nothing to do for so long; sooner if
    another one needs the room, and then the one whose time ends first."""

    seconds = 30.0

    def decide(self, models: Sequence[ModelView], now: float) -> Swaps:
        swaps = super().decide(models, now)
        for model in models:
            if model.state == "ready" and not model.queued and not model.running:
                if model.last_arrival > self.seconds - 1e-6:
                    if model.name not in swaps.sleep:
                        swaps.sleep.append(model.name)
                else:
                    at = now - model.last_arrival + self.seconds
                    swaps.look_again_at = min(at, swaps.look_again_at or at)
        return swaps

    def order(self, ready: list[ModelView], now: float, swaps: Swaps) -> list[ModelView]:
        idle = [m for m in ready if not m.queued and not m.running]
        return sorted(idle, key=lambda m: -m.last_arrival)


def fewest_loads(order: Sequence[str], footprints: dict[str, int], budget: int) -> int:
    """How many loads Belady needs for batches in this order, one model after another: who is used
    farthest in the future sleeps. No time, nothing waits."""
    follows = [0] * len(order)
    later: dict[str, int] = {}
    for place in range(len(order) - 1, -1, -1):
        follows[place] = later.get(order[place], len(order))
        later[order[place]] = place
    awake: dict[str, int] = {}
    used = loads = 0
    for place, name in enumerate(order):
        if name not in awake:
            loads += 1
            used += footprints[name]
            while used > budget:
                farthest = max(awake, key=awake.__getitem__)
                used -= footprints[farthest]
                del awake[farthest]
        awake[name] = follows[place]
    return loads
