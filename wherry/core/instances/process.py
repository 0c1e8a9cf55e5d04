"""How does an instance run its batches in a worker process?

A batch is sent, and its answer read, in the event loop that owns the worker's sockets; the
instance's thread only watches the process (`ModelWorker`). Everything below `serve` happens in that
loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

import msgspec
import numpy as np

from wherry.core.instances import worker_protocol
from wherry.core.instances.instance import Instance
from wherry.core.instances.model_worker import WorkerInstance
from wherry.core.instances.stream_run import StreamRun
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device, Model
from wherry.core.observability.otel.following import begun
from wherry.core.scheduler.instance_table import BatchRun
from wherry.core.values.execution import Failure
from wherry.core.values.media_codec import is_converted
from wherry.core.values.request import Batch, Columns
from wherry.core.workers.encoding import (
    BLOB_BYTES,
    INLINE_BYTES_WITHOUT_SLAB,
    UNSENDABLE,
    Garbage,
    gathered,
    why_not_sent,
    with_blobs,
)
from wherry.core.workers.link import LARGE_BYTES
from wherry.core.workers.loop import LoopCalls
from wherry.core.workers.shared_process import SharedWorker

#: What a Python object costs to encode, in bytes of an array that take as long to copy.
_OBJECT_BYTES = 64
#: Arrays of more bytes do not fit into a message: they take as long as a short execution, and use
#: the slab, which belongs to one batch at a time.
SMALL_BYTES = INLINE_BYTES_WITHOUT_SLAB
#: After this number of calls by lone callers in threads, their threads are lent the sockets.
_MANY_LONE_CALLS = 16
#: Seconds between two checks of a reader that holds back its stream.
_LOOK = 0.5


class ProcessInstance(WorkerInstance, Instance):
    """A model that runs batches in a worker process."""

    def __init__(
        self,
        name: str,
        device: Device,
        model: Model,
        config: ModelConfig,
        loop: Callable[[], LoopCalls],
        shared: SharedWorker | None = None,
    ) -> None:
        super().__init__(name, device, model, config, loop, shared)
        self.runs_in_caller = config.run_in_caller
        #: About how many more calls of lone callers there were than other batches.
        self._lone_calls = 0
        signature = model.signature(config.name)
        self._streams = signature.streams
        encodes = any(is_converted(spec.media) for spec in signature.outputs)
        self._gives_media = encodes and not self._streams and not config.response_cache
        # It would not be known whether a batch ahead has run.
        self.takes_ahead = not self._streams and config.sequence is None and config.run_again
        #: The batches that are with the worker, which answers them in this order.
        self._runs: deque[_PendingBatch] = deque()
        #: When the worker had run the last one that it has answered, by perf_counter_ns().
        self._ran_ns = 0

    # Any thread

    def give(self, batches: Sequence[Batch]) -> None:
        self.worker.do(self._begin, batches)

    def run_in_caller(self, columns: Columns) -> Columns | Failure | None:
        message = worker_protocol.Execute(
            with_blobs(columns), [1], True, lossless=self._gives_media
        )
        sent_at = perf_counter_ns()
        try:
            result = self.worker.call(message, self._interrupted)
            if result is None:
                self._lone_calls += 2  # one of them for the batch that it now becomes
                return None
            if not isinstance(result, worker_protocol.ANSWERS):
                raise Garbage(f"an unexpected {type(result).__name__}")
            (outcome,) = result.execution([1], sent_at).outcomes
            return outcome
        except UNSENDABLE as error:
            reason = why_not_sent(columns) or str(error)
            return Failure("InvalidRequest", f"model {self._config.name!r}: {reason}")
        except Garbage:
            self.worker.kill()
            return None

    def _interrupted(self) -> None:
        """Ctrl-C has ended a call in its caller: nothing is done with the answer."""
        run = _PendingBatch(Batch((), 0, "interrupted"), (), 0.0)
        run.message, run.is_abandoned = worker_protocol.Execute({}, [1], False), True
        self._runs.append(run)

    # The loop: a batch begins

    def _begin(self, batches: Sequence[Batch]) -> None:
        if self._lone_calls:
            self._lone_calls -= 1
        answers = self.answers
        for batch in batches:
            try:
                run = _PendingBatch(batch, answers.prepared(batch), answers.now())
                if not run.requests:
                    self.worker.post(partial(self.answers.finished, self), (run,))
                    continue
                for request in run.requests:
                    if request.trace is not None:
                        run.trace = begun(run.requests, batch, self, run.started)
                        break
                if self._streams and run.requests[-1].streams:
                    run.stream = answers.stream_run(self, run)
                self._send(run)
            except Exception:  # noqa: BLE001 - our own bug: it is logged, and the requests fail
                answers.crashed(self, batch)
        self.worker.link.write()

    def _send(self, run: _PendingBatch) -> None:
        requests = run.requests
        columns: dict[str, Any] = requests[0].inputs
        counts = [requests[0].rows]
        if len(requests) > 1:
            columns = {name: gathered([one.inputs[name] for one in requests]) for name in columns}
            counts = [request.rows for request in requests]
        arrays, others = _sizes(columns)
        if arrays > SMALL_BYTES:
            self.takes_ahead = False
        self._runs.append(run)
        slab = len(self._runs) == 1  # else another batch may be there
        if slab and others >= BLOB_BYTES:
            columns = with_blobs(columns)
        trace = None if run.trace is None else run.trace.context.headers()
        lossless = self._gives_media and all(request.takes_values for request in requests)
        run.message = (
            worker_protocol.Execute(columns, counts, slab, trace, lossless=lossless)
            if run.stream is None
            else worker_protocol.Generate(columns, counts, trace)
        )
        run.large = arrays + others > LARGE_BYTES
        self.worker.link.add(run.message, slab=slab, large=run.large)

    def _send_again(self, run: _PendingBatch) -> None:
        assert isinstance(run.message, worker_protocol.Execute)
        run.message.again = True
        # Not to the slab: the model may have kept what lies there.
        self.worker.link.add(run.message, large=run.large)
        self.worker.link.write()

    def _refused(self, message: Any, error: Exception) -> None:
        """A batch cannot be encoded: its requests that cannot be fail, the others are sent."""
        run = next((run for run in self._runs if run.message is message), None)
        if run is None:
            return
        if isinstance(message, worker_protocol.Execute) and message.again:
            self.worker.kill()  # it waits for the batch
            return
        self._runs.remove(run)
        try:
            if not isinstance(error, UNSENDABLE):
                raise error
            self._send_without_unsendable(run, error)
        except Exception:  # noqa: BLE001 - this process is short of something, or our own bug
            self.answers.crashed(self, run.batch)

    def _send_without_unsendable(self, run: _PendingBatch, error: Exception) -> None:
        reasons = {request: why_not_sent(request.inputs) for request in run.requests}
        if not any(reasons.values()):  # each of them could be sent, but not all together
            reasons = dict.fromkeys(reasons, str(error))
        run.requests = [request for request, reason in reasons.items() if not reason]
        for request, reason in reasons.items():
            if reason:
                text = f"model {self._config.name!r}: {reason}"
                self.answers.failed(request, Failure("InvalidRequest", text), self.name)
        if not run.requests:
            self.answers.finished(self, (run,))
            return
        if run.stream is not None:
            run.stream = self.answers.stream_run(self, run)
        self._send(run)
        self.worker.link.write()

    # The loop: a message arrives

    def _receive(self, arrived: list[Any]) -> None:
        ended: list[BatchRun] = []
        try:
            for number, message in enumerate(arrived, 1):
                run = self._runs[0] if self._runs else None
                if run is None and isinstance(message, worker_protocol.Moved):
                    self.worker.moved(message)
                    continue
                if run is None:
                    raise Garbage("a message that answers no batch")
                try:
                    if run.stream is None and isinstance(message, worker_protocol.ANSWERS):
                        self._answered(run, message)
                    else:
                        self._take(run, message)
                except Garbage:
                    raise
                except Exception:  # noqa: BLE001 - our own bug: it is logged, and the requests fail
                    self.worker.kill()  # with the answer half read
                    self.answers.crashed(self, run.batch)
                    continue
                if run.held is not None:
                    self.worker.link.hold(arrived[number:])
                    return
                has_ended = not self._runs or self._runs[0] is not run
                if has_ended and run.stream is None and not run.is_abandoned:
                    ended.append(run)
        finally:
            if ended:
                self.answers.finished(self, ended)
        if self._lone_calls >= _MANY_LONE_CALLS and not self._runs:
            self._lone_calls = 0
            self.worker.link.offer()

    def _take(self, run: _PendingBatch, message: Any) -> None:
        stream = run.stream
        if isinstance(run.message, worker_protocol.Execute) and isinstance(
            message, worker_protocol.SendAgain
        ):
            self._send_again(run)
        elif stream is not None and isinstance(message, worker_protocol.Respond):
            self._responded(run, stream, message)
        elif stream is not None and isinstance(message, worker_protocol.GenerateEnd):
            self._streamed(run, stream, message)
        else:
            raise Garbage(f"an unexpected {type(message).__name__}")

    def _answered(self, run: _PendingBatch, result: Any) -> None:
        assert run.message is not None
        # The clock is the same in both processes. Time behind other batches is a wait in the queue.
        behind_ns = self._ran_ns - run.started_ns
        if behind_ns > 0:
            run.started += behind_ns * 1e-9
            run.started_ns = self._ran_ns
        run.execution = result.execution(run.message.counts, run.started_ns)
        self._ran_ns = result.started_at + result.infer_ns
        self._runs.popleft()
        if self.takes_ahead and isinstance(result, worker_protocol.Result):
            for column in result.columns.values():
                if not isinstance(column, list) and column.nbytes > SMALL_BYTES:
                    self.takes_ahead = False

    # The loop: a stream

    def _responded(
        self, run: _PendingBatch, stream: StreamRun, message: worker_protocol.Respond
    ) -> None:
        if not 0 <= message.index < len(run.requests):
            raise Garbage("a response to no request")
        if message.index in run.gone:
            return
        if stream.has_room():
            self._respond(run, stream, message)
            return
        run.held = message  # the worker waits for its reader: what it sends is not read
        run.abandoned_at = self.answers.now() + self._config.stall_timeout
        stream.when_room(lambda: self.worker.post(self._go_on, run))
        self._look(run)

    def _look(self, run: _PendingBatch) -> None:
        """A reader holds back its stream: the instance does not count as hung meanwhile."""
        if run.held is not None:
            now = self.busy_since = self.answers.now()
            if now < run.abandoned_at:
                self.worker.post_later(_LOOK, self._look, run)
            else:
                self._go_on(run)

    def _go_on(self, run: _PendingBatch) -> None:
        message, run.held = run.held, None
        if message is not None and run.stream is not None:
            self._respond(run, run.stream, message)
            self.worker.link.resume()

    def _respond(
        self, run: _PendingBatch, stream: StreamRun, message: worker_protocol.Respond
    ) -> None:
        if not stream.respond(message.index, message.columns):
            run.gone |= {message.index}
            self.worker.link.send(worker_protocol.Cancel(message.index))

    def _streamed(
        self, run: _PendingBatch, stream: StreamRun, end: worker_protocol.GenerateEnd
    ) -> None:
        if len(end.failures) != len(run.requests):
            raise Garbage("a stream with another end")
        self._runs.popleft()
        self.answers.streamed(stream, end.failures)


class _PendingBatch(BatchRun, eq=False):
    """A batch from `give` until its end is reported."""

    #: `started`, by perf_counter_ns().
    started_ns: int = msgspec.field(default_factory=perf_counter_ns)
    #: If it streams.
    stream: StreamRun | None = None
    #: What was sent.
    message: worker_protocol.Execute | worker_protocol.Generate | None = None
    #: Encoding it takes long.
    large: bool = False
    #: Of a stream: requests, by their numbers, whose callers are gone.
    gone: frozenset[int] = frozenset()
    #: A response that its reader has no room for, and until when it waits for that.
    held: worker_protocol.Respond | None = None
    abandoned_at: float = 0.0
    #: Its caller has left before the answer, which is dropped.
    is_abandoned: bool = False


def are_large(inputs: Iterable[Columns]) -> bool:
    """Would it hold up the loop to encode these?"""
    return sum([sum(_sizes(columns)) for columns in inputs]) > LARGE_BYTES


def _sizes(columns: Mapping[str, Any]) -> tuple[int, int]:
    """About how many bytes: of arrays, and of others; more than LARGE_BYTES if these are JSON."""
    arrays = others = 0
    for column in columns.values():
        if not isinstance(column, list):
            arrays += column.nbytes
        elif others <= LARGE_BYTES:
            others += _rows_size(column)
    return arrays, others


def _rows_size(rows: Sequence[Any]) -> int:
    """About how many bytes; more than LARGE_BYTES for JSON."""
    size = _OBJECT_BYTES * len(rows)
    if size > LARGE_BYTES:
        return size
    for row in rows:
        if isinstance(row, str | bytes):
            size += len(row)
        elif isinstance(row, np.ndarray):
            size += row.nbytes
        elif isinstance(row, list) and row and type(row[0]) is bytes:
            size += _rows_size(row)
        else:
            return LARGE_BYTES + 1  # JSON: of any size
    return size
