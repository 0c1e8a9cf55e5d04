"""How does `wherry bench` choose what to do, and what does it tell its caller?"""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
import re
import sys
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

import msgspec

from wherry import __version__
from wherry.bench import compare as comparing
from wherry.bench import inputs, show
from wherry.bench import report as reports
from wherry.bench.cli.options import BenchOptions, counts_of, seconds_of, shape_of
from wherry.bench.cli.run import (
    INTERRUPTED,
    OUTPUTS,
    BenchRun,
    Interrupts,
    Outputs,
    exit_code,
    without_secrets,
)
from wherry.bench.compare import turns
from wherry.bench.observe import facts
from wherry.bench.offline import Offline, OfflineReport, length_of
from wherry.bench.report import Report
from wherry.bench.show import Display, print_changes, print_report
from wherry.core.api import (
    ConfigError,
    Gpus,
    Model,
    ModelConfig,
    ModelDescription,
    Pipeline,
    Tensor,
    may_use_gpus,
)
from wherry.server.api import load_targets

#: Rows of each kind, at least.
ROWS = 64


def measure_offline(args: argparse.Namespace) -> int:
    """Measure the seconds per row of the model's own code: what a server can reach at most."""
    Outputs(args)
    for name in OUTPUTS:
        if name != "json" and getattr(args, name):
            raise ConfigError(f"--{name} is for loads; --offline has --json")
    seconds = seconds_of("--duration", args.duration) or 1.0
    sizes = counts_of("--batch-sizes", args.batch_sizes)
    shapes = dict(shape_of(text) for text in args.shape)
    with Interrupts() as interrupts:
        model, config = _model(args)
        kinds = _kinds(args, model, config, shapes, most=max(ROWS, 2 * max(sizes)))
        devices = Gpus().place(config.instances, may_use=may_use_gpus(model))
        report = OfflineReport(
            version=__version__,
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            command=without_secrets(["wherry", *sys.argv[1:]]),
            machine=facts(),
            model=config.name,
            instances=len(devices),
        )
        with Offline(model, config, devices[0]) as loaded, show.Display(quiet=args.quiet) as shown:
            for (name, rows), size in itertools.product(kinds.items(), sizes):
                alike = len({length_of(row) for row in rows}) == 1
                for in_order in (False,) if alike else (False, True):
                    cell = None
                    if not interrupts.requested():
                        cell = loaded.measure(
                            rows, size, name=name, in_order=in_order, seconds=seconds,
                            interrupted=interrupts.requested,
                        )  # fmt: skip
                    if cell is not None:
                        report.cells.append(cell)
                        shown.say(show.cell_line(cell))
        report.interrupted = interrupts.requested()
    show.print_offline(report)
    if args.json:
        Path(args.json).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    return INTERRUPTED if report.interrupted else 0


def _model(args: argparse.Namespace) -> tuple[Model, ModelConfig]:
    if args.target is None or "://" in args.target:
        raise ConfigError("--offline runs the model's own code: name app.py, not a URL")
    found = load_targets([args.target])
    if not isinstance(found, list):
        raise ConfigError(f"{args.target} is a Runtime: --offline needs one of its models")
    models = [model for model in found if not isinstance(model, Pipeline)]
    chosen = [m for m in models if args.model is None or m.name == args.model.partition(":")[0]]
    if len(chosen) != 1:
        names = ", ".join(model.name for model in models) or "only pipelines"
        raise ConfigError(f"{args.target}: say which --model is meant; there are: {names}")
    return chosen[0], chosen[0].config()


def _kinds(
    args: argparse.Namespace,
    model: Model,
    config: ModelConfig,
    shapes: dict[str, tuple[int, ...]],
    most: int,
) -> dict[str, list[inputs.Row]]:
    """Rows by what they are: one kind for each distribution of lengths."""
    signature = model.signature(config.name)
    described = ModelDescription(
        config.name,
        tuple(Tensor(s.name, s.datatype, tuple(s.shape), s.form) for s in signature.inputs),
        (),
        batched=True,
    )
    if args.inputs:
        rows = inputs.as_rows(inputs.values_of(args.inputs), described)
        return {args.inputs: _enough(rows, most)}
    if args.length:
        return {
            text: inputs.made_up(
                described, text=inputs.lengths(text), shapes=shapes, count=most, seed=args.seed
            )
            for text in args.length
        }
    if config.examples and not shapes:
        return {"the model's examples": _enough([dict(row) for row in config.examples], most)}
    made = inputs.made_up(described, shapes=shapes, count=most, seed=args.seed)
    return {"made up from the model's metadata": _enough(made, most)}


def _enough(rows: list[inputs.Row], most: int) -> list[inputs.Row]:
    """`most` rows, each as often as any other: every cell of the table runs them all."""
    return [rows[n % len(rows)] for n in range(most)]


#: Runs of each target, unless --repeat says otherwise: 10 % are found under noise of 5 % a run.
PAIRS = 10


def compare(args: argparse.Namespace) -> int:
    """Print what differs between A and B."""
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
    if args.find_max or args.target or args.offline:
        raise ConfigError("--compare of two targets has no other TARGET, --find-max or --offline")
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
    """Take a word that is no module, here or installed, for a model of the server that runs."""
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
    if args.offline:
        return measure_offline(args)
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
