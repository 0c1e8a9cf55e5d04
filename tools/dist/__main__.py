"""What does `make dist` do?

    python -m tools.dist [--into dist] [--no-trials] [--python EXECUTABLE ...] [--json FILE]

It makes the sdist and the wheel, looks into both, and tries the wheel in an empty environment of
each Python that is found. Exits with 1, and says why, if one must not be published.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from tools.dist.build import ROOT, BuildFailed, Made, build
from tools.dist.contents import problems
from tools.dist.trial import DOWNLOAD_MB, FIRST_ANSWER_S, IMPORT_CPU_S, Trial, pythons, try_on
from wherry import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.dist")
    parser.add_argument("--into", type=Path, default=ROOT / "dist")
    parser.add_argument("--no-trials", action="store_true", help="build and look only: no network")
    parser.add_argument("--python", type=Path, nargs="+", metavar="EXECUTABLE")
    parser.add_argument("--json", type=Path, help="what was seen, for a record")
    options = parser.parse_args(arguments)
    console = Console(soft_wrap=True)
    try:
        made = build(ROOT, options.into)
    except BuildFailed as failed:
        console.print(str(failed), markup=False)
        return 1
    for file in made:
        console.print(f"{file.name}  {file.stat().st_size / 1e6:.2f} MB")
    wrong = list(problems(ROOT, *made, __version__))
    trials = [] if options.no_trials else _try(console, made, options.python or [*pythons()])
    wrong += [problem for trial in trials for problem in trial.problems()]
    if trials:
        console.print(_table(trials))
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(trials), indent=1))
    for problem in wrong:
        console.print(f"not to be published: {problem}", markup=False, highlight=False)
    return 1 if wrong else 0


def _try(console: Console, made: Made, executables: Sequence[Path]) -> list[Trial]:
    trials = []
    for python in executables:
        console.print(f"trying {python}", highlight=False)
        trials.append(try_on(python, made.wheel, __version__))
    return trials


def _table(trials: Sequence[Trial]) -> Table:
    table = Table(
        title="In an empty environment",
        caption=f"promised: at most {DOWNLOAD_MB:g} MB, {IMPORT_CPU_S:g} s, {FIRST_ANSWER_S:g} s",
    )
    table.add_column("Python")
    for heading in ("download MB", "installed MB", "import CPU s", "model CPU s", "answer s"):
        table.add_column(heading, justify="right")
    table.add_column("README")
    for trial in trials:
        table.add_row(
            trial.python,
            f"{trial.download_mb:.1f}",
            f"{trial.installed_mb:.0f}",
            f"{trial.import_cpu_s:.3f}",
            f"{trial.model_cpu_s:.3f}",
            f"{trial.first_answer_s:.1f}",
            "FAILED" if trial.failed else trial.readme,
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
