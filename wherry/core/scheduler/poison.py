"""Which requests kill the workers that run them, and for how long are these refused?

Pure: time comes in as an argument, and a request is a key that is equal for equal requests.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

#: Requests that are remembered; beyond it, the one that would be forgotten first is dropped.
MOST = 1024
#: Seconds for which a request is refused after it has killed its second worker; doubled after
#: each further one.
REFUSED = 60.0
MOST_REFUSED = 3600.0
#: Seconds after which what is not refused (any more) is no longer under suspicion.
SUSPECTED = 600.0


@dataclass(slots=True)
class Death:
    """The death of one worker, of the instance of that number."""

    instance: int
    #: A request was the cause: the death counts against it, and not against the model.
    explained: bool = False


@dataclass(slots=True)
class _Suspect:
    deaths: list[Death] = field(default_factory=list)
    #: One of the workers had nothing else to run.
    alone: bool = False
    refused_until: float = -inf
    forgotten_at: float = inf

    @property
    def is_poison(self) -> bool:
        """Two deaths are proof if one of them had no other possible cause among the requests."""
        return len(self.deaths) >= 2 + (not self.alone)


@dataclass(frozen=True, slots=True)
class Verdict(Generic[K]):
    poison: frozenset[K] = frozenset()
    #: Instances whose earlier deaths are explained now, one for each death.
    excused: tuple[int, ...] = ()


class Poisons(Generic[K]):
    """Remembers which requests a worker had when it died, until they are answered without error.

    One that was there at two deaths, at one of them alone, is poison, and so is one that was
    there at three.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._suspects: dict[K, _Suspect] = {}

    def __len__(self) -> int:
        return len(self._suspects)

    def __iter__(self) -> Iterator[K]:
        return iter(self._suspects)

    def died(
        self, keys: Collection[K], instance: int, now: float, *, alone: bool = True
    ) -> Verdict[K]:
        """Record that a worker has died with these requests; none if it was idle. `alone`: it had
        none of another model."""
        self.forget(now)
        death = Death(instance)
        for key in keys:
            suspect = self._suspects.setdefault(key, _Suspect())
            suspect.deaths.append(death)
            suspect.alone |= alone and len(keys) == 1
            suspect.forgotten_at = now + SUSPECTED
        poison = frozenset(key for key in keys if self._suspects[key].is_poison)
        excused: list[int] = []
        death.explained = bool(poison)  # it was never counted
        for key in poison:
            suspect = self._suspects[key]
            seconds = min(MOST_REFUSED, REFUSED * 2.0 ** (len(suspect.deaths) - 2))
            suspect.refused_until = now + seconds
            suspect.forgotten_at = suspect.refused_until + SUSPECTED
            for earlier in suspect.deaths:
                if not earlier.explained:
                    earlier.explained = True
                    excused.append(earlier.instance)
        if len(self._suspects) > self._most:
            by_end = sorted(self._suspects, key=lambda key: self._suspects[key].forgotten_at)
            for key in by_end[: len(by_end) - self._most]:
                del self._suspects[key]
        return Verdict(poison, tuple(excused))

    def survived(self, key: K) -> None:
        self._suspects.pop(key, None)

    def refused_for(self, key: K, now: float) -> float:
        """Seconds for which this request is refused; 0: it is not."""
        suspect = self._suspects.get(key)
        return 0.0 if suspect is None else max(0.0, suspect.refused_until - now)

    def forget(self, now: float) -> None:
        for key in [key for key, one in self._suspects.items() if one.forgotten_at <= now]:
            del self._suspects[key]
