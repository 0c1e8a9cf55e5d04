"""How do the times of a request get into the files that Triton's tools read?

`settings.py` says which requests are traced. A trace is complete once its request is settled
and the turn of the event loop that writes the answer has ended: it has the calls of an ensemble or
a pipeline, too, as traces with a `parent_id`. The times are the runtime's, and of a frontend when
it had read the request and when it began and ended to answer it.

Traces are written to the file of the settings as they come. Where a number of them is set, they are
kept until there are as many, and are then a file with an index: `log_frequency` each time, or all
of `trace_count`. What is left of them when the settings change, or at the end, is a file with an
index, too, if there is a `log_frequency`, and else goes to the file.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TextIO

import msgspec

from wherry.core.api import (
    InferRequest,
    InferResponse,
    LoadedModel,
    LoopPort,
    Reply,
    Span,
    ThreadPool,
)
from wherry.server.calls.settings import Sampler, TraceSettings

log = logging.getLogger("wherry")

Stamp = tuple[str, float]

#: How long the end of a server waits for its traces to be written.
_WRITE_SECONDS: Final = 10.0
#: Triton's names of when a request is received and when its answer is sent: each begins and ends.
_OF_HTTP: Final = ("HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END")
_OF_GRPC: Final = ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END")


class Traces:
    """The traced requests of one server. Safe from any thread."""

    def __init__(self, settings: TraceSettings) -> None:
        self.settings = settings
        settings.on_change = self._sampled_last
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._files = TraceFiles(settings.file)
        #: Traces that are not written yet, and those that are on their way.
        self._kept: dict[Sampler, list[str]] = {}
        self._followed: dict[Sampler, int] = {}
        self._ended: set[Sampler] = set()

    def follow(
        self,
        loaded: LoadedModel,
        request: InferRequest,
        clock: Callable[[], float],
        port: LoopPort | None = None,
        *,
        over_grpc: bool = False,
    ) -> None:
        """Trace this request, if it is one of those that are. Before it is submitted. `port`: of
        the loop that answers it, if it is one."""
        sampler = self.settings.sample(loaded.name)
        if sampler is None:
            return
        with self._lock:
            self._followed[sampler] = self._followed.get(sampler, 0) + 1
        trace = Trace(self, sampler, loaded, request, clock, over_grpc=over_grpc)

        def settled(_: Reply[InferResponse]) -> None:
            trace.settled_at = clock()
            if port is None:
                trace.sent()
            else:  # behind what the loop has been handed to answer the request
                port.call(trace.sent_in, port)

        request.reply.first(settled)

    def ids(self, count: int) -> list[int]:
        with self._lock:
            return list(itertools.islice(self._ids, count))

    def add(self, sampler: Sampler, text: str) -> None:
        """Write a trace, or keep it until its file is full."""
        with self._lock:
            self._followed[sampler] -= 1
            counted = sampler.log_frequency or sampler.is_counted
            kept = self._kept.setdefault(sampler, []) if counted else []
            kept.append(text)
            if not counted:
                self._files.append(kept)
            elif len(kept) == sampler.log_frequency or (
                not sampler.left and not self._followed[sampler]
            ):
                self._files.write(self._kept.pop(sampler))
            self._forget(sampler)

    def close(self) -> None:
        """Write what is kept, and complete the file."""
        with self._lock:
            for sampler in list(self._kept):
                self._write_rest(sampler)
            self._files.close()

    def _sampled_last(self, sampler: Sampler) -> None:
        with self._lock:
            self._ended.add(sampler)
            self._forget(sampler)

    def _forget(self, sampler: Sampler) -> None:
        """Write the rest of a setting that holds no more, once its last trace has come."""
        if sampler in self._ended and not self._followed.get(sampler):
            self._write_rest(sampler)
            self._ended.discard(sampler)
            self._followed.pop(sampler, None)

    def _write_rest(self, sampler: Sampler) -> None:
        if kept := self._kept.pop(sampler, []):
            (self._files.write if sampler.log_frequency else self._files.append)(kept)


class Trace:
    """One traced request, and the calls that it made."""

    def __init__(
        self,
        traces: Traces,
        sampler: Sampler,
        loaded: LoadedModel,
        request: InferRequest,
        clock: Callable[[], float],
        *,
        over_grpc: bool,
    ) -> None:
        self._traces = traces
        self._sampler = sampler
        self._request = request
        self._clock = clock
        self._names = _OF_GRPC if over_grpc else _OF_HTTP
        self._in_batch = not loaded.is_pipeline
        self._span = Span(loaded.name, request.rows, clock(), version=loaded.version)
        if request.span is None:
            request.span = self._span  # what a pipeline adds its calls to
        self.settled_at = 0.0

    def sent_in(self, port: LoopPort) -> None:
        """It is answered in this turn of the loop."""
        port.loop.call_soon(self.sent)

    def sent(self) -> None:
        """The request has been answered."""
        span, request = self._span, self._request
        received, begun, sending, sent = self._names
        span.seconds = self.settled_at - span.started
        stamps = [
            (received, span.started),
            (begun, span.started),
            ("REQUEST_START", span.started),
            *_stamps(request, in_batch=self._in_batch),
            ("REQUEST_END", self.settled_at),
            ("INFER_RESPONSE_COMPLETE", self.settled_at),
            (sending, self.settled_at),
            (sent, self._clock()),
        ]
        fields = {"request_id": request.id} if request.id else {}
        text = ",".join(self._entries(span, fields, stamps))
        self._traces.add(self._sampler, text)

    def _entries(
        self, span: Span, fields: dict[str, Any], stamps: Iterable[Stamp]
    ) -> Iterator[str]:
        (number,) = self._traces.ids(1)
        version = int(span.version) if span.version.isdecimal() else 0
        head = {"id": number, "model_name": span.model, "model_version": version, **fields}
        times = [{"name": name, "ns": int(seconds * 1e9)} for name, seconds in stamps]
        yield msgspec.json.encode(head).decode()
        yield msgspec.json.encode({"id": number, "timestamps": times}).decode()
        for child in span.children:
            yield from self._entries(child, {"parent_id": number}, _stamps_of_call(child))


class TraceFiles:
    """The file of the traces, and those with an index behind its name. Any thread: one of its own
    writes, as event loops must not."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._index = itertools.count()
        self._writer = ThreadPool("wherry-traces", 1)

    def append(self, texts: Sequence[str]) -> None:
        """Write traces to the file, which is complete when it is closed."""
        self._writer.run(partial(self._append, texts))

    def write(self, texts: Sequence[str]) -> None:
        self._writer.run(partial(self._write, texts))

    def close(self) -> None:
        """Complete the file. Blocks."""
        self._writer.join(lambda: _WRITE_SECONDS)
        if self._file is not None:
            with self._file as file:
                file.write("]\n")
            self._file = None

    def _append(self, texts: Sequence[str]) -> None:
        try:
            before = ","
            if self._file is None:
                self._file = open(self._path, "w", encoding="utf-8")  # noqa: SIM115 - outlives this call
                before = "["
            self._file.write(before + ",".join(texts))
        except OSError as error:
            _not_written(error)

    def _write(self, texts: Sequence[str]) -> None:
        try:
            with open(f"{self._path}.{next(self._index)}", "w", encoding="utf-8") as file:
                file.write(f"[{','.join(texts)}]\n")
        except OSError as error:
            _not_written(error)


def _not_written(error: OSError) -> None:
    log.error("traces cannot be written", extra={"why": error.strerror})


def _stamps(request: InferRequest, *, in_batch: bool) -> Iterator[Stamp]:
    """The times that the runtime noted: none if the request was not queued, few if it failed or, as
    in Triton, is an ensemble's."""
    if request.enqueued_at:
        yield "QUEUE_START", request.enqueued_at
    if in_batch and request.started_at is not None:
        yield from _computed(request.started_at, request.compute_ns)


def _stamps_of_call(span: Span) -> Iterator[Stamp]:
    yield "REQUEST_START", span.started
    if span.ran_at is not None:
        yield "QUEUE_START", span.ran_at - span.queue_seconds
        yield from _computed(span.ran_at, span.compute_ns)
    yield "REQUEST_END", span.started + span.seconds


def _computed(at: float, compute_ns: tuple[int, int, int]) -> Iterator[Stamp]:
    yield "COMPUTE_START", at
    for name, ns in zip(
        ("COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"), compute_ns, strict=True
    ):
        at += ns * 1e-9
        yield name, at
