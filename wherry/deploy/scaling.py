"""How many replicas should there be?

More at once, by how much longer than wanted a row waits; fewer one by one, after a time in which
less than half of them had something to do. Pure: time comes in as an argument.
"""

from __future__ import annotations

import re
from math import ceil, inf
from typing import NamedTuple

import msgspec

from wherry.values.errors import ConfigError

#: Seconds for which each observation of a wait must be too long: one long batch is no
#: reason for a replica.
RISING = 1.0
#: Seconds for which nothing is added while replicas that were added do not serve yet: the wait goes
#: on growing until they do, and says nothing of how many are missing.
STARTING = 60.0
#: Seconds of little work before a replica is given up. Twice as long after one was given up that
#: was missed within MISSED seconds, and so on up to LONGEST.
IDLE, MISSED, LONGEST = 60.0, 300.0, 960.0
#: What is little work: instances have run less than this share of the time, and would have run less
#: than that if there had been one replica less.
LITTLE, LITTLE_WITH_ONE_LESS = 0.5, 0.7


class ReplicaBounds(NamedTuple):
    """The fewest and the most replicas."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> ReplicaBounds:
        """Read "1..8", or "2" for exactly two. Raises ConfigError."""
        found = re.fullmatch(r"([0-9]{1,6})(?:\.\.([0-9]{1,6}))?", text.strip())
        if found is not None:
            least = int(found[1])
            most = least if found[2] is None else int(found[2])
            if 1 <= least <= most:
                return cls(least, most)
        raise ConfigError(
            f"replicas {text!r}: give a number from 1 on, as 2, or the fewest and the most, as 1..8"
        )

    def within(self, count: int) -> int:
        return max(self.least, min(self.most, count))


class PoolLoad(msgspec.Struct, frozen=True):
    """What the replicas of a pool that serve have to do at one moment, taken together."""

    #: Replicas that serve.
    serving: int
    #: Predicted seconds until a row that comes now begins to run, on average over them.
    wait: float
    #: Share of the time since the last observation that their instances have run.
    busy: float
    #: Rows that are sent and not answered, and those that one replica runs at once.
    rows: int
    rows_at_once: int = 1


class Scaling:
    """Follows a pool's load with a wanted number of replicas. Ask it about once a second.

    `target`: seconds that a row should wait at most. A row that comes while a batch runs waits for
    its end, so a target below the seconds of a batch asks for idle replicas.
    """

    def __init__(self, bounds: ReplicaBounds, *, target: float = 0.05) -> None:
        if target <= 0:
            raise ConfigError(f"target wait {target:g} s: it must be more than 0")
        self.bounds = bounds
        self.wanted = bounds.least
        self._target = target
        #: Since when the wait has been too long, and the least that it was since then.
        self._rising_since: float | None = None
        self._least_wait = 0.0
        self._added_at = self._removed_at = -inf
        #: Since when there has been little work, and for how long there must be.
        self._idle_since: float | None = None
        self._idle = IDLE

    def __repr__(self) -> str:
        return f"<Scaling: {self.wanted} of {self.bounds.least}..{self.bounds.most}>"

    def observe(self, load: PoolLoad, now: float) -> int:
        """Return how many replicas are wanted, from this load and those before."""
        wanted = self.bounds.within(max(self._by_wait(load, now), self._floor(load)))
        if wanted > self.wanted:
            missed = now - self._removed_at <= MISSED
            self._idle = min(LONGEST, 2 * self._idle) if missed else IDLE
            self._added_at = now
            self._rising_since = self._idle_since = None
        elif self._is_idle(load, now):
            wanted = self.bounds.within(max(self.wanted - 1, self._floor(load)))
            if wanted < self.wanted:
                self._removed_at = now
            self._idle_since = now
        else:
            wanted = self.wanted
        self.wanted = wanted
        return wanted

    def _floor(self, load: PoolLoad) -> int:
        """As many as it takes to run at once all rows that are in flight, of those there are: what
        is in flight is a reason to keep a replica, and the wait is one to add some."""
        return min(self.wanted, ceil(load.rows / max(1, load.rows_at_once)))

    def _by_wait(self, load: PoolLoad, now: float) -> int:
        if load.wait <= self._target or not load.serving:
            self._rising_since = None
            return 0
        if self._rising_since is None:
            self._rising_since, self._least_wait = now, load.wait
        self._least_wait = min(self._least_wait, load.wait)
        starting = load.serving < self.wanted and now - self._added_at < STARTING
        if starting or now - self._rising_since < RISING:
            return 0
        return ceil(load.serving * self._least_wait / self._target)

    def _is_idle(self, load: PoolLoad, now: float) -> bool:
        """Whether there has been little work for long enough."""
        spare = load.serving > 1 and load.busy < min(
            LITTLE, LITTLE_WITH_ONE_LESS * (load.serving - 1) / load.serving
        )
        if not spare or load.wait > self._target or load.serving < self.wanted:
            self._idle_since = None
            return False
        if self._idle_since is None:
            self._idle_since = now
        return now - self._idle_since >= self._idle
