"""How do the times of a request get into the files that Triton's tools read?

`settings.py` says which requests are traced. A trace is written as soon as its request is settled,
in the thread that settles it. A file is complete once it is closed: after `log_frequency` traces,
or at the end. The times are the runtime's; the time that a frontend takes is not in them.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

import msgspec

from wherry.frontends.v2.settings import TraceSettings
from wherry.runtime.loaded_model import LoadedModel
from wherry.values.reply import Reply
from wherry.values.request import InferRequest, InferResponse

log = logging.getLogger("wherry")

Stamp = tuple[str, float]


class Traces:
    """The traced requests of one server. Safe from any thread."""

    def __init__(self, settings: TraceSettings) -> None:
        self.settings = settings
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._file: TextIO | None = None
        self._written = 0
        self._files = 0

    def follow(
        self, loaded: LoadedModel, request: InferRequest, clock: Callable[[], float]
    ) -> None:
        """Trace this request, if it is one of those that are. Before it is submitted."""
        if not self.settings.sample(loaded.name):
            return
        number, started = next(self._ids), clock()

        def ended(_: Reply[InferResponse]) -> None:
            stamps = [("REQUEST_START", started), *_stamps(request), ("REQUEST_END", clock())]
            head = {
                "id": number,
                "model_name": loaded.name,
                "model_version": int(loaded.version),
                "request_id": request.id,
            }
            times = [{"name": name, "ns": int(seconds * 1e9)} for name, seconds in stamps]
            self._write(head, {"id": number, "timestamps": times})

        request.reply.first(ended)

    def close(self) -> None:
        """Complete the file that is being written."""
        with self._lock:
            self._complete()

    def _write(self, *entries: object) -> None:
        text = ",".join(msgspec.json.encode(entry).decode() for entry in entries)
        with self._lock:
            try:
                if self._file is None:
                    self._file = open(self._path(), "w", encoding="utf-8")  # noqa: SIM115 - outlives this call
                    self._file.write("[")
                self._file.write(f",{text}" if self._written else text)
                self._written += 1
                if self._written == self.settings.log_frequency:
                    self._complete()
            except OSError as error:
                log.error("traces cannot be written", extra={"why": error.strerror})

    def _path(self) -> str:
        path = self.settings.file
        return f"{path}.{self._files}" if self.settings.log_frequency else path

    def _complete(self) -> None:
        """Under the lock."""
        if self._file is not None:
            with self._file as file:
                file.write("]\n")
            self._file = None
            self._written = 0
            self._files += 1


def _stamps(request: InferRequest) -> Iterator[Stamp]:
    """The times that the runtime noted: none if the request was not queued, few if it failed."""
    if request.enqueued_at:
        yield "QUEUE_START", request.enqueued_at
    if request.started_at is not None:
        at = request.started_at
        yield "COMPUTE_START", at
        for name, ns in zip(
            ("COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"),
            request.compute_ns,
            strict=True,
        ):
            at += ns * 1e-9
            yield name, at
