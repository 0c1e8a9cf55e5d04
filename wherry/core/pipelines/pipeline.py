"""How does an async function that calls models run as a model?

Its coroutines run in one event loop on a thread of the runtime, so that blocking code does not
delay a frontend. There is no queue: each row is a task, their number is limited, and the models it
calls batch across all callers.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager
from time import perf_counter_ns
from typing import Any, Final, Protocol, TypeVar

from wherry.core.instances.executable import Executable
from wherry.core.instances.model_errors import model_errors
from wherry.core.instances.own_rows import gather_rows
from wherry.core.instances.runner import Refused, Runner, admitted
from wherry.core.instances.timer import Alarm, Timer
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Caller, PipelineCall, current_call
from wherry.core.observability.otel.context import enter
from wherry.core.observability.statistics import ModelStatistics, ResponseCount
from wherry.core.observability.tracing import CallTraces, Trace
from wherry.core.scheduler.overload import MIN_QUEUED_BEFORE_REFUSAL, Pace, late, refusal
from wherry.core.scheduler.queue import Deadlines
from wherry.core.values.errors import (
    Cancelled,
    DeadlineExceeded,
    ModelFailed,
    ModelNotReady,
    QueueFull,
    WherryError,
)
from wherry.core.values.execution import Failure, text_of
from wherry.core.values.load import Load
from wherry.core.values.reply import StreamReply
from wherry.core.values.request import Columns, InferRequest, InferResponse, concatenate, rows_of

T = TypeVar("T")


async def gather(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Await calls concurrently; return their results in order.

        asyncio.run(wherry.gather(asyncio.sleep(0, n) for n in range(3)))  # -> [0, 1, 2]

    The first exception cancels the other calls and is raised; cancelling the caller cancels all.
    No call is left running.
    """
    futures: list[asyncio.Future[T]] = []
    try:
        futures.extend(asyncio.ensure_future(call) for call in calls)
        return list(await asyncio.gather(*futures))
    finally:
        await stop(futures)


@asynccontextmanager
async def in_order(calls: Iterable[Awaitable[T]]) -> AsyncIterator[AsyncIterator[T]]:
    """Start all calls and yield their results in order, for a pipeline that streams.

        @wherry.pipeline
        async def by_line(text: str) -> AsyncIterator[str]:
            calls = (sentiment.ainfer(line) for line in text.splitlines())
            async with wherry.in_order(calls) as labels:
                async for label in labels:
                    yield label

    No call is left running after the block.
    """
    futures: list[asyncio.Future[T]] = []

    async def results() -> AsyncIterator[T]:
        for future in futures:
            yield await future

    try:
        futures.extend(asyncio.ensure_future(call) for call in calls)
        yield results()
    finally:
        await stop(futures)


