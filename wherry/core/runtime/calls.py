"""How does a thread or an event loop of this process get the answer to a request?"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from queue import SimpleQueue
from typing import Any

from wherry.core.models.model import PipelineCall, current_call
from wherry.core.observability.otel.following import trace_request
from wherry.core.observability.otel.providers import tracing_of
from wherry.core.observability.otel.tracing import RequestTrace, Tracing
from wherry.core.pipelines.pipeline import LoopThread
from wherry.core.runtime.loaded_model import LoadedModel
from wherry.core.runtime.loop_port import LoopPorts
from wherry.core.values.reply import Reply, StreamReply
from wherry.core.values.request import Columns, InferRequest, InferResponse, SequenceStep

#: Calls that may wait for each other: pipelines that call pipelines, or themselves.
MOST_NESTED = 100


class LocalCalls:
    """Makes requests for callers in this process. Options are those of LoadedModel.request."""

    def __init__(self, clock: Callable[[], float], pipelines: LoopThread, ports: LoopPorts) -> None:
        self._clock = clock
        self._pipelines = pipelines
        self._ports = ports
        #: OpenTelemetry's, by the provider that the program has set by now, or a server's; None: it
        #: is off.
        self.tracing: Tracing | None = tracing_of("", clock, serves=False)

    def span(self, loaded: LoadedModel) -> RequestTrace | None:
        """OpenTelemetry's span of a call that begins here; None: it has none."""
        tracing, call = self.tracing, current_call.get()
        if tracing is None or (call is not None and not call.trace.is_followed):
            return None
        return tracing.local(loaded.name)

    def _trace(self, loaded: LoadedModel, request: InferRequest, call: PipelineCall | None) -> None:
        """Trace a call, among those of the pipeline that makes it. RecursionError beyond
        MOST_NESTED: such calls would wait for each other until memory ends."""
        span = None if self.tracing is None else self.span(loaded)
        if call is not None:
            if call.trace.depth >= MOST_NESTED:
                raise RecursionError(
                    f"call of {loaded.name!r}: {MOST_NESTED} calls wait for each other; a pipeline"
                    " that calls itself, directly or through another, must stop at some point"
                )
            request.follows = True
        elif span is None:
            return
        caller = None if call is None else call.trace
        trace_request(request, loaded, self._clock, span, caller=caller)

    def settled(self) -> None:
        """A call has its outcome: what was recorded of it becomes spans here, if nothing else does
        that."""
        if self.tracing is not None:
            self.tracing.flush()

    # From threads

    def run(
        self,
        loaded: LoadedModel,
        columns: Columns,
        rows: int,
        timeout: float | None = None,
        priority: int = 0,
        sequence: SequenceStep | None = None,
        span: RequestTrace | None = None,
    ) -> InferResponse:
        call = self._begin(loaded, columns, rows, timeout, priority, sequence, span)
        try:
            return _wait(call)
        except BaseException:
            loaded.cancel(call[0])  # a KeyboardInterrupt while it runs; else it is settled
            raise
        finally:
            if span is not None:
                self.settled()

    def map(self, loaded: LoadedModel, rows: Iterable[Any]) -> Iterator[Any]:
        """Yield the results of rows in their order, with enough requests in flight to fill batches.
        The first error is raised in its place; closing the iterator cancels what is in flight."""
        config = loaded.config
        window = 4 * max(1, config.max_batch_size) * sum(g.count for g in config.instances)
        window = max(16, window)
        if config.max_queue_size is not None:
            window = max(1, min(window, config.max_queue_size // 2))
        pending: deque[tuple[InferRequest, threading.Lock]] = deque()
        try:
            for row in rows:
                args, inputs = ((), dict(row)) if loaded.is_row(row) else ((row,), {})
                span = None if self.tracing is None else self.span(loaded)
                columns = loaded.inputs.kept(args, inputs)
                pending.append(self._begin(loaded, columns, 1, span=span))
                if len(pending) >= window:
                    answer = _wait(pending[0])
                    pending.popleft()
                    yield loaded.row(answer.outputs)
            while pending:
                answer = _wait(pending[0])
                pending.popleft()
                yield loaded.row(answer.outputs)
        finally:
            for request, _ in pending:
                loaded.cancel(request)
            self.settled()

    def stream(
        self, loaded: LoadedModel, columns: Columns, **options: Any
    ) -> Generator[InferResponse, None, None]:
        """Yield the responses to one row. Closing the generator cancels the request."""
        self._check_wait(loaded)
        queue: SimpleQueue[InferResponse | None] = SimpleQueue()
        reply: StreamReply[InferResponse] = StreamReply(
            lambda _, response: queue.put(response), lambda _: queue.put(None)
        )
        request = loaded.request(columns, 1, reply, **options)
        if self.tracing is not None and (span := self.span(loaded)) is not None:
            trace_request(request, loaded, self._clock, span)
        loaded.submit([request])
        try:
            while (response := queue.get()) is not None:
                reply.consumed()
                yield response
            reply.result()
        finally:
            loaded.cancel(request)
            self.settled()

    def _begin(
        self,
        loaded: LoadedModel,
        columns: Columns,
        rows: int,
        timeout: float | None = None,
        priority: int = 0,
        sequence: SequenceStep | None = None,
        span: RequestTrace | None = None,
    ) -> tuple[InferRequest, threading.Lock]:
        self._check_wait(loaded)
        answered = threading.Lock()
        answered.acquire()
        request = loaded.request(
            columns,
            rows,
            Reply(lambda _: answered.release()),
            timeout=timeout,
            priority=priority,
            sequence=sequence,
        )
        request.takes_values = True
        if span is not None:
            trace_request(request, loaded, self._clock, span)
        loaded.submit([request])
        return request, answered

    def _check_wait(self, loaded: LoadedModel) -> None:
        """RuntimeError where a wait would never end: in the pipelines' event loop, for a model that
        needs the loop; and at the end of the interpreter, which has stopped the threads."""
        if self._pipelines.is_here and loaded.calls_others:
            name = loaded.name
            raise RuntimeError(
                f"a pipeline cannot wait for model {name!r} without `await`, which would run in the"
                f" same event loop: write `await {name}.ainfer(...)`, or `async for ... in"
                f" {name}.astream(...)`"
            )
        if sys.is_finalizing():
            raise RuntimeError(
                f"the interpreter is exiting: model {loaded.name!r} can no longer be called, as"
                " from __del__; close its callers earlier, or register them with atexit"
            )

    # From event loops

    async def answer(
        self,
        loaded: LoadedModel,
        columns: Columns,
        rows: int,
        *,
        takes_values: bool = True,
        **options: Any,
    ) -> InferResponse:
        """Return the answer to checked columns. Cancelling the task cancels the request."""
        port = self._ports.here()
        future: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()

        def done(reply: Reply[InferResponse]) -> None:
            if not future.done():
                if isinstance(reply.outcome, Exception):
                    future.set_exception(reply.outcome)
                else:
                    future.set_result(reply.outcome)

        reply: Reply[InferResponse] = Reply(done, port)
        call = current_call.get()
        if call is not None:
            options = self._inherited(call, options)
        request = loaded.request(columns, rows, reply, **options)
        request.takes_values = takes_values
        if call is not None or self.tracing is not None:
            self._trace(loaded, request, call)
        port.submit(loaded, request)
        try:
            response = await future
            return loaded.as_declared(response) if request.takes_tensors else response
        except asyncio.CancelledError:
            loaded.cancel(request)
            raise
        finally:
            if self.tracing is not None:
                self.settled()

    async def responses(
        self, loaded: LoadedModel, columns: Columns, rows: int, **options: Any
    ) -> AsyncGenerator[InferResponse, None]:
        """`answer` for a model that streams. Closing the generator cancels the request."""
        port = self._ports.here()
        queue: asyncio.Queue[InferResponse | None] = asyncio.Queue()
        reply: StreamReply[InferResponse] = StreamReply(
            lambda _, response: port.call(queue.put_nowait, response),
            lambda _: port.call(queue.put_nowait, None),
        )
        call = current_call.get()
        if call is not None:
            options = self._inherited(call, options)
        request = loaded.request(columns, rows, reply, **options)
        if call is not None or self.tracing is not None:
            self._trace(loaded, request, call)
        port.submit(loaded, request)
        try:
            while (response := await queue.get()) is not None:
                reply.consumed()
                yield loaded.as_declared(response) if request.takes_tensors else response
            reply.result()
        finally:
            loaded.cancel(request)
            self.settled()

    def _inherited(self, call: PipelineCall, options: dict[str, Any]) -> dict[str, Any]:
        """Give a pipeline's calls its deadline, unless their own is earlier, and its tenant. Its
        code takes tensors."""
        options = {"tenant": call.tenant, "takes_tensors": True, **options}
        if call.deadline is not None:
            left = max(0.0, call.deadline - self._clock())
            own = options.get("timeout")
            options["timeout"] = left if own is None else min(own, left)
        return options


def _wait(call: tuple[InferRequest, threading.Lock]) -> InferResponse:
    request, answered = call
    answered.acquire()
    return request.reply.result()
