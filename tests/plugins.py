"""Packages with entry points as if they were installed, of fakes and of examples/plugins."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples" / "plugins"


def install(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    group: str,
    entries: Mapping[str, str],
    *,
    name: str = "a-package",
) -> None:
    """A package with these entry points, on the path."""
    about = folder / name / f"{name.replace('-', '_')}-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    lines = [f"[{group}]", *(f"{entry} = {where}" for entry, where in entries.items())]
    (about / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(about.parent)


def install_example(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str) -> None:
    """An example: its entry points are those of its pyproject.toml."""
    project = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())["project"]
    for group, entries in project["entry-points"].items():
        install(monkeypatch, folder, group, entries, name=project["name"])
    monkeypatch.syspath_prepend(EXAMPLES / name)
