"""What does `make dist` do?

    python -m tools.dist [--into dist] [--no-trials] [--python EXECUTABLE ...] [--json FILE]
                         [--sbom build/wherry.cdx.json] [--tag v0.1.0] [--wheel FILE]

It makes the sdist and the wheel, looks into both, and tries the wheel in an empty environment of
each Python that is found; what is installed in the first is described as CycloneDX (`--sbom`). With
`--tag` the changelog and the version must be those of this release. Exits with 1, and says why, if
something must not be published. With `--wheel` that one is tried, and nothing is made.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness import report
from tools.dist.build import ROOT, BuildFailed, build
from tools.dist.contents import problems
from tools.dist.notes import unready
from tools.dist.trial import DOWNLOAD_MB, FIRST_ANSWER_S, IMPORT_CPU_S, Trial, pythons, try_on
from wherry import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.dist")
    parser.add_argument("--into", type=Path, default=ROOT / "dist")
    parser.add_argument("--no-trials", action="store_true", help="build and look only: no network")
    parser.add_argument("--python", type=Path, nargs="+", metavar="EXECUTABLE")
    parser.add_argument("--sbom", type=Path, default=ROOT / "build" / "wherry.cdx.json")
    parser.add_argument("--tag", help="of the release that this is")
    parser.add_argument("--wheel", type=Path, help="to try, instead of making one")
    parser.add_argument("--json", type=Path, help="what was seen, for a record")
    options = parser.parse_args(arguments)
    console = Console(soft_wrap=True)
    wrong: list[str] = []
    wheel: Path = options.wheel
    if wheel is None:
        try:
            made = build(ROOT, options.into)
        except BuildFailed as failed:
            console.print(str(failed), markup=False)
            return 1
        wheel = made.wheel
        for file in made:
            console.print(f"{file.name}  {file.stat().st_size / 1e6:.2f} MB")
        wrong += problems(ROOT, *made, __version__)
    if options.tag:
        wrong += unready(ROOT, options.tag, __version__)
    trials: list[Trial] = []
    if not options.no_trials:
        options.sbom.parent.mkdir(parents=True, exist_ok=True)
        trials = _try(console, wheel, options.python or [*pythons()], options.sbom)
    wrong += [problem for trial in trials for problem in trial.problems()]
    if trials:
        promised = f"promised: {DOWNLOAD_MB:g} MB, {IMPORT_CPU_S:g} s, {FIRST_ANSWER_S:g} s"
        report(f"In an empty environment ({promised})", [*map(_row, trials)], options.json)
    for problem in wrong:
        console.print(f"not to be published: {problem}", markup=False, highlight=False)
    return 1 if wrong else 0


def _try(console: Console, wheel: Path, pythons: Sequence[Path], sbom: Path) -> list[Trial]:
    trials = []
    for number, python in enumerate(pythons):
        console.print(f"trying {python}", highlight=False)
        trials.append(try_on(python, wheel, __version__, None if number else sbom))
    return trials


def _row(trial: Trial) -> dict[str, Any]:
    return {
        "what": f"Python {trial.python}",
        "download MB": round(trial.download_mb, 1),
        "installed MB": round(trial.installed_mb),
        "import, CPU s": round(trial.import_cpu_s, 3),
        "model, CPU s": round(trial.model_cpu_s, 3),
        "first answer, s": round(trial.first_answer_s, 1),
        "pages": "FAILED" if trial.failed else trial.pages,
    }


if __name__ == "__main__":
    sys.exit(main())
