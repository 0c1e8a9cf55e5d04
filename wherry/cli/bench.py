"""How does `wherry bench` become runs, and their report?"""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

from wherry import __version__
from wherry.cli.bench_asked import Asked, counts_of, seconds_of, shape_of
from wherry.cli.bench_server import serving
from wherry.cli.settings import PREFIX
from wherry.cli.targets import load_targets
from wherry.loadtest import report as reports
from wherry.loadtest.load import LoadProcesses
from wherry.loadtest.local import Local
from wherry.loadtest.machine import facts
from wherry.loadtest.page import render
from wherry.loadtest.plan import Load, Rate
from wherry.loadtest.report import Point, Report
from wherry.loadtest.search import Search
from wherry.loadtest.session import Measured, Served, Subject, measure
from wherry.loadtest.show import Display, print_report
from wherry.loadtest.targets import find
from wherry.loadtest.verdict import missed, no_measurement, target_lost
from wherry.runtime.runtime import Runtime
from wherry.values.errors import ConfigError, WherryError

DEFAULT_URL = "http://127.0.0.1:8000"

MISSED = 1
NOT_MEASURED = 2
INTERRUPTED = 130


def bench(args: argparse.Namespace) -> int:
    """Measure, print the table, write what was asked for."""
    if args.compare:
        from wherry.cli.bench_compare import compare

        return compare(args)
    if args.offline:
        return measure_offline(args)
    asked = Asked.of(args)
    out = Outputs(args)
    failure = ""
    with Interrupts() as interrupts:
        with Display(quiet=args.quiet) as display:
            run = Run(args, asked, display, interrupts, out)
            try:
                run.carry_out()
            except WherryError as error:
                if isinstance(error, ConfigError) and not run.points:
                    raise
                failure = str(error)  # what has been measured so far is worth its report
            except KeyboardInterrupt:
                if interrupts.insisted:
                    raise
        if run.report is not None and run.points:
            print_report(run.report)
            failure = "; ".join(filter(None, (failure, out.write(run.report))))
        elif interrupts.asked():
            failure = "interrupted before anything was measured: there is no report"
    return exit_code(interrupts, [failure, *run.not_measured], run.missed)


def exit_code(interrupts: Interrupts, not_measured: Iterable[str], missed: Iterable[str]) -> int:
    """Say on stderr what is wrong, and what that is to a program."""
    wrong = [*filter(None, not_measured)]
    for line in (*wrong, *missed):
        sys.stderr.write(f"wherry: {line}\n")
    if interrupts.asked():
        return INTERRUPTED
    return NOT_MEASURED if wrong else MISSED if missed else 0


def measure_offline(args: argparse.Namespace) -> int:
    """Seconds per row of the model's own code, and what a server can reach at most."""
    from wherry.cli.bench_offline import offline, write

    Outputs(args)
    for name in OUTPUTS:
        if name != "json" and getattr(args, name):
            raise ConfigError(f"--{name} is for loads; --offline has --json")
    seconds_each = seconds_of("--duration", args.duration) or 1.0
    sizes = counts_of("--batch-sizes", args.batch_sizes)
    shapes = dict(shape_of(text) for text in args.shape)
    with Interrupts() as interrupts:
        command = _without_secrets(["wherry", *sys.argv[1:]])
        report = offline(args, sizes, shapes, seconds_each, command, interrupts.asked)
    write(report, args.json)
    return INTERRUPTED if report.interrupted else 0


