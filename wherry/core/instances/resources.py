"""How do the dispatchers of several models agree on what they share?

The shell around `core/scheduler/device_share.py`. A dispatcher makes its claims under its own lock;
it is notified of a grant while no lock is held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from wherry.core.scheduler.device_share import Claim, DeviceShare, Granted
from wherry.core.values.errors import ConfigError


class Resources:
    """What the models of one runtime share. Safe from any thread."""

    def __init__(self, limits: Mapping[str, int] | None, clock: Callable[[], float]) -> None:
        for name, count in (limits or {}).items():
            if type(count) is not int or count < 1:
                raise ConfigError(f"resources: {name!r} must be a whole number from 1 up")
        self._share: DeviceShare[Granted] = DeviceShare(limits)
        self._clock = clock
        self._lock = threading.Lock()

    def admit(self, model: str, needs: Mapping[str, int]) -> None:
        with self._lock:
            lacking = self._share.admit(needs)
            if lacking:
                raise ConfigError(
                    f"model {model!r}: resources: a batch needs {needs[lacking]} of {lacking!r},"
                    f" and there are {self._share.limits[lacking]}; raise the limit or need less"
                )

    def acquire(self, granted: Granted, claim: Claim) -> bool:
        """Take what a batch needs. False if it is not free, or others are more urgent: `granted`
        is called as soon as it is its turn, in a thread that calls `pass_on`."""
        with self._lock:
            self._share.claim(granted, claim)
            # Another dispatcher would have to be notified of its grant, which this one's lock
            # forbids.
            return self._share.grant(self._clock(), granted) is not None

    def withdraw(self, granted: Granted) -> None:
        with self._lock:
            self._share.withdraw(granted)

    def release(self, needs: Mapping[str, int]) -> None:
        """A batch is over; `pass_on` must follow, outside of the dispatcher's lock."""
        with self._lock:
            self._share.release(needs)

    def pass_on(self) -> None:
        """Grant what is free to the claims that wait. Hold no dispatcher's lock."""
        while True:
            with self._lock:
                granted = self._share.grant(self._clock())
            if granted is None:
                return
            granted()

    def __repr__(self) -> str:
        return f"<Resources: {self._share!r}>"
