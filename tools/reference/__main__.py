"""What writes the pages of docs/reference that come from the code?

python -m tools.reference
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tools.reference.commands import commands_page
from tools.reference.definitions import ROOT
from tools.reference.python import python_page
from tools.reference.tables import pages_with_tables, with_tables

FOLDER = ROOT / "docs/reference"


def _with_tables(name: str) -> str:
    return with_tables((FOLDER / name).read_text(encoding="utf-8"))


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": commands_page,
    "python.md": python_page,
    **{name: partial(_with_tables, name) for name in pages_with_tables()},
}


def main() -> None:
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
