"""How does an async function that calls models run as a model of its own?

Its coroutines run in one event loop on a thread of the runtime, so that code which blocks for a
moment never holds up a frontend. There is no queue: each row is a task, bounded in number, and
the models it calls do the batching across all callers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from time import perf_counter_ns
from typing import Any, Protocol

from wherry.instances.executable import Executable, Failure, model_errors
from wherry.instances.failure_log import FailureLog
from wherry.models.config import ModelConfig
from wherry.models.model import Call, Caller, current_call
from wherry.observability.statistics import ModelStatistics, ResponseCount
from wherry.observability.tracing import CallTraces, Span
from wherry.pipelines.fan_out import gather
from wherry.scheduler.door import PATIENCE, refusal
from wherry.scheduler.pace import Pace
from wherry.values.errors import (
    Cancelled,
    DeadlineExceeded,
    ModelFailed,
    ModelNotReady,
    Overloaded,
    QueueFull,
    WherryError,
)
from wherry.values.reply import StreamReply
from wherry.values.request import Columns, InferRequest, InferResponse, concatenate, rows_of


class LoopThread:
    """An event loop on a thread of its own, started when it is first needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                started: Future[asyncio.AbstractEventLoop] = Future()
                self._thread = threading.Thread(
                    target=lambda: asyncio.run(self._main(started)), name=self._name, daemon=True
                )
                self._thread.start()
                self._loop = started.result()
            return self._loop

    async def _main(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        self._stopped = asyncio.Event()
        started.set_result(asyncio.get_running_loop())
        await self._stopped.wait()

    @property
    def is_here(self) -> bool:
        """Is this call made in that thread?"""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def close(self) -> None:
        """Cancel what still runs there and end the thread."""
        with self._lock:
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(self._stopped.set)
            thread.join()


class Body(Protocol):
    """What a pipeline does with one request; everything here runs in the loop."""

    async def answer(self, request: InferRequest) -> InferResponse: ...

    def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]: ...

    def failure(self, error: BaseException) -> Failure: ...

    def not_ready_reason(self) -> str:
        """Why no request could be answered now; "" if it could. Any thread."""
        ...