@dataclass(slots=True)
class Run:
    """All points of one command; `report` is what there is so far."""

    args: argparse.Namespace
    asked: Asked
    display: Display
    interrupts: Interrupts
    out: Outputs
    report: Report | None = None
    #: Points without a measurement, and why; and those that do not meet what was asked for.
    not_measured: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    _only_model: str | None = None

    @property
    def points(self) -> list[Point]:
        return self.report.points if self.report is not None else []

    def carry_out(self) -> None:
        for settings in self.asked.settings:
            if self.interrupts.asked():
                return
            with self.subject(settings) as subject:
                if self.args.find_max:
                    self._search(subject, settings)
                else:
                    self._measure_all(subject, settings)

    def _measure_all(self, subject: Subject, settings: dict[str, Any]) -> None:
        for rows, load, of_the_load in self.loads():
            for repeat in range(self.args.repeat or 1):
                point = self.measure_one(subject, load, {**settings, **of_the_load}, rows, repeat)
                if point.stopped or self.interrupts.asked():
                    return  # the server is gone, or the user has stopped it

    def loads(self) -> Iterator[tuple[int, Load, dict[str, Any]]]:
        """Rows a request, the load, and what of them differs from point to point."""
        for rows, (shape, load) in itertools.product(self.asked.rows, self.asked.loads):
            yield rows, load, {"rows": rows, **shape} if len(self.asked.rows) > 1 else shape

    def measure_one(
        self, subject: Subject, load: Load, settings: dict[str, Any], rows: int, repeat: int
    ) -> Point:
        """One run, judged."""
        point = self.measure(subject, load, settings, rows, repeat).point
        if point.interrupted:
            return point
        if wrong := no_measurement(point):
            self.not_measured.append(f"{point.label}: {wrong}")
        else:
            self.missed += [f"{point.label}: {one}" for one in missed(point, self.asked.objective)]
        return point

    def measure(
        self, subject: Subject, load: Load, settings: dict[str, Any], rows: int, repeat: int = 0
    ) -> Measured:
        assert self.report is not None
        if self.report.points and (pause := seconds_of("--pause", self.args.pause)):
            self.interrupts.wait(pause)
        plan = self.asked.plan(load, self.args)
        label = ", ".join(f"{name} {reports.shown(value)}" for name, value in settings.items())
        measured = measure(
            subject,
            plan,
            rows=rows,
            settings=settings,
            repeat=repeat,
            tell=self.display.begin(plan, label),
            interrupted=self.interrupts.asked,
        )
        self.report.points.append(measured.point)
        self.report.interrupted = self.report.interrupted or measured.point.interrupted
        self.display.done(measured.point)
        self.out.requests(measured)
        return measured

    def _search(self, subject: Subject, settings: dict[str, Any]) -> None:
        """Find the highest load that meets the objective; every load tried is a point."""
        assert self.report is not None
        by, objective = self.args.find_max, self.asked.objective
        search = Search(whole=by == "callers", start=1.0 if by == "callers" else 10.0)
        told = reports.Search(by=by, objective=str(objective))
        self.report.searches.append(told)
        first = len(self.report.points)
        told.settings = settings
        lost = ""
        while (tried := search.next()) is not None and not self.interrupts.asked():
            load: Load = (
                msgspec.structs.replace(self.asked.caller, callers=int(tried))
                if by == "callers"
                else Rate(rate=tried, arrivals=self.args.arrivals)
            )
            point = self.measure(subject, load, {**settings, by: tried}, self.asked.rows[0]).point
            lost = target_lost(point)
            if point.interrupted or point.stopped:
                break
            kept_up = by == "callers" or point.figures.requests_per_second > 0.9 * tried
            search.tell(tried, objective.met(point.figures) and kept_up)
            told.found = search.found
        self.report.points[first:] = sorted(
            self.report.points[first:], key=lambda point: float(point.settings[by])
        )
        if lost:  # the load tried last: what stands above is of a target that went away
            self.not_measured.append(lost)
        elif told.found is None and not self.interrupts.asked():
            self.missed.append(f"no number of {by} meets {objective}")

    @contextmanager
    def subject(self, settings: dict[str, Any]) -> Iterator[Subject]:
        """What the points with these server settings are measured on."""
        with ExitStack() as stack:
            with self.interrupts.at_once():
                subject = self._start(stack, settings)
            if self.report is None:
                self.report = new_report(subject)
            yield subject

    def _start(self, stack: ExitStack, settings: dict[str, Any]) -> Subject:
        target = self.args.target or os.environ.get(f"{PREFIX}URL", DEFAULT_URL)
        is_url = "://" in target
        if is_url and self.args.local:
            raise ConfigError("--local calls models in this process: name app.py, not a URL")
        if is_url and (settings or self.args.serve):
            raise ConfigError("--set and --serve start a server: name app.py, not a URL")
        if self.args.local:
            return stack.enter_context(self._local(target, settings))
        pid = None
        if not is_url:
            self.display.say(f"starting wherry serve {target}")
            model = self._model_to_set(target, settings)
            server = stack.enter_context(
                serving(target, self.args.serve, model, settings, self.interrupts.not_now)
            )
            target, pid = server.url, server.pid
            self.display.say(f"it is ready at {target}")
        found = find(target, self.asked.sending)
        return Served(found, stack.enter_context(LoadProcesses(self.args.processes)), pid)

    @contextmanager
    def _local(self, target: str, settings: dict[str, Any]) -> Iterator[Subject]:
        models = load_targets([target])
        if isinstance(models, Runtime):
            raise ConfigError(f"{target} is a Runtime: --local needs its models")
        name = (self.asked.sending.model or "").partition(":")[0]
        chosen = [name] if name else [model.name for model in models]
        overrides = {one: _without_auto(settings) for one in chosen}
        with Runtime(*models, overrides=overrides) as runtime:
            yield Local(runtime, self.asked.sending)

    def _model_to_set(self, target: str, settings: dict[str, Any]) -> str | None:
        """Whose settings they are: a server with one model says so itself."""
        if not settings:
            return None
        if self.asked.sending.model is not None:
            return self.asked.sending.model.partition(":")[0]
        if self._only_model is None:
            with serving(target, self.args.serve, None, {}, self.interrupts.not_now) as server:
                found = find(server.url, self.asked.sending)
            self._only_model = found.model
        return self._only_model


