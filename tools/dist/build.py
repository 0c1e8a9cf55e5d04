"""How are the files made that are published?

The sdist from the tree, the wheel from the sdist: what somebody else builds from the sdist is what
is published. Hatchling writes the same bytes for the same sources, whatever the day.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Made(NamedTuple):
    sdist: Path
    wheel: Path


class BuildFailed(Exception):
    """Hatchling could not build; the text is what it printed."""


def build(source: Path, into: Path) -> Made:
    """An sdist of this tree, and a wheel of that sdist. What `into` held before is removed."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    sdist = _hatchling(source, into, "sdist", "*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        return Made(sdist, _hatchling(unpacked, into, "wheel", "*.whl"))


def _hatchling(source: Path, into: Path, target: str, pattern: str) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into.resolve())],
        cwd=source,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BuildFailed(done.stdout)
    (made,) = into.glob(pattern)
    return made
