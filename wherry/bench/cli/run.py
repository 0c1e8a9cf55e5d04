"""How do the points of one `wherry bench` become measurements, one after the other, which files
does it write, and how does it end: by Ctrl-C, by an error, and with which exit code?
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

from wherry import __version__
from wherry.bench import report as reports
from wherry.bench.cli.options import BenchOptions
from wherry.bench.load import LoadProcesses
from wherry.bench.objective import FEWEST_REQUESTS, Search, kept_up, no_measurement, target_lost
from wherry.bench.observe import facts
from wherry.bench.plan import Load, Rate
from wherry.bench.report import Point, Report
from wherry.bench.session import Measured, Served, measure
from wherry.bench.show import Display
from wherry.bench.targets import Target, find
from wherry.core.api import ConfigError, WherryError
from wherry.server.api import OPTIONS, PREFIX, read_settings
from wherry.testing import ServerProcess

MISSED = 1
NOT_MEASURED = 2
INTERRUPTED = 130


class Interrupts:
    """Handlers of Ctrl-C and SIGTERM: the first ends the runs, and the report so far is still made;
    the second raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._requested = False
        self._at_once = False
        #: Whether there was a second signal.
        self.insisted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def requested(self) -> bool:
        return self._requested

    def wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._requested and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Have the first signal raise in this block, too: a model may load for minutes."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    @contextmanager
    def not_now(self) -> Iterator[None]:
        """Have the first signal raise only at the end of this block, within one of `at_once`."""
        at_once, self._at_once = self._at_once, False
        try:
            yield
        finally:
            self._at_once = at_once
        if at_once and self._requested:
            raise KeyboardInterrupt

    @contextmanager
    def kept(self, failures: list[str], measured: Callable[[], bool]) -> Iterator[None]:
        """End this block at an error or a signal, and go on with what has been measured by then.

        The error's text is added to `failures`. ConfigError if nothing is `measured`."""
        try:
            yield
        except WherryError as error:
            if isinstance(error, ConfigError) and not measured():
                raise
            failures.append(str(error))
        except KeyboardInterrupt:
            if self.insisted:
                raise

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.insisted = self._requested
        self._requested = True
        if self.insisted or self._at_once:
            raise KeyboardInterrupt


def exit_code(interrupts: Interrupts, not_measured: Iterable[str], missed: Iterable[str]) -> int:
    """Write what is wrong to stderr. Returns the process's exit code."""
    wrong = [*filter(None, not_measured)]
    for line in (*wrong, *missed):
        sys.stderr.write(f"wherry: {line}\n")
    if interrupts.requested():
        return INTERRUPTED
    return NOT_MEASURED if wrong else MISSED if missed else 0


#: The contents of each file that is written at the end, by its flag.
CONTENTS: Final[Mapping[str, Callable[[Report], str]]] = {
    "json": lambda report: reports.encode(report).decode(),
    "html": reports.page,
}
OUTPUTS: Final = (*CONTENTS, "jsonl")


@dataclass(slots=True)
class Outputs:
    """The files named by flags. ConfigError, before anything is measured, for one that cannot be
    written."""

    args: argparse.Namespace
    _begun: bool = False

    def __post_init__(self) -> None:
        for name in OUTPUTS:
            if path := getattr(self.args, name):
                _can_be_written(f"--{name} {path}", Path(path).absolute())

    def requests(self, measured: Measured) -> None:
        if not self.args.jsonl:
            return
        with open(self.args.jsonl, "ab" if self._begun else "wb") as file:
            self._begun = True
            for line in reports.jsonl(measured.table, measured.begin, measured.point.settings):
                file.write(line + b"\n")

    def write(self, report: Report) -> list[str]:
        """Write all of them, even if one cannot be. Returns the problems."""
        problems = []
        for name, content in CONTENTS.items():
            path = getattr(self.args, name)
            try:
                if path:
                    Path(path).write_text(content(report), encoding="utf-8")
            except OSError as error:
                problems.append(f"--{name} {path}: {error}")
        return problems


def _can_be_written(what: str, path: Path) -> None:
    if not path.parent.is_dir():
        raise ConfigError(f"{what}: no such folder")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{what}: this cannot be written")


#: Seconds for the models to load. Ctrl-C ends the waiting.
LOADING = 3600.0
#: Seconds for a server to end: its remaining work is of no use.
STOPPING = 10.0


