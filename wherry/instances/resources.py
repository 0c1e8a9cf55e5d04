"""How do the dispatchers of several models agree on what they share?

The shell around `scheduler/device_share.py`: its lock, and who is told. A dispatcher asks under its
own lock and is told outside of everybody's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Protocol

from wherry.scheduler.device_share import Claim, DeviceShare
from wherry.values.errors import ConfigError


class Claimant(Hashable, Protocol):
    """A dispatcher."""

    def granted(self) -> None:
        """What it has claimed is its own now: use it, or release it."""
        ...


class Resources:
    """What the models of one runtime share. Safe from any thread."""

    def __init__(self, limits: Mapping[str, int] | None, clock: Callable[[], float]) -> None:
        for name, count in (limits or {}).items():
            if type(count) is not int or count < 1:
                raise ConfigError(f"resources: {name!r} must be a whole number from 1 up")
        self._share = DeviceShare(limits)
        self._clock = clock
        self._lock = threading.Lock()

    def admit(self, model: str, needs: Mapping[str, int]) -> None:
        """A model is loaded that needs these for each batch."""
        with self._lock:
            lacking = self._share.admit(needs)
            if lacking:
                raise ConfigError(
                    f"model {model!r}: resources: a batch needs {needs[lacking]} of {lacking!r},"
                    f" and there are {self._share.limits[lacking]}; raise the limit or need less"
                )

    def acquire(self, who: Claimant, claim: Claim) -> bool:
        """Take what a batch needs. If it is not free, or others are more urgent: `granted` is
        called as soon as it is `who`'s turn, by whoever calls `pass_on`."""
        with self._lock:
            self._share.claim(who, claim)
            # Another one that is granted here would have to be told, which its lock forbids now.
            return self._share.grant(self._clock(), who) is not None

    def withdraw(self, who: Claimant) -> None:
        with self._lock:
            self._share.withdraw(who)

    def release(self, needs: Mapping[str, int]) -> None:
        """A batch is over; `pass_on` must follow, outside of the dispatcher's lock."""
        with self._lock:
            self._share.release(needs)

    def pass_on(self) -> None:
        """Grant what is free to those who wait for it. Hold no dispatcher's lock."""
        while True:
            with self._lock:
                who = self._share.grant(self._clock())
            if who is None:
                return
            who.granted()  # type: ignore[attr-defined] # claimants are dispatchers

    def __repr__(self) -> str:
        return f"<Resources: {self._share!r}>"