def _without_auto(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value != "auto"}


def new_report(subject: Subject) -> Report:
    return Report(
        version=__version__,
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=_without_secrets(["wherry", *sys.argv[1:]]),
        machine=facts(),
        target=subject.facts,
    )


def _without_secrets(command: list[str]) -> list[str]:
    """The command as it may stand in a file: keys and headers are nobody's business."""
    shown = []
    hide = False
    for word in command:
        flag, equals, _ = word.removeprefix("--serve=").partition("=")
        secret = flag in ("--api-key", "--header")
        shown.append("***" if hide else f"{flag}=***" if secret and equals else word)
        hide = secret and not equals
    return shown


class Interrupts:
    """Ctrl-C (or SIGTERM) asks for the end: the report so far is still made. A second one ends
    everything at once."""

    def __init__(self) -> None:
        self._asked = False
        self._at_once = False
        #: It was said twice.
        self.insisted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def asked(self) -> bool:
        return self._asked

    def wait(self, seconds: float) -> None:
        """Let time pass, unless the end is asked for."""
        until = time.monotonic() + seconds
        while not self._asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """In this block the first one ends what is done, too: a model that loads for minutes."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    @contextmanager
    def not_now(self) -> Iterator[None]:
        """In this block within `at_once` the first one waits for the block's end."""
        at_once, self._at_once = self._at_once, False
        try:
            yield
        finally:
            self._at_once = at_once
        if at_once and self._asked:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.insisted = self._asked
        self._asked = True
        if self.insisted or self._at_once:
            raise KeyboardInterrupt


#: What stands in each file that is written at the end, by its flag.
CONTENTS: Final[Mapping[str, Callable[[Report], str]]] = {
    "json": lambda report: reports.encode(report).decode(),
    "html": render,
    "csv": lambda report: reports.as_csv([*reports.csv_rows(report)]),
}


OUTPUTS: Final = (*CONTENTS, "jsonl")


@dataclass(slots=True)
class Outputs:
    """The files that were asked for. Made before the measurement: what cannot be is known then."""

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

    def write(self, report: Report) -> str:
        """All of them, even if one cannot be written; what is wrong with those, or nothing."""
        problems = []
        for name, content in CONTENTS.items():
            path = getattr(self.args, name)
            try:
                if path:
                    Path(path).write_text(content(report), encoding="utf-8")
            except OSError as error:
                problems.append(f"--{name} {path}: {error}")
        return "; ".join(problems)


def _can_be_written(what: str, path: Path) -> None:
    if not path.parent.is_dir():
        raise ConfigError(f"{what}: there is no such folder")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{what}: this cannot be written")
