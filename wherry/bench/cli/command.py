"""How does `wherry bench` choose what to do, and what does it tell its caller?"""

from __future__ import annotations

import argparse

from wherry.bench.cli.compare import compare
from wherry.bench.cli.interrupts import Interrupts, exit_code
from wherry.bench.cli.offline import measure_offline
from wherry.bench.cli.options import BenchOptions
from wherry.bench.cli.outputs import Outputs
from wherry.bench.cli.run import BenchRun
from wherry.bench.show import Display, print_report


def bench(args: argparse.Namespace) -> int:
    """Measure, print the table, write what was asked for."""
    if args.compare:
        return compare(args)
    if args.offline:
        return measure_offline(args)
    asked = BenchOptions.of(args)
    out = Outputs(args)
    failures: list[str] = []
    with Interrupts() as interrupts:
        with Display(quiet=args.quiet) as display:
            run = BenchRun(args, asked, display, interrupts, out)
            with interrupts.kept(failures, lambda: bool(run.points)):
                run.carry_out()
        if run.report is not None and run.points:
            print_report(run.report)
            failures += out.write(run.report, asked.objective)
        elif interrupts.asked():
            failures = ["interrupted before anything was measured: there is no report"]
    return exit_code(interrupts, [*failures, *run.not_measured], run.missed)
