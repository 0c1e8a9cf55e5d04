"""How are a server's numbers shown until somebody has seen enough? `wherry top [URL]`."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from wherry.cli.call import client_of
from wherry.cli.show import print_line
from wherry.cli.top.keys import Keys
from wherry.cli.top.screen import SORTS, screen
from wherry.cli.top.told import Snapshot, look, numbers_of
from wherry.client import Client
from wherry.values.errors import ConfigError, WherryError
from wherry.values.quantities import duration

#: Seconds between two looks, at least and if nothing else is said.
LEAST, EVERY = 0.1, 1.0
#: Seconds for an answer.
PATIENCE: Final = 5.0
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
        client.timeout = PATIENCE
        if args.json:
            _print_json(client, None if args.once else args.interval)
            return 0
        made = Console(markup=False, emoji=False, highlight=False)
        if args.once or not sys.stdout.isatty() or made.is_dumb_terminal:
            _print_once(client, made, args.sort)
        else:
            _watch(client, made, every, args.sort)
    return 0


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
                told, trouble = feed.latest()
                lines = screen(
                    told, url=client.url, width=console.width, height=console.height, sort=sort,
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

    def start(self, every: float, told: Callable[[], None]) -> None:
        """Snapshot each `every` seconds, and call `told` after each look, from the thread."""
        # A daemon: an answer that does not come must not keep the program.
        threading.Thread(target=self._run, args=(every, told), daemon=True, name="top").start()

    def stop(self) -> None:
        self._ended.set()

    def latest(self) -> tuple[Snapshot, str]:
        """The last numbers, and why there are no newer ones."""
        with self._lock:
            if not self._error:
                return self._latest, ""
            ago = duration(time.monotonic() - self._at)
            return self._latest, f"no answer for {ago}: {self._error}; trying again"

    def _run(self, every: float, told: Callable[[], None]) -> None:
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
                told()
