"""What does `wherry serve` show on a terminal while it loads models, and once they are ready?

Where stderr is not a terminal, or the log is JSON, it shows nothing: there is the log.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TextIO, cast

from wherry import __version__
from wherry.core.api import BYTES, Form, LoadedModel, TensorSpec, configure
from wherry.server.cli.show import as_json, chats, printable, signature_in_words
from wherry.server.openapi.routes import DOCS
from wherry.server.options import Options
from wherry.server.server import Server, StartLog

#: Models that are listed. `wherry models` lists all.
MOST_MODELS: Final = 12
#: Columns of names, before what they stand for.
MOST_NAME: Final = 24
PROGRESS: Final = "wherry.progress"
_BAR: Final = 20
#: Events of the log that the screen shows itself.
SHOWN: Final = ("listening", "ready")

_CLEAR: Final = "\r\033[K"
BOLD, DIM, GREEN, CYAN = "1", "2", "32", "36"


class StatusLine:
    """A terminal whose last line is a status. What is written goes above it. Safe from any
    thread."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._lock = threading.Lock()
        self._status = ""

    def isatty(self) -> bool:
        return self._terminal.isatty()

    def write(self, text: str) -> None:
        with self._lock:
            self._terminal.write(f"{_CLEAR}{text}{self._status}" if self._status else text)

    def flush(self) -> None:
        self._terminal.flush()

    def show(self, status: str) -> None:
        columns = shutil.get_terminal_size().columns - 1
        with self._lock:
            if status != self._status:
                self._status = printable(status)[:columns]
                self._terminal.write(_CLEAR + self._status)
                self._terminal.flush()


