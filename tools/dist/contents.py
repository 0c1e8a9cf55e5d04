"""What is in the files that are published, and what is wrong with that?"""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

#: The wheel alone, without what it needs.
WHEEL_BYTES = 2_000_000

#: What would tell that a file was made by running something in the tree.
LEFTOVERS = (".pyc", ".pyo", ".orig", ".rej", ".so", ".whl", ".log")


def tracked(root: Path) -> set[str] | None:
    """The files that git has of this tree; None where it is not a checkout."""
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False
    )
    return set(done.stdout.split("\0")) - {""} if done.returncode == 0 else None


def problems(root: Path, sdist: Path, wheel: Path, version: str) -> Iterator[str]:
    """What keeps these from being published, each with its remedy."""
    known = tracked(root)
    in_wheel, metadata = read_wheel(wheel)
    in_sdist = read_sdist(sdist)
    yield from _of_wheel(in_wheel, version)
    yield from _of_metadata(metadata, version)
    for name in sorted(in_sdist):
        if name.endswith(LEFTOVERS) or "__pycache__" in name:
            yield f"{sdist.name} has {name}: name it in .gitignore"
    if wheel.stat().st_size > WHEEL_BYTES:
        yield f"{wheel.name} has {wheel.stat().st_size} bytes, more than {WHEEL_BYTES}"
    if known is None:
        return
    for name in sorted(in_sdist - known - {"PKG-INFO"}):
        yield f"{sdist.name} has {name}, which git has not: commit it, or remove it"
    for name in sorted(name for name in known if name.startswith("wherry/")):
        if name not in in_wheel:
            yield f"{wheel.name} lacks {name}: see tool.hatch.build in pyproject.toml"


def read_wheel(wheel: Path) -> tuple[set[str], Message]:
    """The names of the files in it, and its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (path,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        return names, Parser().parsestr(archive.read(path).decode())


def read_sdist(sdist: Path) -> set[str]:
    """The names of the files in it, without the folder that they are all in."""
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive if member.isfile()}


def _of_wheel(names: set[str], version: str) -> Iterator[str]:
    about = f"wherry-{version}.dist-info"
    for name in sorted(names):
        if not name.startswith(("wherry/", f"{about}/")):
            yield f"the wheel has {name}: only wherry/ is installed"
        elif name.endswith(LEFTOVERS) or "__pycache__" in name:
            yield f"the wheel has {name}, which running the code has left"
    for name in (f"{about}/licenses/LICENSE", f"{about}/entry_points.txt", "wherry/py.typed"):
        if name not in names:
            yield f"the wheel lacks {name}"


def _of_metadata(metadata: Message, version: str) -> Iterator[str]:
    wanted = {"Name": "wherry", "Version": version, "Description-Content-Type": "text/markdown"}
    for field, value in wanted.items():
        if metadata[field] != value:
            yield f"the wheel's metadata says {field}: {metadata[field]}, and not {value}"
    for field in ("Summary", "License-Expression", "License-File", "Requires-Python"):
        if not metadata[field]:
            yield f"the wheel's metadata has no {field}"
    for need in metadata.get_all("Requires-Dist", []):
        if " @ " in need:
            yield f"{need}: an index takes no package that needs one from an address"