@contextmanager
def serving(
    target: str,
    flags: Sequence[str],
    model: str | None,
    settings: Mapping[str, Any],
    undisturbed: Callable[[], AbstractContextManager[None]],
) -> Iterator[ServerProcess]:
    """`wherry serve TARGET FLAGS` on a free port with these settings of the model, over those of
    the file that it would read anyhow. WherryError with the server's log if it does not start.

    In a block of `undisturbed` no Ctrl-C raises: it would leave a process running."""
    with tempfile.TemporaryDirectory(prefix="wherry-bench-") as folder:
        if model is not None and settings:
            path = Path(folder) / "wherry.toml"
            path.write_text(_merged(flags, model, settings), encoding="utf-8")
            flags = [*_without_config(flags), "--config", str(path)]
        server = ServerProcess(target, *flags, own_group=True, ready_timeout=LOADING)
        with ExitStack() as stack:
            with undisturbed():
                server.start()
                stack.callback(_stop, server)
            try:
                server.wait_ready()
            except RuntimeError as error:
                raise WherryError(str(error)) from None
            yield server


def _stop(server: ServerProcess) -> None:
    with contextlib.suppress(RuntimeError):  # it hung, and has been killed
        server.stop(timeout=STOPPING)


def _merged(flags: Sequence[str], model: str, settings: Mapping[str, Any]) -> str:
    config = next((f.partition("=")[2] for f in flags if f.startswith("--config=")), None)
    known = read_settings({"config": config}, _only_config())
    server = {
        name: known.options.value(name)
        for name in OPTIONS
        if known.file is not None and known.origins.get(name, "").startswith(known.file)
    }
    models = {name: dict(table) for name, table in known.models.items()}
    models[model] = {**models.get(model, {}), **settings}
    # "auto" is the value of a setting that is not set.
    models[model] = {name: value for name, value in models[model].items() if value != "auto"}
    lines = ["[server]", *_keys(server)]
    for name, table in models.items():
        lines += [f"[models.{msgspec.json.encode(name).decode()}]", *_keys(table)]
    return "\n".join(lines) + "\n"


def _only_config() -> dict[str, str]:
    name = f"{PREFIX}CONFIG"
    return {name: os.environ[name]} if name in os.environ else {}


def _without_config(flags: Sequence[str]) -> list[str]:
    return [flag for flag in flags if not flag.startswith("--config=")]


def _keys(table: Mapping[str, Any]) -> Iterator[str]:
    for name, value in table.items():
        yield f"{name} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(_keys(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    return msgspec.json.encode(value).decode()  # text, numbers and booleans look alike in both


DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(slots=True)
class BenchRun:
    """The measurement of all points of one command; `report` holds those measured so far."""

    args: argparse.Namespace
    bench_options: BenchOptions
    display: Display
    interrupts: Interrupts
    out: Outputs
    report: Report | None = None
    #: Points without a measurement, and why; and those that miss the objective.
    not_measured: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    _only_model: str | None = None

    @property
    def points(self) -> list[Point]:
        return self.report.points if self.report is not None else []

    def carry_out(self) -> None:
        for settings in self.bench_options.settings:
            if self.interrupts.requested():
                return
            with self.subject(settings) as subject:
                if self.args.find_max:
                    self._search(subject, settings)
                else:
                    self._measure_all(subject, settings)

    def _measure_all(self, subject: Served, settings: dict[str, Any]) -> None:
        for rows, load, of_the_load in self.loads():
            for repeat in range(self.args.repeat or 1):
                point = self.measure_one(subject, load, {**settings, **of_the_load}, rows, repeat)
                if point.stopped or self.interrupts.requested():
                    return  # the server is gone, or the user has stopped it

    def loads(self) -> Iterator[tuple[int, Load, dict[str, Any]]]:
        """Rows a request, the load, and what of them differs from point to point."""
        for rows, (shape, load) in itertools.product(
            self.bench_options.rows, self.bench_options.loads
        ):
            yield rows, load, {"rows": rows, **shape} if len(self.bench_options.rows) > 1 else shape

    def measure_one(
        self, subject: Served, load: Load, settings: dict[str, Any], rows: int, repeat: int
    ) -> Point:
        point = self.measure(subject, load, settings, rows, repeat).point
        if point.interrupted:
            return point
        if wrong := no_measurement(point):
            self.not_measured.append(f"{point.label}: {wrong}")
        else:
            missed = self.bench_options.objective.missed(point.figures)
            self.missed += [f"{point.label}: {one}" for one in missed]
        return point

    def measure(
        self, subject: Served, load: Load, settings: dict[str, Any], rows: int, repeat: int = 0
    ) -> Measured:
        assert self.report is not None
        if self.report.points:
            self.interrupts.wait(self.bench_options.pause)
        plan = self.bench_options.plan_of(load)
        measured = measure(
            subject,
            plan,
            rows=rows,
            settings=settings,
            repeat=repeat,
            on_progress=self.display.begin(plan, reports.label_of(settings)),
            interrupted=self.interrupts.requested,
        )
        self.report.points.append(measured.point)
        self.report.interrupted = self.report.interrupted or measured.point.interrupted
        self.display.done(measured.point)
        self.out.requests(measured)
        return measured

    def _search(self, subject: Served, settings: dict[str, Any]) -> None:
        """Find the highest load that meets the objective; every load tried is a point."""
        assert self.report is not None
        by, objective = self.args.find_max, self.bench_options.objective
        # A short run needs a higher rate to have some requests at all.
        rate = max(10.0, round(FEWEST_REQUESTS / (self.bench_options.plan.duration or 10.0)))
        search = Search(whole=by == "callers", start=1.0 if by == "callers" else rate)
        result = reports.SearchResult(by=by, objective=str(objective))
        self.report.searches.append(result)
        first = len(self.report.points)
        result.settings = settings
        lost = ""
        while (tried := search.next()) is not None and not self.interrupts.requested():
            load: Load = (
                msgspec.structs.replace(self.bench_options.plan.load, callers=int(tried))
                if by == "callers"
                else Rate(rate=tried, arrivals=self.args.arrivals)
            )
            point = self.measure(
                subject, load, {**settings, by: tried}, self.bench_options.rows[0]
            ).point
            lost = target_lost(point)
            if point.interrupted or point.stopped:
                break
            met = objective.met(point.figures) and (by == "callers" or kept_up(point.figures))
            search.record(tried, met)
            result.found = search.found
        self.report.points[first:] = sorted(
            self.report.points[first:], key=lambda point: float(point.settings[by])
        )
        if lost:  # at the load tried last: the failure above is of a target that went away
            self.not_measured.append(lost)
        elif result.found is None and not self.interrupts.requested():
            self.missed.append(f"no number of {by} meets {objective}")

    @contextmanager
    def subject(self, settings: dict[str, Any]) -> Iterator[Served]:
        """Start what the points with these server settings are measured on."""
        with ExitStack() as stack:
            with self.interrupts.at_once():
                subject = self._start(stack, settings)
            if self.report is None:
                self.report = new_report(subject.target)
            yield subject

    def _start(self, stack: ExitStack, settings: dict[str, Any]) -> Served:
        target = self.args.target or os.environ.get(f"{PREFIX}URL", DEFAULT_URL)
        is_url = "://" in target
        if is_url and (settings or self.args.serve):
            raise ConfigError("--set and --serve start a server: name app.py, not a URL")
        pid = None
        if not is_url:
            self.display.show(f"starting wherry serve {target}")
            model = self._model_to_set(target, settings)
            server = stack.enter_context(
                serving(target, self.args.serve, model, settings, self.interrupts.not_now)
            )
            target, pid = server.url, server.pid
            self.display.show(f"it is ready at {target}")
        found = find(target, self.bench_options.sending)
        return Served(found, stack.enter_context(LoadProcesses(self.args.processes)), pid)

    def _model_to_set(self, target: str, settings: dict[str, Any]) -> str | None:
        """The model whose settings they are; without --model the only one of the server."""
        if not settings:
            return None
        if self.bench_options.sending.model is not None:
            return self.bench_options.sending.model.partition(":")[0]
        if self._only_model is None:
            with serving(target, self.args.serve, None, {}, self.interrupts.not_now) as server:
                found = find(server.url, self.bench_options.sending)
            self._only_model = found.model
        return self._only_model


def new_report(target: Target) -> Report:
    return Report(
        version=__version__,
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=without_secrets(["wherry", *sys.argv[1:]]),
        machine=facts(),
        target=reports.TargetFacts(
            protocol=target.protocol,
            url=target.address.url,
            model=target.model,
            inputs=target.source,
        ),
    )


def without_secrets(command: list[str]) -> list[str]:
    shown = []
    hide = False
    for word in command:
        flag, equals, _ = word.removeprefix("--serve=").partition("=")
        secret = flag in ("--api-key", "--header")
        shown.append("***" if hide else f"{flag}=***" if secret and equals else word)
        hide = secret and not equals
    return shown
