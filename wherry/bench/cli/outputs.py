"""Which files does `wherry bench` write, and can they be written?"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wherry.bench import continuous
from wherry.bench import report as reports
from wherry.bench.report import Report
from wherry.bench.search import Objective
from wherry.bench.session import Measured
from wherry.core.api import ConfigError

#: What stands in each file that is written at the end, by its flag.
CONTENTS: Final[Mapping[str, Callable[[Report, Objective], str]]] = {
    "json": lambda report, _: reports.encode(report).decode(),
    "html": lambda report, _: reports.page(report),
    "csv": lambda report, _: reports.as_csv(report),
    "junit": continuous.junit,
    "summary": continuous.summary,
}
OUTPUTS: Final = (*CONTENTS, "jsonl")
#: Those that go behind what the file has: other steps write into it, too.
APPENDED: Final = ("summary",)


@dataclass(slots=True)
class Outputs:
    """The files that were asked for. ConfigError, before anything is measured, for one that cannot
    be written."""

    args: argparse.Namespace
    _begun: bool = False

    def __post_init__(self) -> None:
        if self.args.summary == "":
            self.args.summary = os.environ.get("GITHUB_STEP_SUMMARY")
            if not self.args.summary:
                raise ConfigError("--summary: name a file, or set GITHUB_STEP_SUMMARY")
        for name in OUTPUTS:
            if path := getattr(self.args, name):
                _can_be_written(f"--{name} {path}", Path(path).absolute())

    def requests(self, measured: Measured) -> None:
        """Append a line for each request of a run to the file of --jsonl."""
        if not self.args.jsonl:
            return
        with open(self.args.jsonl, "ab" if self._begun else "wb") as file:
            self._begun = True
            for line in reports.jsonl(measured.table, measured.begin, measured.point.settings):
                file.write(line + b"\n")

    def write(self, report: Report, objective: Objective) -> list[str]:
        """Write all of them, even if one cannot be. Returns the problems."""
        problems = []
        for name, content in CONTENTS.items():
            path = getattr(self.args, name)
            try:
                if path:
                    with open(path, "a" if name in APPENDED else "w", encoding="utf-8") as file:
                        file.write(content(report, objective))
            except OSError as error:
                problems.append(f"--{name} {path}: {error}")
        return problems


def _can_be_written(what: str, path: Path) -> None:
    if not path.parent.is_dir():
        raise ConfigError(f"{what}: there is no such folder")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{what}: this cannot be written")
