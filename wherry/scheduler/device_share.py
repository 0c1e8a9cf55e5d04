"""Several models want the same device: whose batch runs next?

Each batch needs so many of some named resources, of which there are only so many. The model goes
first whose oldest request has waited longest, measured in batches of its own: a quick model is not
held up by a slow one for long, and a slow one is not starved by many quick batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

#: Seconds of a batch whose time nobody knows: a model's first, or a stream.
UNKNOWN = 0.1


@dataclass(frozen=True, slots=True)
class Claim:
    """One model's wish to run a batch."""

    needs: Mapping[str, int]
    #: When its oldest waiting request came.
    since: float
    #: What the batch would take.
    seconds: float
    #: With 2 it counts as waiting half as long as with 1 (Triton's rate limiter).
    priority: int = 1

    def urgency(self, now: float) -> float:
        return (now - self.since) / ((self.seconds or UNKNOWN) * self.priority)


class DeviceShare:
    """Which claims are granted, so that no more is in use than there is. Pure.

    `limits` by resource; of one that is not named there is as much as the model that needs most
    of it, so that one batch at a time runs of all that need it.
    """

    def __init__(self, limits: Mapping[str, int] | None = None) -> None:
        self.limits: Counter[str] = Counter(limits or {})
        self.used: Counter[str] = Counter()
        self._fixed = frozenset(self.limits)
        self._claims: dict[Hashable, Claim] = {}

    def admit(self, needs: Mapping[str, int]) -> str:
        """A model with these needs is loaded. The name of a resource of which there is too little
        for it, or ""."""
        for name, count in needs.items():
            if count > self.limits[name]:
                if name in self._fixed:
                    return name
                self.limits[name] = count
        return ""

    def claim(self, who: Hashable, claim: Claim) -> None:
        """Somebody wants to run a batch; what it said before is forgotten."""
        self._claims[who] = claim

    def withdraw(self, who: Hashable) -> None:
        """It has nothing to run any more."""
        self._claims.pop(who, None)

    def grant(self, now: float, who: Hashable | None = None) -> Hashable | None:
        """Whose batch runs next (may `who` run now?), its needs taken; `release` must follow.

        None: nobody's may. What the most urgent one lacks is kept for it: nobody less urgent
        takes it away meanwhile.
        """
        spoken_for = self.used.copy()
        for other, claim in sorted(self._claims.items(), key=lambda item: -item[1].urgency(now)):
            spoken_for.update(claim.needs)
            fits = all(spoken_for[name] <= self.limits[name] for name in claim.needs)
            if fits and who in (None, other):
                del self._claims[other]
                self.used.update(claim.needs)
                return other
        return None

    def release(self, needs: Mapping[str, int]) -> None:
        """A granted batch is over."""
        self.used.subtract(needs)

    def __repr__(self) -> str:
        in_use = ", ".join(f"{name} {self.used[name]}/{n}" for name, n in self.limits.items())
        return f"<DeviceShare: {in_use or 'nothing shared'}, {len(self._claims)} waiting>"
