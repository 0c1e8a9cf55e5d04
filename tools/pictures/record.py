"""What did commands write to a terminal, and when?"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

#: Seconds between two keys, and before what a person has read is followed by the next command.
KEY_SECONDS: Final = 0.07
READING_SECONDS: Final = 1.0
#: Keys that one step shows: each is a line of the picture.
KEYS_AT_ONCE: Final = 4
#: The rest of what is on its way.
REST_SECONDS: Final = 0.2
#: The longest pause that is kept.
LONGEST_PAUSE: Final = 0.7
PROMPT: Final = "\x1b[32m$\x1b[0m "


class Written(NamedTuple):
    """Characters, and the second of the recording in which they came."""

    at: float
    text: str


class Recording:
    """Commands that run one after the other on a terminal of this size. `shown` are texts that
    stand for others: a picture has the usual port, whichever was free."""

    def __init__(
        self, columns: int, rows: int, environment: Mapping[str, str], shown: Mapping[str, str]
    ) -> None:
        self.written: list[Written] = []
        self.seconds = 0.0
        self._size = struct.pack("HHHH", rows, columns, 0, 0)
        self._environment = {**os.environ, "TERM": "xterm-256color", **environment}
        for size in ("COLUMNS", "LINES"):  # they would count more than the terminal's own
            self._environment.pop(size, None)
        self._shown = shown

    def run(self, command: str, timeout: float = 60.0) -> None:
        """Type a command, and note what it writes until it ends."""
        self._type(command)
        with self._started(command) as (process, terminal):
            for text in _read(terminal, timeout):
                self._note(text)
            if process.wait() != 0:
                raise RuntimeError(f"{command} has failed")
        self.seconds += READING_SECONDS

    @contextmanager
    def background(self, command: str, until: str, timeout: float = 60.0) -> Iterator[None]:
        """Type a command, and note what it writes until this text; it runs on within the block."""
        self._type(f"{command} &")
        with self._started(command) as (process, terminal):
            so_far = ""
            for text in _read(terminal, timeout):
                self._note(text)
                so_far += text
                if until in so_far:
                    break
            else:
                raise RuntimeError(f"{command} has ended: {so_far}")
            for text in _read(terminal, REST_SECONDS, is_over=True):
                self._note(text)
            self.seconds += READING_SECONDS
            try:
                yield
            finally:
                os.killpg(process.pid, signal.SIGINT)
                for _ in _read(terminal, timeout):
                    pass
                process.wait()

    def _type(self, command: str) -> None:
        self.written.append(Written(self.seconds, PROMPT))
        for at in range(0, len(command), KEYS_AT_ONCE):
            self.seconds += KEY_SECONDS
            self.written.append(Written(self.seconds, command[at : at + KEYS_AT_ONCE]))
        self.seconds += 2 * KEY_SECONDS
        self.written.append(Written(self.seconds, "\r\n"))

    @contextmanager
    def _started(self, command: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        for real, usual in self._shown.items():
            command = command.replace(usual, real)
        ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, self._size)
        process = subprocess.Popen(
            ["bash", "-c", command],
            stdin=its,
            stdout=its,
            stderr=its,
            env=self._environment,
            start_new_session=True,
        )
        os.close(its)
        self._last = time.monotonic()
        try:
            yield process, ours
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(ours)

    def _note(self, text: str) -> None:
        now = time.monotonic()
        self.seconds += min(LONGEST_PAUSE, now - self._last)
        self._last = now
        for real, usual in self._shown.items():
            text = text.replace(real, usual)
        self.written.append(Written(self.seconds, text))


def _read(terminal: int, timeout: float, *, is_over: bool = False) -> Iterator[str]:
    """What comes, until all who write there have ended; `is_over`: or for as long as it comes."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    until = time.monotonic() + timeout
    while True:
        ready, _, _ = select.select([terminal], [], [], max(0.0, until - time.monotonic()))
        if not ready and is_over:
            return
        if not ready:
            raise TimeoutError(f"nothing for {timeout} s")
        try:
            read = os.read(terminal, 65536)
        except OSError:  # Linux: the other side is closed
            return
        if not read:
            return
        yield decoder.decode(read)
