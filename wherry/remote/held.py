"""What becomes of requests while no owner takes any?

They wait for a moment: what has just ended is about to be replaced, or to be reached again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from wherry.scheduler.door import late
from wherry.values.errors import ModelNotReady, WherryError
from wherry.values.request import InferRequest
from wherry.workers.loop import LoopCalls

#: Seconds that requests wait after the last owner has gone.
HOLD: Final = 3.0
#: Seconds between two looks at what waits.
LOOK: Final = 0.25


class HeldRequests:
    """The requests of one model that no owner has. For the loop's thread.

    They wait until `seconds` after `begin`, or until their deadlines, and `fail` then.
    """

    def __init__(
        self,
        model: str,
        loop: LoopCalls,
        clock: Callable[[], float],
        fail: Callable[[InferRequest, WherryError], object],
        seconds: float,
    ) -> None:
        self._model = model
        self._loop = loop
        self._clock = clock
        self._fail = fail
        self._seconds = seconds
        self._until = -inf
        self._requests: list[InferRequest] = []
        #: Whether `_look` will be called.
        self._looks = False

    def __len__(self) -> int:
        return len(self._requests)

    def begin(self) -> None:
        """The last owner has gone."""
        self._until = self._clock() + self._seconds

    def takes(self) -> bool:
        """Whether requests may wait for an owner."""
        return self._clock() < self._until

    def end(self) -> list[InferRequest]:
        """Nothing waits any more. Returns what did, and has no outcome."""
        self._until = -inf
        return self._take()

    def add(self, requests: Sequence[InferRequest]) -> None:
        """Keep these, or fail them if they cannot wait."""
        takes = self.takes()
        for request in requests:
            if takes and (request.sequence is None or request.sequence.start):
                self._requests.append(request)
            else:
                self._fail(request, no_owner(self._model))
        if self._requests and not self._looks:
            self._looks = True
            self._loop.loop.call_later(LOOK, self._look)

    def _take(self) -> list[InferRequest]:
        requests, self._requests = self._requests, []
        return [one for one in requests if not one.reply.settled]

    def _look(self) -> None:
        self._looks = False
        now = self._clock()
        requests = self._take()
        for request in requests:
            if request.deadline is not None and request.deadline <= now:
                self._fail(request, late(self._model, now - request.enqueued_at))
        self.add([one for one in requests if not one.reply.settled])


def no_owner(model: str) -> ModelNotReady:
    """Why a request cannot be sent."""
    return ModelNotReady(f"model {model!r} is not ready: no server has it")
