"""How does a request with more rows than a batch holds run in parts and end as one?"""

from __future__ import annotations

import threading
from collections.abc import Callable

from wherry.core.values.errors import BadModelOutput, WherryError
from wherry.core.values.reply import Reply
from wherry.core.values.request import InferRequest, InferResponse, Part, concatenate, rows_of


def split(
    request: InferRequest,
    max_rows: int,
    cancel: Callable[[InferRequest], object],
    count: Callable[[InferRequest, InferResponse | Exception], object],
) -> list[Part]:
    """Cut `request` into requests of at most `max_rows` rows, whose outcomes are joined.

    The first part that fails is the whole request's outcome; `cancel` is called for the others.
    `count(request, outcome)` is called before the whole request is answered. To cancel the request
    is to cancel `request.parts`.
    """
    joint = _Joint(request, cancel, count)
    joint.parts = request.parts = [
        _part(request, start, min(start + max_rows, request.rows), joint.part_done)
        for start in range(0, request.rows, max_rows)
    ]
    joint.missing = len(joint.parts)
    return joint.parts


def _part(
    request: InferRequest, start: int, stop: int, done: Callable[[Reply[InferResponse]], None]
) -> Part:
    part = Part(
        rows_of(request.inputs, start, stop),
        stop - start,
        Reply(done),
        id=request.id,
        priority=request.priority,
        deadline=request.deadline,
        shape_key=request.shape_key,
        parameters=request.parameters,
        tenant=request.tenant,
    )
    part.whole = request
    part.trace = request.trace
    part.cost = request.cost
    part.follows = start > 0
    part.takes_values = request.takes_values
    part.wait_until = request.wait_until
    return part


class _Joint:
    """The outcomes of a request's parts. Any thread."""

    def __init__(
        self,
        request: InferRequest,
        cancel: Callable[[InferRequest], object],
        count: Callable[[InferRequest, InferResponse | Exception], object],
    ) -> None:
        self._request, self._cancel, self._count = request, cancel, count
        self._lock = threading.Lock()
        self.parts: list[Part] = []
        self.missing = 0

    def part_done(self, reply: Reply[InferResponse]) -> None:
        with self._lock:
            self.missing -= 1
            last = self.missing == 0
        if isinstance(reply.outcome, Exception):
            if self._settle(reply.outcome):
                for part in self.parts:
                    if not part.reply.settled:
                        self._cancel(part)
        elif last and not self._request.reply.settled:
            self._settle(self._joined())
        if last:
            self.parts.clear()  # or they and the request would hold each other in memory

    def _joined(self) -> InferResponse | WherryError:
        try:
            outputs = concatenate([part.reply.result().outputs for part in self.parts])
        except ValueError as error:
            text = f"rows of two batches differ in shape ({error}); return list[np.ndarray]"
            return BadModelOutput(text)
        return InferResponse(outputs, self._request.rows)

    def _settle(self, outcome: InferResponse | Exception) -> bool:
        if not self._request.reply.claim():
            return False
        self._count(self._request, outcome)
        self._request.reply.deliver(outcome)
        return True
