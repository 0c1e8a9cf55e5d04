"""How does `wherry bench` choose what to do, and what does it print?"""

from __future__ import annotations

import argparse
import os
import re
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

import msgspec

from wherry.bench import compare as comparing
from wherry.bench import report as reports
from wherry.bench.cli.options import BenchOptions
from wherry.bench.cli.run import (
    BenchRun,
    Interrupts,
    Outputs,
    exit_code,
)
from wherry.bench.compare import turns
from wherry.bench.report import Report
from wherry.bench.show import Display, print_changes, print_report
from wherry.core.api import ConfigError

#: Runs of each target without --repeat: they find a change of 10 % under noise of 5 % a run.
PAIRS = 10


def compare(args: argparse.Namespace) -> int:
    targets = [_is_target(one) for one in args.compare]
    if all(targets):
        return _in_turns(args)
    if any(targets):
        raise ConfigError("--compare takes two reports or two targets, not one of each")
    before, after = map(reports.read, args.compare)
    changes = comparing.compare(before, after)
    print_changes(changes, comparing.unmatched(before, after))
    if not changes:
        raise ConfigError("the two reports have no point in common that was answered")
    return 0


def _is_target(word: str) -> bool:
    """A URL, or what `wherry serve` takes; else it is the path of a report."""
    path = Path(word)
    if path.is_file():
        return path.suffix == ".py"
    return ":" in word or word.endswith(".py") or path.is_dir()


def _in_turns(args: argparse.Namespace) -> int:
    if args.find_max or args.target:
        raise ConfigError("--compare of two targets has no other TARGET and no --find-max")
    bench_options, out = BenchOptions.of(args), Outputs(args)
    failures: list[str] = []
    with Interrupts() as interrupts:
        with Display(quiet=args.quiet) as display:
            each = [argparse.Namespace(**{**vars(args), "target": one}) for one in args.compare]
            runs = [BenchRun(one, bench_options, display, interrupts, out) for one in each]
            with interrupts.kept(failures, lambda: bool(runs[0].points)):
                _measure(runs, args.repeat or PAIRS, args.seed)
        before, after = (run.report for run in runs)
        if before is not None and after is not None and after.points:
            print_changes(comparing.compare(before, after, in_turns=True), [], in_turns=True)
            failures += out.write(_both(before, after))
    named = list(zip("AB", runs, strict=True))
    wrong = [f"{name}: {one}" for name, run in named for one in run.not_measured]
    missed = [f"{name}: {one}" for name, run in named for one in run.missed]
    return exit_code(interrupts, [*failures, *wrong], missed)


def _measure(runs: list[BenchRun], pairs: int, seed: int) -> None:
    bench_options, interrupts = runs[0].bench_options, runs[0].interrupts
    for settings in bench_options.settings:
        with ExitStack() as stack:
            subjects = [stack.enter_context(run.subject(settings)) for run in runs]
            for rows, load, of_the_load in runs[0].loads():
                for repeat, pair in enumerate(turns(pairs, seed)):
                    for side in pair:
                        point = runs[side].measure_one(
                            subjects[side], load, {**settings, **of_the_load}, rows, repeat
                        )
                        if point.stopped or interrupts.requested():
                            return


def _both(before: Report, after: Report) -> Report:
    """One report of both, for --json and the like, with the target as a setting of each point."""
    points = [
        msgspec.structs.replace(point, settings={"target": name, **point.settings})
        for name, report in (("A", before), ("B", after))
        for point in report.points
    ]
    return msgspec.structs.replace(
        before, points=points, interrupted=before.interrupted or after.interrupted
    )


def take_model(args: argparse.Namespace) -> None:
    """Take a word that is no module, here or installed, for a model of the running server."""
    word = args.target or ""
    needs_code = args.set or args.serve
    is_here = os.path.exists(word) or os.path.exists(f"{word}.py")
    if re.fullmatch(r"[\w-]+", word) and not (args.model or needs_code or is_here):
        with suppress(ValueError):  # a module without a spec, such as __main__
            if find_spec(word) is None:
                args.target, args.model = None, word


def bench(args: argparse.Namespace) -> int:
    if args.compare:
        return compare(args)
    take_model(args)
    bench_options = BenchOptions.of(args)
    out = Outputs(args)
    failures: list[str] = []
    with Interrupts() as interrupts:
        with Display(quiet=args.quiet) as display:
            run = BenchRun(args, bench_options, display, interrupts, out)
            with interrupts.kept(failures, lambda: bool(run.points)):
                run.carry_out()
        if run.report is not None and run.points:
            print_report(run.report)
            failures += out.write(run.report)
        elif interrupts.requested():
            failures = ["interrupted before anything was measured: no report"]
    return exit_code(interrupts, [*failures, *run.not_measured], run.missed)
