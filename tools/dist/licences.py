"""Under which licences is what is published, and what it needs?

    python -m tools.dist.licences [EXTRA ...]

Two tables: the files here that are not, or not only, wherry's own, as REUSE.toml says; and the
packages that wherry needs, with these extras, as their metadata in this environment says.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rich.console import Console
from rich.table import Table

from tools.dist.build import ROOT

UNKNOWN = "not said"


class OfOthers(NamedTuple):
    path: str
    licence: str
    owners: str


class Needed(NamedTuple):
    package: str
    version: str
    licence: str


def of_others(root: Path = ROOT) -> Iterator[OfOthers]:
    """The files of REUSE.toml but those that are ours like any other."""
    for entry in tomllib.loads((root / "REUSE.toml").read_text())["annotations"]:
        paths, owners = (
            [entry[key]] if isinstance(entry[key], str) else entry[key]
            for key in ("path", "SPDX-FileCopyrightText")
        )
        if paths != ["**"]:
            for path in paths:
                yield OfOthers(path, entry["SPDX-License-Identifier"], "; ".join(owners))


def needed(extras: Iterable[str] = (), package: str = "wherry") -> list[Needed]:
    """What is installed because of this package, itself left out, in order of names."""
    found: dict[str, Needed] = {}
    _follow(package, frozenset(extras), found, set())
    return sorted(found.values())


def _follow(
    package: str, extras: frozenset[str], found: dict[str, Needed], seen: set[tuple[str, str]]
) -> None:
    for text in metadata.requires(package) or ():
        need = Requirement(text)
        name = canonicalize_name(need.name)
        if name == canonicalize_name(package) or not _applies(need, extras):
            continue
        asked = {(name, extra) for extra in ("", *need.extras)} - seen
        if not asked:
            continue
        seen |= asked
        try:
            about = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            found[name] = Needed(name, "not installed", UNKNOWN)
            continue
        found[name] = Needed(name, about["Version"], licence_of(about))
        _follow(name, frozenset(need.extras), found, seen)


def _applies(need: Requirement, extras: frozenset[str]) -> bool:
    if need.marker is None:
        return True
    return any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def licence_of(about: metadata.PackageMetadata) -> str:
    """An SPDX expression where there is one, else what a classifier or a first line says."""
    def said(field: str) -> list[str]:
        return about.get_all(field) or []

    if expression := said("License-Expression"):
        return expression[0]
    names = [line.rpartition(" :: ")[2] for line in said("Classifier") if "License ::" in line]
    if named := [name for name in names if name != "OSI Approved"]:
        return "; ".join(named)
    first = (said("License") or [""])[0].strip().partition("\n")[0]
    return re.sub(r"\s+", " ", first)[:60] or UNKNOWN


def main(extras: Sequence[str]) -> int:
    console = Console(soft_wrap=True)
    for title, headings, rows in (
        ("Files of others", OfOthers._fields, list(of_others())),
        ("Packages that are needed", Needed._fields, needed(extras)),
    ):
        table = Table(title=title)
        for heading in headings:
            table.add_column(heading, overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