class LoadingLine(StartLog):
    interval = 0.1

    def __init__(self, line: StatusLine) -> None:
        self._line = line
        #: What each model's load last reported.
        self._stages: dict[str, str] = {}

    def loading(self, waiting: Mapping[str, str], seconds: float) -> None:
        names = ", ".join(
            f"{'models' if name == '*' else name}{self._stages.get(name, '')}" for name in waiting
        )
        self._line.show(f"loading for {seconds:.1f} s: {names}{self._stages.get('', '')}")

    @contextmanager
    def during(self, waiting: Callable[[], Mapping[str, str]]) -> Iterator[None]:
        """Show what is loading from a thread of its own, where there is no server's loop."""
        began, ended = time.monotonic(), threading.Event()

        def draw() -> None:
            while not ended.wait(self.interval):
                self.loading(waiting(), time.monotonic() - began)

        thread = threading.Thread(target=draw, name="wherry-loading", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self.loaded()

    def takes(self, record: logging.LogRecord) -> bool:
        """Note a record of the log that a load has made. False if it is not to be logged, too."""
        is_progress = record.name == PROGRESS
        if is_progress or (record.name == "wherry" and hasattr(record, "model")):
            done, total = getattr(record, "done", 0), getattr(record, "total", 0)
            text = printable(record.getMessage())
            self._stages[getattr(record, "model", "")] = f" ({text}{_bar(done, total)})"
        return not is_progress

    def loaded(self) -> None:
        self._line.show("")


class StartScreen(LoadingLine):
    """Shows what is loading, and then what is served and how to call it."""

    def __init__(self, line: StatusLine, options: Options, *, colour: bool) -> None:
        super().__init__(line)
        self._options = options
        self._colour = colour
        self._began = time.monotonic()

    def importing(self, targets: Sequence[str]) -> None:
        """Their code is being run, which may take a while."""
        self._line.write(self._paint(f"importing {', '.join(targets)}", DIM) + "\n")

    def ready(self, server: Server) -> None:
        self._line.write("\n".join(("", *self._screen(server), "")) + "\n")
        self._line.flush()

    def takes(self, record: logging.LogRecord) -> bool:
        return super().takes(record) and (record.name != "wherry" or record.msg not in SHOWN)

    def _screen(self, server: Server) -> Iterator[str]:
        models = server.runtime.models()
        count = f"{len(models)} model{'' if len(models) == 1 else 's'}"
        seconds = f"{time.monotonic() - self._began:.1f} s"
        yield f"  {self._paint(f'wherry {__version__}', BOLD)}  {count} ready in {seconds}"
        yield ""
        width = min(MOST_NAME, max((len(one.name) for one in models), default=0))
        for one in models[:MOST_MODELS]:
            name = self._paint(f"{one.name:<{width}}", GREEN)
            words = (
                "a language model" if chats(one.signature) else signature_in_words(one.signature)
            )
            yield f"  {name}  {words}"
        if more := models[MOST_MODELS:]:
            yield f"  and {len(more)} more: wherry models"
        if not models and (folders := server.control.repositories):
            yield f"  none yet in {', '.join(folders)}"
        yield ""
        url = server.url
        pages, socket = ("", url) if url.startswith("http+unix:") else (url, "")
        chat = any(chats(one.signature) for one in models)
        places = {
            "Dashboard": pages and f"{pages}/",
            "Chat": f"{pages}/chat" if pages and chat else "",
            "API": pages and pages + DOCS,
            "Socket": socket,
            "OpenAI": f"{url}/v1" if url and chat else "",
            "gRPC": server.grpc_url,
            "Management": server.management_url,
            "Metrics": server.metrics_url,
        }
        for name, place in places.items():
            if place:
                yield f"  {name:<10}  {self._paint(place, CYAN)}"
        if example := next(filter(None, (self._call(server, one) for one in models)), ""):
            yield ""
            yield f"  {example}"
        yield ""
        yield self._paint("  Ctrl-C stops the server", DIM)

    def _call(self, server: Server, model: LoadedModel) -> str:
        """A command that calls the model; "" if none is known that would do."""
        if not server.url.startswith("http"):
            return ""
        if chats(model.signature):
            return f"wherry chat {model.name}" + f" --url {server.url}" * (
                ":8000" not in server.url
            )
        row = example_row(model)
        if row is None:
            return ""
        word = "generate_stream" if model.signature.streams else "generate"
        access = self._options.access
        key = ""
        if access.api_keys or access.api_key_file:
            key = ' -H "Authorization: Bearer $WHERRY_API_KEY"'
        url, at = server.url, ""
        if url.startswith("http+unix://"):
            at = f" --unix-socket {shlex.quote(url.removeprefix('http+unix://'))}"
            url = "http://localhost"
        command = f"curl{' -N' if model.signature.streams else ''}{key}{at}"
        body = shlex.quote(as_json(row, None))
        return f"{command} {url}/v2/models/{model.name}/{word} -d {body}"

    def _paint(self, text: str, code: str) -> str:
        text = printable(text)
        return f"\033[{code}m{text}\033[0m" if self._colour else text


def _bar(done: int, total: int) -> str:
    if not total:
        return f" {done}" if done else ""
    full = min(_BAR, _BAR * done // total)
    return f" [{'#' * full}{'-' * (_BAR - full)}] {done}/{total}"


def example_row(model: LoadedModel) -> dict[str, Any] | None:
    """The model's first example, or a row made from its inputs; None if JSON cannot express it."""
    needed = [one for one in model.signature.inputs if not one.optional]
    if any(one.form is Form.BYTES for one in needed):
        return None
    for row in model.config.examples:
        if len(as_json(row, None)) < 200:
            return dict(row)
    made = {one.name: _made_up(one) for one in needed}
    return None if None in made.values() else made


def _made_up(spec: TensorSpec) -> Any:
    if spec.form is Form.TEXT:
        value: Any = "hello"
    elif spec.form is Form.SCALARS:
        value = 1 if spec.datatype is not BYTES else None
    else:
        return None
    return value if spec.shape == () else [value]


def configure_log(options: Options) -> StartScreen | None:
    """Configure the log by the options. Returns the screen if it is to be shown above the log."""
    log = options.command_line
    human = log.log_format == "human" and log.log_level in ("debug", "info")
    dumb = os.environ.get("TERM") == "dumb" or not sys.stderr.isatty()
    line = StatusLine(sys.stderr) if human and not dumb and "info" not in log.log_off else None
    handler = configure(
        log.log_level,
        log.log_format,
        cast(TextIO | None, line),
        file=log.log_file,
        off=log.log_off,
    )
    if line is None:
        return None
    screen = StartScreen(line, options, colour=not os.environ.get("NO_COLOR"))
    if log.log_file is None:
        handler.filters.insert(0, screen.takes)  # before that which drops reports of progress
    return screen
