"""How does what a worker prints and logs arrive in this process's log?

The worker's stdout and stderr are one pipe, also for its C libraries. A line that begins with
MARK is a record of its logging as JSON, whose level and logger it keeps; any other line becomes
an INFO record of the logger "wherry.worker". All of them carry `model` and `instance`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

import msgspec

from wherry.core.observability.logging import fields_of

MARK = b"\x1e"
#: A line without an end is cut here.
MAX_LINE_BYTES = 64 << 10
#: More lines than this in one second are dropped, and their number is logged.
MAX_LINES_PER_SECOND = 2000

_CHUNK_BYTES = 64 << 10


class LogLine(msgspec.Struct):
    """A record of the worker's logging: one JSON line among what it prints."""

    level: int
    logger: str
    message: str
    created: float
    traceback: str = ""
    fields: dict[str, Any] = {}


class PipeHandler(logging.Handler):
    """In the worker."""

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file
        self._encoder = msgspec.json.Encoder(enc_hook=repr)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            os.write(self._file, self.line(record))
        except Exception:  # noqa: BLE001 - as every handler of logging does: report it, and go on
            self.handleError(record)

    def line(self, record: logging.LogRecord) -> bytes:
        text = ""
        if record.exc_info:
            text = logging.Formatter().formatException(record.exc_info)
        line = LogLine(
            record.levelno,
            record.name,
            record.getMessage(),
            record.created,
            text,
            fields_of(record),
        )
        return MARK + self._encoder.encode(line) + b"\n"


class LogPump:
    """In the parent: reads the pipe, makes records. One thread. Without a `model`, as several share
    the worker, each record names its own."""

    def __init__(self, file: int, model: str, instance: str) -> None:
        self.file = file
        self._fields = {"model": model, "instance": instance} if model else {}
        self._instance = instance
        self._decoder = msgspec.json.Decoder(LogLine)
        self._rest = b""
        self._second = 0.0
        self._lines = 0
        self._dropped = 0
        os.set_blocking(file, False)

    def pump(self) -> bool:
        """Read what is there, one chunk at most; False at the end of the pipe."""
        chunk = self._read()
        if chunk:
            self._take(chunk)
        return chunk != b""

    def close(self) -> None:
        """Read what is left of a worker that has ended, and close the pipe."""
        for _ in range(64):  # a child of the worker may hold the pipe, and go on writing
            chunk = self._read()
            if not chunk:
                break
            self._take(chunk)
        self._line(self._rest)
        self._log_dropped()
        os.close(self.file)

    def _read(self) -> bytes | None:
        """What there is; nothing at the end, None if there is nothing yet."""
        try:
            return os.read(self.file, _CHUNK_BYTES)
        except BlockingIOError:
            return None

    def _take(self, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._rest) > MAX_LINE_BYTES:
            self._line(self._rest)
            self._rest = b""

    def _line(self, line: bytes) -> None:
        if not line.strip():
            return
        now = time.monotonic()
        if now - self._second >= 1.0:
            self._log_dropped()
            self._second, self._lines = now, 0
        self._lines += 1
        if self._lines > MAX_LINES_PER_SECOND:
            self._dropped += 1
            return
        # What was printed before it without a newline stands in front of a record.
        printed, mark, json = line.partition(MARK)
        record: LogLine | None = None
        if mark:
            try:
                record = self._decoder.decode(json)
            except msgspec.MsgspecError:
                printed = line
        # A progress bar draws over itself: what stands there in the end counts.
        text = printed.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
        if text.strip():
            self._printed(text)
        if record is not None:
            self._record(record)

    def _printed(self, text: str) -> None:
        log = logging.getLogger("wherry.worker")
        if log.hasHandlers() and log.isEnabledFor(logging.INFO):
            log.info("%s", text, extra=self._fields)
        else:  # no handler takes it: as print() without a worker
            sys.stderr.write(f"[{self._instance}] {text}\n")

    def _record(self, line: LogLine) -> None:
        log = logging.getLogger(line.logger)
        if not log.isEnabledFor(line.level):
            return
        record = log.makeRecord(
            line.logger, line.level, "", 0, "%s", (line.message,), None, None, None
        )
        record.created = line.created
        record.processName = self._instance
        fields = {**line.fields, **self._fields}
        if line.traceback:  # as other formatters know it, and as ours do
            record.exc_text = fields["traceback"] = line.traceback
        for key, value in fields.items():
            record.__dict__.setdefault(key, value)
        log.handle(record)

    def _log_dropped(self) -> None:
        if self._dropped:
            logging.getLogger("wherry").warning(
                "lines of a worker dropped", extra={"lines": self._dropped, **self._fields}
            )
            self._dropped = 0
