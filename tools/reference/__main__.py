"""What writes the pages of docs/reference that come from the code?

python -m tools.reference
"""

from __future__ import annotations

from collections.abc import Callable

from tools.reference.commands import commands_page
from tools.reference.definitions import ROOT
from tools.reference.python import modules_page, python_page

PAGES: dict[str, Callable[[], str]] = {
    "cli.md": commands_page,
    "python.md": python_page,
    "python-modules.md": modules_page,
}


def main() -> None:
    for name, page in PAGES.items():
        (ROOT / "docs/reference" / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
