"""Is a request worth taking in, by how long its answer would take? And is it still, once that is
known better?

Work whose answer comes too late delays what waits behind it: it is refused before it costs
anything. What came in before anything was learnt is looked at again after each turn (a batch, or a
first response), by the fastest of the last turns: one slow turn, as a first batch that compiles,
lets no request be refused.
"""

from __future__ import annotations

from collections import deque
from math import inf

from wherry.core.values.errors import DeadlineExceeded, Overloaded

#: A request is refused if its timeout is shorter than this times what it would take: an answer
#: after the timeout is of no use.
SAFETY = 1.2
#: A request without a timeout is never refused with fewer turns than this before it: `Runtime.map`
#: asks as far ahead.
MIN_QUEUED_BEFORE_REFUSAL = 8
#: The fastest of this many turns is what a turn takes at least ...
TURNS = 4
#: ... once there were at least this many.
LEAST_TURNS = 2


class TurnTimes:
    """The least time that a turn takes, by the last ones."""

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=TURNS)

    def ended(self, seconds: float) -> None:
        self._latest.append(seconds)

    def within(self, longest: float) -> float:
        """How many turns may be waited for: those within `longest` seconds, and always
        `MIN_QUEUED_BEFORE_REFUSAL`."""
        fastest = min(self._latest) if len(self._latest) >= LEAST_TURNS else 0.0
        return max(float(MIN_QUEUED_BEFORE_REFUSAL), longest / fastest) if fastest > 0 else inf


def refusal(
    model: str,
    seconds: float,
    *,
    left: float | None,
    longest: float | None,
    turns: float,
    within: float,
    what: str = "this request",
) -> Overloaded | None:
    """Why a request may not come in; None: it may.

    It would take about `seconds`. `left` is what remains of its own timeout; without one (None)
    `longest` counts, the model's `max_queue_wait` (None: for ever), if about `turns` come before
    it, which is more than surely run `within` that time.
    """
    if left is not None:
        over = SAFETY * seconds - left
        if over < 0:
            return None
        bound = f"too long for its timeout ({left:.3f} s)"
    else:
        if longest is None or seconds <= longest or turns < within:
            return None
        over = seconds - longest
        bound = f"longer than max_queue_wait ({longest:g} s)"
    return Overloaded(
        f"model {model!r}: {what} would take about {seconds:.3f} s, {bound}; retry later, allow"
        " more time, or add instances",
        retry_after=max(1.0, over),
    )


def too_slow(model: str, longest: float) -> Overloaded:
    """Why a request is given up that waits already: the model has turned out so slow."""
    return Overloaded(
        f"model {model!r}: this request would have to wait for longer than max_queue_wait"
        f" ({longest:g} s): the model is slower than was known when it came; retry later, give it a"
        " timeout, or add instances",
        retry_after=longest,
    )


def late(model: str, waited: float) -> DeadlineExceeded:
    """Why a request fails whose own timeout is over, `waited` seconds after it came."""
    return DeadlineExceeded(
        f"model {model!r}: not finished within the request's timeout ({waited:.3f} s); allow more"
        " time, or add instances"
    )
