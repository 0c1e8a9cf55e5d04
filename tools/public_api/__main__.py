"""What has changed in what is public since the last release?

    python -m tools.public_api [--against REF]    exits with 1 if something was taken away
    python -m tools.public_api --write            at a release: this is what is public now

Compared is with the two files here that the last release has written, or with the sources of a
commit or tag. What was added is fine. docs/reference/public-api.md says what is public.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from tools.public_api.compare import breaks, is_allowed, lost
from tools.public_api.surface import ROOT, names, stubs
from wherry import __version__

STUBS = Path(__file__).parent / "released-python.txt"
NAMES = Path(__file__).parent / "released-names.txt"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.public_api")
    parser.add_argument("--against", metavar="REF", help="a commit or tag; its Python names only")
    parser.add_argument("--write", action="store_true", help="take what is public now as released")
    options = parser.parse_args(arguments)
    if options.write:
        STUBS.write_text(f"{stubs()}\n")
        NAMES.write_text("\n".join([__version__, *names()]) + "\n")
        return 0
    if options.against:
        found = list(breaks(_stubs_at(options.against), stubs()))
    else:
        found = since_the_release()
    for taken in found:
        sys.stdout.write(f"{taken}\n")
    return 1 if found else 0


def since_the_release() -> list[str]:
    """What was taken away since the files here were written; nothing, if the version allows it."""
    released, *known = NAMES.read_text().splitlines()
    if is_allowed(released, __version__):
        return []
    return [
        *breaks(STUBS.read_text(), stubs()),
        *(f"{name}: gone" for name in lost(known, names())),
    ]


def _stubs_at(ref: str) -> str:
    done = subprocess.run(
        ["git", "archive", ref, "wherry"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
            archive.extractall(folder, filter="data")
        return stubs(Path(folder))


if __name__ == "__main__":
    sys.exit(main())
