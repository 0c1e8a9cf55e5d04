"""How are a server's numbers shown until the user quits? `wherry top [URL]`."""

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
import time
import tty
from collections.abc import Iterator, Sequence
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


@contextlib.contextmanager
def single_keys() -> Iterator[int | None]:
    """Have the terminal hand over keys one by one and without echo: its file, if stdin is one.
    SIGTERM and SIGHUP end the block as an exception does, so that the terminal is left as it was.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    terminal = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else None
    before = None if terminal is None else termios.tcgetattr(terminal)
    handlers = {one: signal.signal(one, end) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        if terminal is not None:
            tty.setcbreak(terminal)
        yield terminal
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if terminal is not None and before is not None:
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)


#: What ends the program when the terminal is gone.
GONE = "q"


def typed(terminal: int | None, wait: float) -> str:
    """The keys that are typed within `wait` seconds; "" if none is."""
    files = [] if terminal is None else [terminal]
    if not select.select(files, [], [], max(0.0, wait))[0] or terminal is None:
        return ""
    try:
        keys = os.read(terminal, 1024)
    except OSError:
        return GONE
    # An arrow or a function key is not a letter.
    return "" if keys.startswith(b"\x1b") else keys.decode("ascii", "replace") or GONE


#: Seconds between two looks: the least, and the default.
LEAST, EVERY = 0.1, 1.0
#: Seconds until a terminal of another size is drawn anew.
REDRAW: Final = 0.5
#: Seconds for an answer.
POLL_TIMEOUT: Final = 5.0
#: Characters of a line where it goes to a file or a pipe.
PIPED_WIDTH: Final = 200


def top(args: argparse.Namespace) -> int:
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
            f"{client.url} has numbers of a form that this wherry does not know ({error});"
            " use the `wherry top` of the server's version"
        ) from None
    return Snapshot(polled, None if before is None else before.polled)


def _print_json(client: Client, every: float | None) -> None:
    """The server's own words, one object a line."""
    while True:
        # ASCII alone: a terminal shows whatever a name holds, and does not obey it.
        print_line(json.dumps(numbers_of(client)).replace("\x7f", "\\u007f"))
        if every is None:
            return
        sys.stdout.flush()
        time.sleep(every)


def _print_once(client: Client, console: Console, sort: str) -> None:
    width = console.width if sys.stdout.isatty() else PIPED_WIDTH
    _print(console, screen(look(client), url=client.url, width=width, sort=sort))


def _print(console: Console, lines: Sequence[Text]) -> None:
    # A name may hold characters that the terminal's encoding lacks.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    for one in lines:
        console.print(one, soft_wrap=True, end="\n")


def _watch(client: Client, console: Console, every: float, sort: str) -> None:
    """Until `q`, Ctrl-C or a signal."""
    shown = look(client)  # what is wrong from the start ends the program
    looked_at, looks_at, trouble = time.monotonic(), time.monotonic() + every, ""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    with single_keys() as terminal, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            lines = screen(
                shown, url=client.url, width=console.width, height=console.height, sort=sort,
                trouble=trouble, keys=True,
            )  # fmt: skip
            live.update(Group(*[_with_end(one) for one in lines]), refresh=True)
            for key in typed(terminal, min(looks_at - time.monotonic(), REDRAW)):
                if key in ("q", "Q"):
                    return
                sort = key if key in SORTS else sort
            if time.monotonic() < looks_at:
                continue
            try:
                shown, looked_at, trouble = look(client, shown), time.monotonic(), ""
            except (WherryError, OSError, http.client.HTTPException, msgspec.MsgspecError) as wrong:
                ago = duration(time.monotonic() - looked_at)
                trouble = f"no answer for {ago}: {str(wrong) or type(wrong).__name__}; trying again"
            looks_at = time.monotonic() + every


def _with_end(text: Text) -> Text:
    text.end = "\n"
    return text
