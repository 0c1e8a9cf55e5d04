"""How does `wherry bench` become runs, and their report?"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import itertools
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from wherry import __version__
from wherry.cli.bench_server import serving
from wherry.cli.settings import PREFIX
from wherry.cli.targets import load_targets
from wherry.errors import ConfigError, WherryError
from wherry.loadtest import compare as comparing
from wherry.loadtest import report as reports
from wherry.loadtest.inputs import lengths
from wherry.loadtest.load import LoadProcesses
from wherry.loadtest.local import Local
from wherry.loadtest.machine import facts
from wherry.loadtest.page import render
from wherry.loadtest.plan import Bursts, Closed, Load, Plan, Rate, Replay
from wherry.loadtest.plot import draw
from wherry.loadtest.report import Report
from wherry.loadtest.search import Objective, Search
from wherry.loadtest.session import Measured, Served, Subject, measure
from wherry.loadtest.show import Display, print_changes, print_report
from wherry.loadtest.targets import Sending, find
from wherry.runtime import Runtime

DEFAULT_URL = "http://127.0.0.1:8000"

DEFAULT_CALLERS = "1,4,16,64"
DEFAULT_DURATION = 5.0
DEFAULT_WARMUP = 1.0

FAILED = 1
INTERRUPTED = 130


def bench(args: argparse.Namespace) -> int:
    """Measure, print the table, write what was asked for."""
    if args.compare:
        return compare(*args.compare)
    if args.offline:
        return measure_offline(args)
    asked = Asked.of(args)
    out = Outputs(args)
    with Interrupts() as interrupts, Display(quiet=args.quiet) as display:
        run = Run(args, asked, display, interrupts, out)
        try:
            run.carry_out()
        except ConfigError:
            raise
        except WherryError as error:
            run.failure = str(error)
        except KeyboardInterrupt:
            if interrupts.insisted:
                raise
    if run.report is not None and run.report.points:
        print_report(run.report)
        out.write(run.report)
    if run.failure:
        sys.stderr.write(f"wherry: {run.failure}\n")
        return FAILED
    if interrupts.asked():
        return INTERRUPTED
    assert run.report is not None
    return 0 if any(point.figures.ok for point in run.report.points) else FAILED


def compare(before: str, after: str) -> int:
    """Print what changed from report A to report B."""
    old, new = reports.read(before), reports.read(after)
    print_changes(comparing.compare(old, new), comparing.unmatched(old, new))
    return 0


def measure_offline(args: argparse.Namespace) -> int:
    """Seconds per row of the model's own code, and what a server can reach at most."""
    from wherry.cli.bench_offline import offline, write

    seconds_each = _seconds("--duration", args.duration) or 1.0
    sizes = _counts("--batch-sizes", args.batch_sizes)
    shapes = dict(_shape(text) for text in args.shape)
    with Interrupts() as interrupts:
        command = _without_secrets(["wherry", *sys.argv[1:]])
        report = offline(args, sizes, shapes, seconds_each, command, interrupts.asked)
    write(report, args.json)
    return INTERRUPTED if report.interrupted else 0


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line as values."""

    sending: Sending
    loads: list[tuple[dict[str, Any], Load]]
    rows: list[int]
    duration: float | None
    requests: int | None
    warmup: float
    timeout: float
    settings: list[dict[str, Any]]
    objective: Objective
    #: What a caller is, where the tool itself chooses how many.
    caller: Closed

    @classmethod
    def of(cls, args: argparse.Namespace) -> Asked:
        """ConfigError says which flag is wrong."""
        counted = args.requests is not None or args.loops is not None or args.replay
        duration = _seconds("--duration", args.duration)
        if duration is None and not counted:
            duration = DEFAULT_DURATION
        warmup = _seconds("--warmup", args.warmup)
        if warmup is None:
            warmup = 0.0 if counted else min(DEFAULT_WARMUP, (duration or 0.0) / 5)
        of_the_server = (f.partition("=")[2] for f in args.serve if f.startswith("--api-key="))
        of_the_shell = os.environ.get(f"{PREFIX}API_KEY", "").partition(",")[0]
        key = args.api_key or next(of_the_server, of_the_shell) or None
        sending = Sending(
            protocol=args.protocol,
            model=args.model,
            inputs=args.inputs,
            text=lengths(args.length[0]) if args.length else None,
            shapes=dict(_shape(text) for text in args.shape),
            binary=not args.json_tensors,
            stream=not args.no_stream,
            max_tokens=args.max_tokens,
            method=args.method,
            headers=dict(_header(text) for text in args.header),
            body=args.body,
            api_key=key,
            ssl_ca=args.ssl_ca,
            insecure=args.insecure,
            seed=args.seed,
        )
        if len(args.length) > 1:
            raise ConfigError("several --length are for --offline; a load has one")
        for name in ("repeat", "processes", "connections"):
            if getattr(args, name) < 1:
                raise ConfigError(f"--{name} must be at least 1")
        timeout = _seconds("--timeout", args.timeout)
        found = cls(
            sending,
            _loads(args),
            _counts("--rows", args.rows),
            duration,
            args.requests,
            warmup,
            30.0 if timeout is None else timeout,
            _sweep(args.set),
            _objective(args),
            Closed(
                callers=1,
                think=_seconds("--think", args.think) or 0.0,
                think_random=args.think_random,
                loops=args.loops,
            ),
        )
        for _, load in found.loads:
            found.plan(load, args)
        return found

    def plan(self, load: Load, args: argparse.Namespace) -> Plan:
        return Plan(
            load=load,
            duration=self.duration,
            requests=self.requests,
            warmup=self.warmup,
            timeout=self.timeout,
            connections=args.connections,
            seed=args.seed,
        ).check()


@dataclass(slots=True)
class Run:
    """All points of one command; `report` is what there is so far."""

    args: argparse.Namespace
    asked: Asked
    display: Display
    interrupts: Interrupts
    out: Outputs
    report: Report | None = None
    failure: str = ""
    _only_model: str | None = None

    def carry_out(self) -> None:
        for settings in self.asked.settings:
            if self.interrupts.asked():
                return
            with self._subject(settings) as subject:
                if self.report is None:
                    self.report = new_report(subject)
                if self.args.find_max:
                    self._search(subject, settings)
                else:
                    self._measure_all(subject, settings)

    def _measure_all(self, subject: Subject, settings: dict[str, Any]) -> None:
        for rows, (shape, load), repeat in itertools.product(
            self.asked.rows, self.asked.loads, range(self.args.repeat)
        ):
            several = {"rows": rows} if len(self.asked.rows) > 1 else {}
            point = self.measure(
                subject, load, {**settings, **several, **shape}, rows, repeat
            ).point
            if point.stopped or self.interrupts.asked():
                return  # nobody is there any more, or nobody wants more

    def measure(
        self, subject: Subject, load: Load, settings: dict[str, Any], rows: int, repeat: int = 0
    ) -> Measured:
        assert self.report is not None
        if self.report.points and (pause := _seconds("--pause", self.args.pause)):
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
        while (tried := search.next()) is not None and not self.interrupts.asked():
            load: Load = (
                msgspec.structs.replace(self.asked.caller, callers=int(tried))
                if by == "callers"
                else Rate(rate=tried, arrivals=self.args.arrivals)
            )
            point = self.measure(subject, load, {**settings, by: tried}, self.asked.rows[0]).point
            if point.interrupted or point.stopped:
                break
            kept_up = by == "callers" or point.figures.requests_per_second > 0.9 * tried
            search.tell(tried, objective.met(point.figures) and kept_up)
            told.found = search.found
        self.report.points[first:] = sorted(
            self.report.points[first:], key=lambda point: float(point.settings[by])
        )

    @contextmanager
    def _subject(self, settings: dict[str, Any]) -> Iterator[Subject]:
        """What the points with these server settings are measured on."""
        with ExitStack() as stack:
            with self.interrupts.at_once():
                subject = self._start(stack, settings)
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
            server = stack.enter_context(serving(target, self.args.serve, model, settings))
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
            with serving(target, self.args.serve, None, {}) as server:
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

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.insisted = self._asked
        self._asked = True
        if self.insisted or self._at_once:
            raise KeyboardInterrupt


@dataclass(slots=True)
class Outputs:
    """The files that were asked for. JSONL is written as the runs end, the rest at the end."""

    args: argparse.Namespace
    _begun: bool = field(default=False)

    def __post_init__(self) -> None:
        for name in ("json", "html", "csv", "perf_csv", "jsonl", "png"):
            path = getattr(self.args, name)
            # Now, not after the measurement.
            if path and not Path(path).absolute().parent.is_dir():
                raise ConfigError(f"--{name.replace('_', '-')} {path}: there is no such folder")
        if self.args.png and importlib.util.find_spec("matplotlib") is None:
            raise ConfigError("--png needs matplotlib: pip install 'wherry[plot]'")

    def requests(self, measured: Measured) -> None:
        if not self.args.jsonl:
            return
        with open(self.args.jsonl, "ab" if self._begun else "wb") as file:
            self._begun = True
            for line in reports.jsonl(measured.table, measured.begin, measured.point.settings):
                file.write(line + b"\n")

    def write(self, report: Report) -> None:
        for name, content in (
            ("json", reports.encode),
            ("html", lambda r: render(r).encode()),
            ("csv", lambda r: reports.as_csv([*reports.csv_rows(r)]).encode()),
            ("perf_csv", lambda r: reports.as_csv([*reports.perf_rows(r)]).encode()),
        ):
            path = getattr(self.args, name)
            if path:
                Path(path).write_bytes(content(report))
        if self.args.png:
            draw(report, self.args.png)


# Flags as values

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


def seconds(text: str) -> float:
    """200ms, 5s, 2m, 1h, or a number of seconds. ValueError if it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(us|ms|s|m|h|)", text.strip())
    if match is None:
        raise ValueError(text)
    return float(match[1]) * _UNITS[match[2]]


