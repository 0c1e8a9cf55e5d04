"""What happens to the responses of a batch that streams, until it has ended?

A reader that is alone in its batch and too slow holds back its own generation; in a batch that
several share, a reader that is too slow loses its stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns

from wherry.core.models.config import ModelConfig
from wherry.core.observability.statistics import ModelStatistics, ResponseCount
from wherry.core.scheduler.instance_table import BatchRun, BatchSlot
from wherry.core.values.errors import Cancelled, WherryError
from wherry.core.values.execution import Execution, Failure, Outcome
from wherry.core.values.reply import StreamReply
from wherry.core.values.request import Columns, InferRequest, InferResponse


@dataclass(frozen=True, slots=True)
class ModelStreams:
    """What all streams of one model have in common."""

    config: ModelConfig
    statistics: ModelStatistics
    clock: Callable[[], float]
    #: Ends a request with an error; `failed`: with what its model has done wrong on that instance.
    fail: Callable[[InferRequest, WherryError], bool]
    failed: Callable[[InferRequest, Failure, str], None]
    #: Remembers what the next step of a sequence needs of a row; returns the other outputs.
    keep: Callable[[InferRequest, Columns], Columns] = lambda _, columns: columns


class StreamRun:
    """One batch whose requests stream. For one thread at a time.

    An instance hands on each response with `respond`, which never blocks. Before that it waits
    until the reader `has_room`: a thread by `wait_for_room`, an event loop by `when_room`.
    """

    def __init__(
        self,
        streams: ModelStreams,
        instance: BatchSlot,
        run: BatchRun,
    ) -> None:
        self.instance = instance
        # Not `run` itself, which may hold this one: what it holds is freed as soon as it ends.
        self.run = BatchRun(run.batch, run.requests, run.started, trace=run.trace)
        self.requests = run.requests
        self._counts = [ResponseCount(streams.statistics, run.started) for _ in run.requests]
        self._started_ns = perf_counter_ns()
        self._streams = streams
        self._clock = streams.clock
        reply = run.requests[0].reply if len(run.requests) == 1 else None
        #: The reader that may hold back the generation, if there is only one.
        self._lone = reply if isinstance(reply, StreamReply) else None
        #: Since when a response is held back.
        self._held_since: float | None = None

    def respond(self, index: int, columns: Columns) -> bool:
        request = self.requests[index]
        now = self.instance.busy_since = self._clock()  # progress
        columns = self._streams.keep(request, columns)
        reply = request.reply
        if not isinstance(reply, StreamReply):
            return True  # a row that was not ready
        came_at, self._held_since = self._held_since, None
        if self._counts[index].is_empty:
            self._streams.statistics.responded(now - request.enqueued_at, first=True)
        self._counts[index].responded(now if came_at is None else came_at)
        self._counts[index].go_on(now)
        lone = reply is self._lone
        if reply.send(InferResponse(columns, request.rows), lone=lone):
            return True
        self._streams.fail(request, reply.dropped(self._streams.config.name))
        return False

    def has_room(self) -> bool:
        """May a response be handed on now? If not, it may have to wait for `stall_timeout`
        seconds; after that `respond` fails the request."""
        return self._lone is None or self._lone.has_room()

    def when_room(self, callback: Callable[[], None]) -> None:
        """Have `callback()` called once as soon as `has_room`, in any thread. The time until the
        next `respond` counts as the reader's."""
        assert self._lone is not None, "a shared batch always has room"
        self._held_since = self._clock()
        self._lone.when_room(callback)

    def wait_for_room(self) -> None:
        """Block until `has_room`, for `stall_timeout` at most. The instance does not count as
        hung meanwhile."""
        if self._lone is None or self._lone.has_room():
            return
        self._held_since = self._clock()
        gives_up_at = self._held_since + self._streams.config.stall_timeout
        while not self._lone.wait_for_room(0.5) and self._clock() < gives_up_at:
            self.instance.busy_since = self._clock()

    def executed(self) -> BatchRun:
        """The batch, which has ended now, as one that has answered once."""
        ns, rows = perf_counter_ns() - self._started_ns, sum(one.rows for one in self.requests)
        self.run.execution = Execution(infer_ns=ns, executed_rows=[rows])
        return self.run

    def settle(self, index: int, outcome: Outcome | None) -> None:
        """Give `requests[index]` its end: an error, or that there are no more responses."""
        request, count = self.requests[index], self._counts[index]
        if isinstance(outcome, Failure):
            left = request.reply.settled
            reason = Cancelled.reason if left else outcome.as_exception().reason
            count.ended(self._clock(), reason)
            self._streams.failed(request, outcome, self.instance.name)
        elif request.reply.claim():
            count.ended(self._clock())
            self._streams.statistics.succeeded([request], self._clock())
            request.reply.deliver(InferResponse({}, 0))
        else:
            count.ended(self._clock(), Cancelled.reason)
