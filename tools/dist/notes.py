"""Is everything said that a release has to say?

    python -m tools.dist.notes    prints what CHANGELOG.md says of this version
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.dist.build import ROOT
from wherry import __version__

#: Of changes/, what is not a fragment.
_STAY = {"README.md", "template.md"}


def unready(root: Path, tag: str, version: str) -> Iterator[str]:
    """What is to be done before this tag is the release of this version."""
    if tag != f"v{version}":
        yield f"the tag is {tag}, and wherry/__init__.py says {version}: the tag is v{version}"
    changelog = (root / "CHANGELOG.md").read_text()
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.M):
        yield f"CHANGELOG.md has no page of {version} with its date: towncrier build makes it"
    left = sorted(path.name for path in (root / "changes").glob("*.md") if path.name not in _STAY)
    if left:
        yield f"changes/ still has {', '.join(left)}: towncrier build takes them into CHANGELOG.md"


def page_of(root: Path, version: str) -> str:
    """What CHANGELOG.md says of this version, without its heading."""
    changelog = (root / "CHANGELOG.md").read_text()
    found = re.search(rf"^## {re.escape(version)} .*?\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    return found[1].strip() if found else ""


if __name__ == "__main__":
    sys.stdout.write(f"{page_of(ROOT, __version__)}\n")
