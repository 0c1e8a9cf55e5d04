"""How are a server's numbers shown until somebody has seen enough? `wherry top [URL]`."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from wherry.bench.top.screen import SORTS, Snapshot, screen
from wherry.core.api import (
    Client,
    ConfigError,
    ModelNotFound,
    Unsupported,
    WherryError,
    duration,
    numbers,
)
from wherry.server.api import client_of, print_line

#: What ends the program when the terminal is gone.
GONE = "q"


class Keys:
    """The terminal's keys, one by one and without echo, inside the `with` block. SIGTERM and SIGHUP
    end the block as an exception does, so that the terminal is left as it was.

    For the main thread; `wake` may be called from any.
    """

    def __enter__(self) -> Keys:
        self._terminal = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else None
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        if self._terminal is not None:
            self._before = termios.tcgetattr(self._terminal)
            tty.setcbreak(self._terminal)
        self._handlers: dict[int, Any] = {
            number: signal.signal(number, self._end) for number in (signal.SIGTERM, signal.SIGHUP)
        }
        self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, self._resized)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._terminal is not None:
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)
        os.close(self._woken)
        os.close(self._wakes)

    def wake(self) -> None:
        """Have `typed` return."""
        with contextlib.suppress(OSError):  # it is awake, or gone
            os.write(self._wakes, b"!")

    def typed(self) -> str:
        """Wait for keys, or for `wake`, or for another size of the terminal. "" without a key."""
        files = [self._woken] + ([] if self._terminal is None else [self._terminal])
        ready, _, _ = select.select(files, [], [])
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._terminal is None or self._terminal not in ready:
            return ""
        try:
            keys = os.read(self._terminal, 1024)
        except OSError:
            return GONE
        # An arrow or a function key is not a letter.
        return "" if keys.startswith(b"\x1b") else keys.decode("ascii", "replace") or GONE

    def _resized(self, number: int, frame: FrameType | None) -> None:
        self.wake()

    def _end(self, number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)


#: Seconds between two looks, at least and if nothing else is said.
LEAST, EVERY = 0.1, 1.0
#: Seconds for an answer.
POLL_TIMEOUT: Final = 5.0
#: Characters of a line where it goes to a file or a pipe.
PIPED_WIDTH: Final = 200


def top(args: argparse.Namespace) -> int:
    """Show the numbers, again and again on a terminal, else once."""
    every = EVERY if args.interval is None else args.interval
    if not LEAST <= every <= 86400:
        raise ConfigError(f"--interval {every:g}: from {LEAST} s to a day")
    if args.server:
        args.url = args.server if "://" in args.server else f"http://{args.server}"
    with client_of(args) as client:
        client.timeout = POLL_TIMEOUT
        if args.json:
            _print_json(client, None if args.once else args.interval)
            return 0
        made = Console(markup=False, emoji=False, highlight=False)
        if args.once or not sys.stdout.isatty() or made.is_dumb_terminal:
            _print_once(client, made, args.sort)
        else:
            _watch(client, made, every, args.sort)
    return 0


def numbers_of(client: Client) -> dict[str, Any]:
    """The server's own words. WherryError if it has no numbers."""
    try:
        return client.numbers()
    except (ModelNotFound, Unsupported):
        raise WherryError(
            f"{client.url} has no /dashboard/numbers, which `wherry top` reads: it is an older"
            " wherry, or another server"
        ) from None


def look(client: Client, before: Snapshot | None = None) -> Snapshot:
    """Read the server's numbers. Blocks."""
    try:
        polled = msgspec.convert(numbers_of(client), numbers.Numbers)
    except msgspec.ValidationError as error:
        raise WherryError(
            f"{client.url} tells its numbers in a way that this wherry does not know ({error});"
            " use the `wherry top` of the server's version"
        ) from None
    return Snapshot(polled, None if before is None else before.polled)


def _print_json(client: Client, every: float | None) -> None:
    """The server's own words, one object a line."""
    while True:
        # ASCII alone: whatever a name holds, a terminal shows it and does not obey it.
        print_line(json.dumps(numbers_of(client)).replace("\x7f", "\\u007f"))
        if every is None:
            return
        sys.stdout.flush()
        time.sleep(every)


def _print_once(client: Client, console: Console, sort: str) -> None:
    width = console.width if sys.stdout.isatty() else PIPED_WIDTH
    _print(console, screen(look(client), url=client.url, width=width, sort=sort))


def _print(console: Console, lines: Sequence[Text]) -> None:
    # A name may hold what the terminal's encoding has not.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    for one in lines:
        console.print(one, soft_wrap=True, end="\n")


def _watch(client: Client, console: Console, every: float, sort: str) -> None:
    """Until `q`, Ctrl-C or a signal."""
    feed = Feed(client, look(client))  # what is wrong from the start ends the program
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    with Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        feed.start(every, keys.wake)
        try:
            while True:
                polled, trouble = feed.latest()
                lines = screen(
                    polled, url=client.url, width=console.width, height=console.height, sort=sort,
                    trouble=trouble, keys=True,
                )  # fmt: skip
                live.update(Group(*[_with_end(one) for one in lines]), refresh=True)
                for key in keys.typed():
                    if key in ("q", "Q"):
                        return
                    sort = key if key in SORTS else sort
        finally:
            feed.stop()


def _with_end(text: Text) -> Text:
    text.end = "\n"
    return text


class Feed:
    """Looks at a server again and again, from a thread of its own."""

    def __init__(self, client: Client, first: Snapshot) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._latest = first
        self._at = time.monotonic()
        self._error = ""
        self._ended = threading.Event()

    def start(self, every: float, polled: Callable[[], None]) -> None:
        """Snapshot each `every` seconds, and call `polled` after each look, from the thread."""
        # A daemon: an answer that does not come must not keep the program.
        threading.Thread(target=self._run, args=(every, polled), daemon=True, name="top").start()

    def stop(self) -> None:
        self._ended.set()

    def latest(self) -> tuple[Snapshot, str]:
        """The last numbers, and why there are no newer ones."""
        with self._lock:
            if not self._error:
                return self._latest, ""
            ago = duration(time.monotonic() - self._at)
            return self._latest, f"no answer for {ago}: {self._error}; trying again"

    def _run(self, every: float, polled: Callable[[], None]) -> None:
        while not self._ended.wait(every):
            try:
                found, error = look(self._client, self._latest), ""
            except (WherryError, OSError, http.client.HTTPException, msgspec.MsgspecError) as wrong:
                found, error = self._latest, str(wrong) or type(wrong).__name__
            with self._lock:
                self._error = error
                if not error:
                    self._latest, self._at = found, time.monotonic()
            if not self._ended.is_set():
                polled()
