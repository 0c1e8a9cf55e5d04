"""How many batches may an instance have at once?

A worker with one batch sleeps between its answer and the next batch. With several it goes on at
once, and several answers are read at one wake-up. In return a batch that is given ahead has lost
its choice: nothing joins it, nothing more urgent comes before it, and no other instance takes it.
So this is for batches that cannot grow, and only while those before them are surely short.

Pure.
"""

from __future__ import annotations

from math import ceil

#: A batch is given ahead while those before it are predicted to run for less than this in all:
#: about what one batch takes on its way to a worker and back.
SHORT_SECONDS = 300e-6
#: Batches that an instance has at most.
MOST = 8
#: By how much of the difference the prediction falls with a batch that was shorter.
FALLING = 1 / 16


class Ahead:
    """Predicts how long a full batch runs, by the longest of the last ones."""

    def __init__(self) -> None:
        self._seconds: float | None = None
        #: Batches that an instance may have; 1 until something is learnt.
        self.most = 1

    def ran(self, seconds: float) -> None:
        """A full batch has run for so long, without its way to the worker and back."""
        known = self._seconds
        if known is not None and seconds < known:
            seconds = known - FALLING * (known - seconds)
        self._seconds = seconds
        self.most = min(MOST, ceil(SHORT_SECONDS / max(seconds, SHORT_SECONDS / MOST)))

    def forget(self) -> None:
        """A worker has died: nothing is given ahead until a batch has run again."""
        self._seconds, self.most = None, 1
