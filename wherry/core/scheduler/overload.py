"""Is a request worth taking in, by how long its answer would take? And is it still, once that is
known better?

Work whose answer comes too late delays what waits behind it: it is refused before it costs
anything. What came in before anything was learnt is looked at again after each turn (a batch, or a
first response), by the fastest of the last turns: one slow turn, as a first batch that compiles,
lets no request be refused.

The length of a stream does not predict its first response. While requests wait, the time between
two first responses is what the work of one took. So the rate of that work, learnt only while
requests wait, predicts how long the work ahead of a new one takes. Pure: time comes in as an
argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from math import inf

from wherry.core.values.errors import DeadlineExceeded, Overloaded

#: A request is refused if its timeout is shorter than this times what it would take: an answer
#: after the timeout is of no use.
SAFETY = 1.2
#: A request without a timeout is never refused with fewer turns than this before it: `Runtime.map`
#: sends as far ahead.
MIN_QUEUED_BEFORE_REFUSAL = 8
#: The fastest of this many turns is what a turn takes at least ...
TURNS = 4
#: ... once there were at least this many.
LEAST_TURNS = 2


class TurnTimes:
    __slots__ = ("_latest", "ended")

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=TURNS)
        #: A turn has taken these seconds.
        self.ended = self._latest.append

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
    """The error of a queued request that is refused after all: the model is too slow."""
    return Overloaded(
        f"model {model!r}: this request would have to wait for longer than max_queue_wait"
        f" ({longest:g} s): the model is slower than was known when it came; retry later, give it a"
        " timeout, or add instances",
        retry_after=longest,
    )


def late(model: str, waited: float) -> DeadlineExceeded:
    """The error of a request whose own timeout is over, `waited` seconds after it came."""
    return DeadlineExceeded(
        f"model {model!r}: not finished within the request's timeout ({waited:.3f} s); allow more"
        " time, or add instances"
    )


#: How much of the past remains with each first response.
FADING = 0.95


class FirstResponses:
    """The requests without a first response, and the rate at which they get it."""

    def __init__(self) -> None:
        #: What the first response of one request takes.
        self.turns = TurnTimes()
        self._waiting: dict[Hashable, float] = {}
        #: First responses, their work and its seconds; the older ones count less.
        self._count = 0.0
        self._work = 0.0
        self._seconds = 0.0
        #: Start of the work that is measured: the last first response, or an arrival while no
        #: request waited.
        self._since = 0.0

    def __repr__(self) -> str:
        return f"<FirstResponses: {len(self._waiting)} waiting>"

    def can_run(self, now: float) -> None:
        """Those that wait could not run before: no instance was loaded."""
        self._since = now

    def arrived(self, request: Hashable, cost: float, now: float) -> None:
        if not self._waiting:
            self._since = now
        self._waiting[request] = cost

    def responded(self, request: Hashable, now: float) -> bool:
        """Count a response. True if it was the first of this request."""
        cost = self._waiting.pop(request, None)
        if cost is None:
            return False
        self._count = FADING * self._count + 1
        self._work = FADING * self._work + cost
        seconds = max(0.0, now - self._since)
        self._seconds = FADING * self._seconds + seconds
        self.turns.ended(seconds)
        self._since = now
        return True

    def left(self, request: Hashable) -> None:
        self._waiting.pop(request, None)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def mean_seconds(self) -> float:
        """What the first response of one request takes, on average; 0.0: not known yet."""
        return self._seconds / self._count if self._count else 0.0

    def predicted_seconds(self, cost: float = 1.0) -> float:
        """Predicted time to the first response of a request that arrives now; 0: not known yet."""
        if not self._work:
            return 0.0
        return (sum(self._waiting.values()) + cost) * self._seconds / self._work


#: Weight of the latest interval: the mean reaches back over about 1 / PACE_MEMORY ends.
PACE_MEMORY = 1 / 16


class Pace:
    """How long requests take that run at the same time, where there is no queue to look at: by
    Little's law those that are here, times the mean seconds from one end to the next, of the times
    in which there was something to do."""

    def __init__(self) -> None:
        self._interval = 0.0
        self._ends = 0
        self._since: float | None = None

    def began(self, now: float) -> None:
        """A request starts; if it is the only one, so does the time that counts."""
        if self._since is None:
            self._since = now

    def ended(self, now: float, left: int) -> None:
        """A request has ended, and `left` others go on."""
        assert self._since is not None, "nothing had begun"
        interval = max(0.0, now - self._since)
        self._ends += 1
        if self._ends == 1:  # the others were on their way as long, and may end with it
            interval /= left + 1
        self._interval += max(PACE_MEMORY, 1 / self._ends) * (interval - self._interval)
        self._since = now if left else None

    def predicted_seconds(self, here: int) -> float:
        """For one more besides those that are here; 0.0 if nothing is known yet."""
        return (here + 1) * self._interval