def _seconds(flag: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return seconds(text)
    except ValueError:
        raise ConfigError(f"{flag} {text!r}: write seconds, for example 0.5, 200ms or 5s") from None


def counts(text: str) -> list[int]:
    """1,4,16 or 1..64: doubling from the one to the other. ValueError if it is neither."""
    found: list[int] = []
    for part in text.split(","):
        low, dots, high = part.partition("..")
        if not dots:
            found.append(int(part))
            continue
        value = int(low)
        if value < 1:
            raise ValueError(part)
        while value < int(high):
            found.append(value)
            value *= 2
        found.append(int(high))
    if any(value < 1 for value in found):
        raise ValueError(text)
    return found


def _counts(flag: str, text: str) -> list[int]:
    try:
        return counts(text)
    except ValueError:
        raise ConfigError(f"{flag} {text!r}: write for example 8, 1,4,16 or 1..64") from None


def _loads(args: argparse.Namespace) -> list[tuple[dict[str, Any], Load]]:
    ramp = _seconds("--ramp", args.ramp) or 0.0
    kinds = [f"--{name}" for name in ("rate", "burst", "replay") if getattr(args, name)]
    if args.callers and kinds:
        raise ConfigError(f"--callers and {kinds[0]} are two kinds of load: choose one")
    if len(kinds) > 1:
        raise ConfigError(f"{' and '.join(kinds)} are two kinds of load: choose one")
    if kinds and (args.loops is not None or args.think):
        raise ConfigError(f"--loops and --think are for callers, not for {kinds[0]}")
    if args.rate:
        try:
            rates = [float(part) for part in args.rate.split(",")]
        except ValueError:
            raise ConfigError(f"--rate {args.rate!r}: write for example 100 or 50,100") from None
        return [({"rate": r}, Rate(rate=r, arrivals=args.arrivals, ramp=ramp)) for r in rates]
    if args.burst:
        size, slash, every = args.burst.partition("/")
        if not slash or not size.isdigit():
            raise ConfigError(f"--burst {args.burst!r}: write for example 50/2s")
        load = Bursts(size=int(size), every=_seconds("--burst", every) or 0.0)
        return [({"burst": args.burst}, load)]
    if args.replay:
        return [({"replay": Path(args.replay).name}, replay(args.replay, args.speed))]
    think = _seconds("--think", args.think) or 0.0
    return [
        (
            {"callers": n},
            Closed(
                callers=n, think=think, think_random=args.think_random, ramp=ramp, loops=args.loops
            ),
        )
        for n in _counts("--callers", args.callers or DEFAULT_CALLERS)
    ]


def replay(path: str, speed: float = 1.0) -> Replay:
    """The moments of a trace: a number a line, or a JSON object with `intended`, `timestamp` or
    `at` (our own JSONL is one). The first is the beginning."""
    if not speed > 0:
        raise ConfigError(f"--speed must be above 0, not {speed:g}")
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--replay {path}: {error}") from None
    moments = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = msgspec.json.decode(line)
            if isinstance(value, dict):
                value = next(value[k] for k in ("intended", "timestamp", "at") if k in value)
            moments.append(float(value))
        except (msgspec.DecodeError, StopIteration, TypeError, ValueError):
            raise ConfigError(
                f"--replay {path}, line {number}: expected a number of seconds, or an object with"
                " `intended`, `timestamp` or `at`"
            ) from None
    moments.sort()
    return Replay(moments=tuple((m - moments[0]) / speed for m in moments))


def _objective(args: argparse.Namespace) -> Objective:
    limits = {
        name: limit
        for name in ("p50", "p95", "p99")
        if (limit := _seconds(f"--{name}", getattr(args, name))) is not None
    }
    if args.find_max and not limits:
        raise ConfigError("--find-max needs a target, for example --p95 200ms")
    if limits and not args.find_max:
        raise ConfigError(f"--{next(iter(limits))} is a target for --find-max")
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(%?)", args.max_errors.strip())
    if match is None:
        raise ConfigError(f"--max-errors {args.max_errors!r}: write for example 1% or 0.01")
    return Objective(limits, float(match[1]) / (100 if match[2] else 1))


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, shape = text.partition("=")
    try:
        return name, tuple(int(part) for part in shape.split(","))
    except ValueError:
        raise ConfigError(f"--shape {text!r}: write for example pixels=3,224,224") from None


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ConfigError(f"--header {text!r}: write NAME:VALUE")
    return name.strip(), value.strip()


def _sweep(texts: list[str]) -> list[dict[str, Any]]:
    """Every combination of the settings to sweep."""
    choices: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not values:
            raise ConfigError(f"--set {text!r}: write for example max_batch_size=8,16,32")
        choices[name.strip().replace("-", "_")] = [_setting(part) for part in values.split(",")]
    return [
        dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]


def _setting(text: str) -> Any:
    """A number, true or false, seconds with a unit, or a word."""
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float, seconds):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