async def stop(futures: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel what is unfinished of these, and return when nothing of it is running."""
    unfinished = [future for future in futures if future.cancel()]
    if unfinished:
        await asyncio.wait(unfinished)
    for future in futures:
        if not future.cancelled():
            future.exception()  # retrieved: else asyncio logs exceptions never retrieved


log = logging.getLogger("wherry")

#: Seconds that tasks have to end after they were cancelled for good.
END_SECONDS: Final = 1.0


class LoopThread:
    """An event loop on a thread of its own, started by `start` or on first use."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """RuntimeError if the system gives no thread."""
        assert self.loop is not None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                started: Future[asyncio.AbstractEventLoop] = Future()
                self._thread = threading.Thread(
                    target=self._run, args=(started,), name=self._name, daemon=True
                )
                self._thread.start()
                self._loop = started.result()
            return self._loop

    def _run(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        self._stopped = asyncio.Event()
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            stopped = loop.create_task(self._stopped.wait())
            started.set_result(loop)
            while not stopped.done():
                try:
                    loop.run_until_complete(stopped)
                except BaseException as error:  # noqa: BLE001 - sys.exit() in a task, or loop.stop()
                    why = f"{type(error).__name__}: {text_of(error)}"
                    log.warning("a pipeline's code has stopped its event loop", extra={"why": why})

    @property
    def is_here(self) -> bool:
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def close(self) -> None:
        """Cancel the loop's tasks and end the thread. Blocks; code that does not end when it is
        cancelled, or blocks the loop, is left behind."""
        with self._lock:
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(self._stopped.set)
            thread.join(END_SECONDS)
            if thread.is_alive():
                log.warning("a pipeline's code does not finish", extra={"loop": self._name})


class Body(Protocol):
    """Answers one request of a pipeline. Runs in the loop unless noted."""

    async def answer(self, request: InferRequest) -> InferResponse: ...

    def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]: ...

    def failure(self, error: BaseException) -> Failure: ...

    def not_ready_reason(self) -> str:
        """Why requests cannot be answered now; "" if they can. Any thread."""
        ...


class RowByRow:
    """Calls the user's async function once for each row, concurrently."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self.failure = executable.failure
        assert executable.own is not None, "it runs in this process"
        self._own = executable.own

    def not_ready_reason(self) -> str:
        """Always "": only the function's code knows which models it calls."""
        return ""

    async def answer(self, request: InferRequest) -> InferResponse:
        if request.rows == 1:
            return InferResponse(await self._run(request.inputs))
        calls = (self._run(rows_of(request.inputs, row, row + 1)) for row in range(request.rows))
        return InferResponse(concatenate(await gather(calls)), request.rows)

    async def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        columns = await self._decoded(request.inputs)
        async with aclosing(self._executable.call(columns, 1)) as items:
            async for item in items:
                yield InferResponse(self._own(await self._outputs(item)))

    async def _run(self, columns: Columns) -> Columns:
        columns = await self._decoded(columns)
        try:
            result = await self._executable.call(columns, 1)
        except (SystemExit, KeyboardInterrupt) as error:
            # In a task either would end the loop. Ctrl-C reaches the main thread, not this one.
            raise self._executable.failure(error).as_exception() from error
        outputs = await self._outputs(result)
        del result
        return self._own(outputs)

    async def _decoded(self, columns: Columns) -> Columns:
        columns = gather_rows([columns])
        if not self._executable.decodes:
            return columns
        return await asyncio.to_thread(self._executable.decoded, columns)

    async def _outputs(self, result: Any) -> Columns:
        if not self._executable.encodes:
            return self._executable.outputs.of(result, 1)
        return await asyncio.to_thread(self._executable.outputs.of, result, 1)


class PipelineRunner(Runner):
    """Runs one loaded pipeline: its requests are tasks of an event loop."""

    takes_any_rows = True

    def __init__(
        self,
        body: Body,
        config: ModelConfig,
        caller: Caller,
        thread: LoopThread,
        *,
        clock: Callable[[], float],
        timer: Timer,
        statistics: ModelStatistics,
    ) -> None:
        super().__init__(config, clock=clock, statistics=statistics)
        self._body = body
        self._caller = caller
        self._thread = thread
        #: The requests here and their tasks: None until the loop has started it.
        self._tasks: dict[InferRequest, asyncio.Task[None] | None] = {}
        #: Requests without an answer yet. A caller may send again before the task of its answered
        #: request ends.
        self._unanswered: set[InferRequest] = set()
        self._longest = config.max_queue_wait or None
        self._traces = CallTraces()
        self._pace = Pace()
        # Not by the loop, which code that blocks holds up; nor does all code end when cancelled.
        self._deadlines = Deadlines()
        self._alarm = Alarm(timer, self.tick)

    # Life

    def start(self) -> None:
        """Start the loop, if it does not run, so that a lack of threads shows before a request
        comes."""
        self._thread.start()

    def wait_ready(self, timeout: float | None = None) -> None:
        self.readiness.loaded()

    def close(self, timeout: float | None = 10.0) -> None:
        self.readiness.closing()
        self._fail_waiting(ModelNotReady(f"model {self.config.name!r} is unloading"))
        for request in list(self._tasks):  # also those whose task outlives their answer
            self._thread.loop.call_soon_threadsafe(self._stop, request)
        with self._changed:
            self._changed.wait_for(self._is_quiet, timeout)
        self.failures.close()
        self.readiness.unloaded()

    def not_ready_reason(self) -> str:
        return self.readiness.reason or self._body.not_ready_reason()

    def _is_quiet(self) -> bool:
        return not self._tasks

    def _clear_queue(self) -> Sequence[InferRequest]:
        return list(self._tasks)

    # What is shown

    @property
    def queued_requests(self) -> int:
        return 0

    def running(self) -> list[tuple[str, int, float]]:
        return [(r.id or self.config.name, r.rows, r.enqueued_at) for r in list(self._tasks)]

    def load(self) -> Load:
        with self._lock:
            one = self._pace.predicted_seconds(0)
            return Load(
                ready=not self.readiness.reason,
                running_rows=len(self._unanswered),
                one_seconds=one,
                full_seconds=one,
                joins=True,
            )

    def explain(self) -> dict[str, Any]:
        return {
            "policy": "none: each row is a task of its own",
            "stages": self._traces.stages(),
            "latest": self._traces.latest(),
        }

    # Requests

    def _refusal(self, request: InferRequest, now: float) -> WherryError | None:
        """Why the request is refused; None: it is admitted."""
        name, here = self.config.name, len(self._unanswered)
        left = None if request.deadline is None else request.deadline - now
        if left is not None and left <= 0:
            return late(name, now - request.enqueued_at)
        if self.config.max_queue_size is not None and here >= self.config.max_queue_size:
            return QueueFull(name, here, self._pace.predicted_seconds(0) or 1.0)
        seconds = self._pace.predicted_seconds(here)
        error = refusal(
            name,
            seconds,
            left=left,
            longest=self._longest,
            turns=here,
            within=MIN_QUEUED_BEFORE_REFUSAL,
        )
        if error is None:
            self._tasks[request] = None
            self._deadlines.add(request, request.deadline)
            self._unanswered.add(request)
            self._pace.began(now)
        return error

    def _arrived(
        self, requests: Sequence[InferRequest], now: float
    ) -> tuple[list[InferRequest], list[Refused]]:
        chosen = admitted(requests, self._refusal, now)
        self._alarm.set(self._deadlines.next())
        return chosen

    def tick(self) -> None:
        with self._lock:
            now = self._clock()
            self._alarm.rang(now)
            overdue = self._deadlines.take_due(now)
            self._alarm.set(self._deadlines.next())
        self._fail_all([(request, self._late(request)) for request in overdue])

    def _hand_over(self, chosen: tuple[list[InferRequest], list[Refused]]) -> None:
        new, refused = chosen
        for request in new:
            self._thread.loop.call_soon_threadsafe(self._start, request)
        self._fail_all(refused)

    def _forget(self, request: InferRequest, error: WherryError) -> Sequence[Refused]:
        if request in self._tasks:
            self._thread.loop.call_soon_threadsafe(self._stop, request)
        return ()

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
        with self._changed:
            self._tasks.pop(request, None)
            self._changed.notify_all()
        self.cancel(request)  # no effect if it is settled

    def _leaves(self, request: InferRequest) -> None:
        """Note that a request is answered or about to be, so that it no longer counts as load."""
        with self._lock:
            if request in self._unanswered:
                self._unanswered.remove(request)
                self._pace.ended(self._clock(), len(self._unanswered))

    async def _run(self, request: InferRequest) -> None:
        if request.reply.settled:
            return
        trace: Any = request.trace or Trace(self.config.name, request.rows, self._clock())
        if trace.is_followed:
            enter(trace.begins(request, self._clock()))
        call = PipelineCall(self._caller, request.deadline, request.tenant, trace)
        current_call.set(call)
        started = perf_counter_ns()
        outcome: InferResponse | WherryError | None = None
        try:
            outcome = await self._outcome(request)
        finally:
            # Before the answer is delivered: its caller may read the trace at once.
            trace.end(self._clock(), getattr(request.reply, "outcome", outcome))
            self._traces.ended(trace)
        self._leaves(request)
        if isinstance(outcome, InferResponse):
            self._succeed(request, outcome, perf_counter_ns() - started)
        else:
            self.fail(request, outcome)

    async def _outcome(self, request: InferRequest) -> InferResponse | WherryError:
        try:
            if isinstance(request.reply, StreamReply):
                return await self._stream(request, request.reply)
            return await self._body.answer(request)
        except WherryError as error:  # of a called model: its code becomes the pipeline's
            # The called models share the deadline, and may report it first.
            is_late = request.deadline is not None and request.deadline <= self._clock()
            if is_late and isinstance(error, DeadlineExceeded):
                return self._late(request)
            if isinstance(error, ModelFailed):  # the called model has logged the traceback
                self.failures.log(str(error), "", request_id=request.id)
            return error
        except model_errors() as error:
            if isinstance(error, asyncio.CancelledError) and request.reply.settled:
                raise
            failure = self._body.failure(error)
            self.failures.log(failure.message, failure.traceback, request_id=request.id)
            return failure.as_exception()

    def _late(self, request: InferRequest) -> DeadlineExceeded:
        return late(self.config.name, self._clock() - request.enqueued_at)

    async def _stream(
        self, request: InferRequest, reply: StreamReply[InferResponse]
    ) -> InferResponse:
        count = ResponseCount(self.statistics, self._clock())
        async with aclosing(self._body.stream(request)) as responses:
            async for response in responses:
                now = self._clock()
                if count.is_empty:
                    self.statistics.responded(now - request.enqueued_at, first=True)
                count.responded(now)
                # The loop must not block: a reader too far behind ends its stream.
                if not reply.send(response):
                    count.ended(self._clock(), Cancelled.reason)
                    raise Cancelled(f"model {self.config.name!r}: the caller does not read")
        count.ended(self._clock())
        return InferResponse({}, 0)

    def _succeed(self, request: InferRequest, response: InferResponse, ns: int) -> None:
        if request.reply.claim():
            self.statistics.executed(
                [request], [request.rows], "idle", request.enqueued_at, 0, ns, 0
            )
            if (records := self.statistics.records) is not None:
                records.ran("pipeline", "", request.enqueued_at, (0, ns, 0), [request])
            self.delivery.answer([(request, response)])


# Texts

#: Where to split, best first: after a paragraph, a sentence (without a space in Chinese), a clause,
#: a word.
BORDERS = (
    re.compile(r"\n\s*\n\s*"),
    re.compile(r"[.!?…]+[\"')\]]*\s+|[。！？]+[”’」』]*\s*|\n+"),
    re.compile(r"[,;:]\s+|[，；：、]"),
    re.compile(r"\s+"),
)


def split_text(text: str, max_chars: int = 300) -> list[str]:
    """Split `text` into pieces of at most `max_chars` characters, at the best boundary available.

        wherry.split_text("One sentence. Another.", 15)  # -> ['One sentence. ', 'Another.']

    Joined, the pieces are the text. Without a boundary a piece ends after `max_chars` characters.
    An empty text is one empty piece.
    """
    if max_chars < 1:
        raise ValueError(f"max_chars must be at least 1, not {max_chars}")
    pieces: list[str] = []
    start = 0
    while len(text) - start > max_chars:
        end = start + _cut(text[start : start + max_chars], text[start + max_chars])
        pieces.append(text[start:end])
        start = end
    pieces.append(text[start:])
    return pieces


def _cut(window: str, following: str) -> int:
    """Where to split `window`, given the character that follows it."""
    for border in BORDERS:
        ends = [match.end() for match in border.finditer(window)]
        if following.isspace() and window[-1:].strip() and border is BORDERS[-1]:
            return len(window)  # the window ends at a word's end
        # A boundary in the first half would make needlessly short pieces.
        if ends and (ends[-1] > len(window) // 2 or border is BORDERS[-1]):
            return ends[-1]
    return len(window)
