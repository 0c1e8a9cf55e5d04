"""How do the times of a request get into the files that Triton's tools read?

`settings.py` decides which requests are traced. A trace is complete once its request is settled
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
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TextIO

import msgspec

from wherry.core.api import (
    InferRequest,
    LoadedModel,
    LoopPort,
    ThreadPool,
    Trace,
    trace_request,
)
from wherry.server.calls.settings import Sampler, TraceSettings

log = logging.getLogger("wherry")

#: How long the end of a server waits for its traces to be written.
_WRITE_SECONDS: Final = 10.0
#: Triton's names of when a request is received and when its answer is sent: each begins and ends.
_OF_HTTP: Final = ("HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END")
_OF_GRPC: Final = ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END")


class Traces:
    """The traced requests of one server. Safe from any thread."""

    def __init__(self, settings: TraceSettings) -> None:
        self.settings = settings
        settings.on_change = self._replaced
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._files = TraceFiles(settings.file)
        #: Those that keep traces which are not written yet.
        self._keeping: set[Sampler] = set()

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
            sampler.open += 1
        trace = request.trace or trace_request(request, loaded, clock)
        names, fields = _OF_GRPC if over_grpc else _OF_HTTP, {}
        if request.id:
            fields["request_id"] = request.id

        def sent() -> None:
            text = ",".join(self._entries(trace, fields, names, clock()))
            self._add(sampler, text)

        def in_turn(port: LoopPort) -> None:
            port.loop.call_soon(sent)  # it is answered in this turn of the loop

        # Behind what the loop has been handed to answer the request.
        trace.on_end = sent if port is None else partial(port.call, in_turn, port)

    def _entries(
        self, trace: Trace, fields: dict[str, Any], names: Sequence[str] = (), sent: float = 0.0
    ) -> Iterator[str]:
        """The trace and those of its calls; `names` are of what its frontend does."""
        number = next(self._ids)
        version = int(trace.version) if trace.version.isdecimal() else 0
        head = {"id": number, "model_name": trace.model, "model_version": version, **fields}
        stamps = list(_stamps(trace))
        if names:
            before = [(name, trace.started) for name in names[:2]]
            after = [(name, trace.ended) for name in ("INFER_RESPONSE_COMPLETE", names[2])]
            stamps = [*before, *stamps, *after, (names[3], sent)]
        times = [{"name": name, "ns": int(seconds * 1e9)} for name, seconds in stamps]
        yield msgspec.json.encode(head).decode()
        yield msgspec.json.encode({"id": number, "timestamps": times}).decode()
        for call in trace.calls:
            yield from self._entries(call, {"parent_id": number})

    def _add(self, sampler: Sampler, text: str) -> None:
        """Write a trace, or keep it until its file is full."""
        with self._lock:
            sampler.open -= 1
            sampler.kept.append(text)
            self._keeping.add(sampler)
            is_last = not sampler.open and (sampler.is_replaced or not sampler.left)
            if not (sampler.log_frequency or sampler.is_counted):
                self._write(sampler, self._files.append)
            elif len(sampler.kept) == sampler.log_frequency or (is_last and not sampler.left):
                self._write(sampler, self._files.write)
            elif is_last:
                self._write_rest(sampler)

    def close(self) -> None:
        """Write what is kept, and complete the file."""
        with self._lock:
            for sampler in list(self._keeping):
                self._write_rest(sampler)
            self._files.close()

    def _replaced(self, sampler: Sampler) -> None:
        """Write the rest of a setting that holds no more, once its last trace has come."""
        with self._lock:
            sampler.is_replaced = True
            if not sampler.open:
                self._write_rest(sampler)

    def _write_rest(self, sampler: Sampler) -> None:
        self._write(sampler, self._files.write if sampler.log_frequency else self._files.append)

    def _write(self, sampler: Sampler, write: Callable[[Sequence[str]], None]) -> None:
        if sampler.kept:
            write(sampler.kept)
            sampler.kept = []
        self._keeping.discard(sampler)


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
            before = "," if self._file else "["
            self._file = self._file or open(self._path, "w", encoding="utf-8")  # noqa: SIM115 - outlives this call
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


def _stamps(trace: Trace) -> Iterator[tuple[str, float]]:
    """The times that the runtime noted: none of a queue if the request was in none, few if it
    failed or, as in Triton, is an ensemble's."""
    yield "REQUEST_START", trace.started
    if trace.queued_at:
        yield "QUEUE_START", trace.queued_at
    if (at := trace.ran_at) is not None:
        yield "COMPUTE_START", at
        ends = ("COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
        for name, ns in zip(ends, trace.compute_ns, strict=True):
            at += ns * 1e-9
            yield name, at
    yield "REQUEST_END", trace.ended