class RowByRow:
    """The user's own async function: each row is a call, all of them at the same time."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self.failure = executable.failure

    def not_ready_reason(self) -> str:
        """Which models it calls, only its code knows."""
        return ""

    async def answer(self, request: InferRequest) -> InferResponse:
        if request.rows == 1:
            return InferResponse(await self._run(request.inputs))
        calls = (self._run(rows_of(request.inputs, row, row + 1)) for row in range(request.rows))
        return InferResponse(concatenate(await gather(calls)), request.rows)

    async def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        async with aclosing(self._executable.call(request.inputs, 1)) as items:
            async for item in items:
                yield InferResponse(self._executable.outputs(item, 1))

    async def _run(self, columns: Columns) -> Columns:
        try:
            result = await self._executable.call(columns, 1)
        except (SystemExit, KeyboardInterrupt) as error:
            # In a task either would end the loop. Ctrl-C comes to the main thread, not to this one.
            raise self._executable.failure(error).as_exception() from error
        return self._executable.outputs(result, 1)


class PipelineRunner:
    """One loaded pipeline: to the runtime what a Dispatcher is for a model with instances."""

    def __init__(
        self,
        body: Body,
        config: ModelConfig,
        caller: Caller,
        thread: LoopThread,
        *,
        clock: Callable[[], float],
        statistics: ModelStatistics,
    ) -> None:
        self.config = config
        self.statistics = statistics
        self._body = body
        self._caller = caller
        self._thread = thread
        self._clock = clock
        #: What is here: None until the loop has started it.
        self._tasks: dict[InferRequest, asyncio.Task[None] | None] = {}
        #: What of it is not answered yet. Whoever has an answer may be back before its task ends.
        self._unanswered: set[InferRequest] = set()
        self._longest = config.max_queue_wait or None
        self._quiet = threading.Condition()
        self._traces = CallTraces()
        self.failures = FailureLog(config.name, config.version, clock)
        self._pace = Pace()
        self._reason = ""
        self.successor: Callable[[Sequence[InferRequest]], None] | None = None

    def start(self) -> None:
        """There is nothing to load."""

    def wait_ready(self) -> None:
        """It is ready at once."""

    @property
    def queued_requests(self) -> int:
        return 0

    @property
    def instances(self) -> tuple[()]:
        return ()

    def running(self) -> list[tuple[str, int, float]]:
        return [(r.id or self.config.name, r.rows, r.enqueued_at) for r in list(self._tasks)]

    def explain(self) -> dict[str, Any]:
        return {
            "policy": "none: each row is a task of its own",
            "stages": self._traces.stages(),
            "latest": self._traces.latest(),
        }

    def not_ready_reason(self) -> str:
        return self._reason or self._body.not_ready_reason()

    def submit(self, requests: Sequence[InferRequest]) -> None:
        """Start requests. Never blocks; any thread. A refused one is settled with the reason."""
        now = self._clock()
        limit = self.config.max_queue_size
        for request in requests:
            if request.reply.settled:
                continue  # its caller has just left
            error: WherryError | None = None
            with self._quiet:
                request.enqueued_at = now
                successor = self.successor if self._reason else None
                if self._reason:
                    text = f"model {self.config.name!r} is not ready: {self._reason}"
                    error = ModelNotReady(text)
                elif request.deadline is not None and request.deadline <= now:
                    error = self._late()
                elif limit is not None and len(self._unanswered) >= limit:
                    wait = self._pace.predicted_seconds(0)
                    error = QueueFull(self.config.name, len(self._unanswered), wait or 1.0)
                elif (error := self._hopeless(request, now)) is None:
                    self._tasks[request] = None
                    self._unanswered.add(request)
                    self._pace.began(now)
            if successor is not None:
                successor([request])
            elif error is not None:
                self._fail(request, error)
            else:
                self._thread.loop.call_soon_threadsafe(self._start, request)

    def _hopeless(self, request: InferRequest, now: float) -> Overloaded | None:
        """Refuse at the door what would take too long: half of its way it would be in the way of
        others for nothing."""
        here = len(self._unanswered)
        left = None if request.deadline is None else request.deadline - now
        seconds = self._pace.predicted_seconds(here)
        return refusal(
            self.config.name,
            seconds,
            left=left,
            longest=self._longest,
            turns=here,
            within=PATIENCE,
        )

    def cancel(self, request: InferRequest) -> bool:
        if not request.reply.claim():
            return False
        self.statistics.failed(Cancelled.reason, self._clock() - request.enqueued_at)
        request.reply.deliver(Cancelled("the request was cancelled"))
        if request in self._tasks:
            self._thread.loop.call_soon_threadsafe(self._stop, request)
        return True

    def run_in_caller(self, columns: Columns) -> None:
        """A coroutine does not run in its caller's thread."""

    def drain(self, timeout: float | None) -> bool:
        with self._quiet:
            self._reason = "unloading"
            return self._quiet.wait_for(lambda: not self._tasks, timeout)

    def close(self, timeout: float | None = 10.0) -> None:
        with self._quiet:
            self._reason = "unloading"
            requests = list(self._tasks)
        for request in requests:
            self._fail(request, ModelNotReady(f"model {self.config.name!r} is unloading"))
            self._thread.loop.call_soon_threadsafe(self._stop, request)
        with self._quiet:
            self._quiet.wait_for(lambda: not self._tasks, timeout)
        self.failures.close()

    # In the loop

    def _start(self, request: InferRequest) -> None:
        task = asyncio.get_running_loop().create_task(self._run(request))
        self._tasks[request] = task
        task.add_done_callback(lambda _: self._ended(request))

    def _stop(self, request: InferRequest) -> None:
        task = self._tasks.get(request)
        if task is not None:
            task.cancel()

    def _ended(self, request: InferRequest) -> None:
        self._leaves(request)
        with self._quiet:
            self._tasks.pop(request, None)
            self._quiet.notify_all()
        self._fail(request, Cancelled("the request was cancelled"))  # unless it has its outcome

    def _leaves(self, request: InferRequest) -> None:
        """It is about to be answered, or has been: it is in nobody's way any more."""
        with self._quiet:
            if request in self._unanswered:
                self._unanswered.remove(request)
                self._pace.ended(self._clock(), len(self._unanswered))

    async def _run(self, request: InferRequest) -> None:
        if request.reply.settled:
            return
        span = request.span
        if not isinstance(span, Span):
            span = Span(self.config.name, request.rows, self._clock())
        current_call.set(Call(self._caller, request.deadline, request.tenant, span))
        started = perf_counter_ns()
        outcome: InferResponse | WherryError | None = None
        try:
            outcome = await self._outcome(request)
        finally:
            # Before the answer leaves: whoever has it may ask where the time went.
            ended = getattr(request.reply, "outcome", outcome)
            span.seconds = self._clock() - span.started
            span.error = type(ended).__name__ if isinstance(ended, Exception) else ""
            self._traces.ended(span)
        self._leaves(request)
        if isinstance(outcome, InferResponse):
            self._succeed(request, outcome, perf_counter_ns() - started)
        else:
            self._fail(request, outcome)

    async def _outcome(self, request: InferRequest) -> InferResponse | WherryError:
        deadline = asyncio.timeout(self._remaining(request))
        try:
            async with deadline:
                if isinstance(request.reply, StreamReply):
                    return await self._stream(request, request.reply)
                return await self._body.answer(request)
        except WherryError as error:  # of a model it called: its code is the caller's code
            if isinstance(error, DeadlineExceeded) and self._remaining(request) == 0.0:
                return self._late()  # their deadlines are its own: they may have seen it first
            if isinstance(error, ModelFailed):  # its traceback, if it has one, is told of there
                self.failures.tell(str(error), "", request_id=request.id)
            return error
        except model_errors() as error:
            if isinstance(error, asyncio.CancelledError) and request.reply.settled:
                raise
            if isinstance(error, TimeoutError) and deadline.expired():
                return self._late()
            failure = self._body.failure(error)
            self.failures.tell(failure.message, failure.traceback, request_id=request.id)
            return failure.as_exception()

    def _late(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"model {self.config.name!r}: not finished within the request's timeout"
        )

    def _remaining(self, request: InferRequest) -> float | None:
        return None if request.deadline is None else max(0.0, request.deadline - self._clock())

    async def _stream(
        self, request: InferRequest, reply: StreamReply[InferResponse]
    ) -> InferResponse:
        count = ResponseCount(self.statistics, self._clock())
        async with aclosing(self._body.stream(request)) as responses:
            async for response in responses:
                count.responded(self._clock())
                # The loop must not block: a reader that lags too far behind ends its stream.
                if not reply.send(response):
                    count.ended(self._clock(), Cancelled.reason)
                    raise Cancelled(f"model {self.config.name!r}: the caller does not read")
        count.ended(self._clock())
        return InferResponse({}, 0)

    def _succeed(self, request: InferRequest, response: InferResponse, ns: int) -> None:
        if request.reply.claim():
            requests = [request]
            self.statistics.executed(
                requests, [request.rows], "idle", request.enqueued_at, 0, ns, 0
            )
            self.statistics.succeeded(requests, self._clock())
            request.reply.deliver(response)

    def _fail(self, request: InferRequest, error: WherryError) -> None:
        if request.reply.claim():
            self.statistics.failed(error.reason, self._clock() - request.enqueued_at)
            request.reply.deliver(error)
