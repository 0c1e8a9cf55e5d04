"""How does `wherry bench` choose what to do, and what does it tell its caller?"""

from __future__ import annotations

import argparse

from wherry.cli.bench.compare import compare
from wherry.cli.bench.exit_code import exit_code
from wherry.cli.bench.interrupts import Interrupts
from wherry.cli.bench.offline import measure_offline
from wherry.cli.bench.options import BenchOptions
from wherry.cli.bench.outputs import Outputs
from wherry.cli.bench.run import BenchRun
from wherry.loadtest.show import Display, print_report
from wherry.values.errors import ConfigError, WherryError


def bench(args: argparse.Namespace) -> int:
    """Measure, print the table, write what was asked for."""
    if args.compare:
        return compare(args)
    if args.offline:
        return measure_offline(args)
    asked = BenchOptions.of(args)
    out = Outputs(args)
    failure = ""
    with Interrupts() as interrupts:
        with Display(quiet=args.quiet) as display:
            run = BenchRun(args, asked, display, interrupts, out)
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
