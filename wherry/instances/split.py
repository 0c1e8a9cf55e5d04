"""How does a request with more rows than a batch holds run in parts and end as one?"""

from __future__ import annotations

import threading
from collections.abc import Callable

from wherry.values.errors import BadModelOutput, WherryError
from wherry.values.reply import Reply
from wherry.values.request import InferRequest, InferResponse, Part, concatenate, rows_of


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
    parts: list[Part] = []
    lock = threading.Lock()
    missing = -(-request.rows // max_rows)

    def part_done(reply: Reply[InferResponse]) -> None:
        nonlocal missing
        with lock:
            missing -= 1
            last = missing == 0
        if isinstance(reply.outcome, Exception):
            if settle(reply.outcome):
                for part in parts:
                    if not part.reply.settled:
                        cancel(part)
        elif last and not request.reply.settled:
            settle(joined())
        if last:
            parts.clear()  # or they and the request would hold each other in memory

    def joined() -> InferResponse | WherryError:
        try:
            outputs = concatenate([part.reply.result().outputs for part in parts])
        except ValueError as error:
            text = f"rows of two batches differ in shape ({error}); return list[np.ndarray]"
            return BadModelOutput(text)
        return InferResponse(outputs, request.rows)

    def settle(outcome: InferResponse | Exception) -> bool:
        if not request.reply.claim():
            return False
        count(request, outcome)
        request.reply.deliver(outcome)
        return True

    for start in range(0, request.rows, max_rows):
        stop = min(start + max_rows, request.rows)
        part = Part(
            rows_of(request.inputs, start, stop),
            stop - start,
            Reply(part_done),
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
        part.wait_until = request.wait_until
        parts.append(part)
    request.parts = parts
    return parts
