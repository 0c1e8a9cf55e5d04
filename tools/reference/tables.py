"""What do the tables say that pages of docs/reference have from the code?

A page says where, and the rest of it is written by hand:

    <!-- table of options -->
    <!-- end of table -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import wherry
from tools.reference.definitions import ROOT, defined
from tools.reference.python import cell, fields_table
from wherry.server.options import OPTIONS
from wherry.values import errors

BLOCK: Final = re.compile(r"(<!-- table of (.+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def with_tables(text: str) -> str:
    """A page with its tables as the code has them now."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", text)


def pages_with_tables() -> list[str]:
    """Names of the pages of docs/reference that have such tables."""
    pages = sorted((ROOT / "docs/reference").glob("*.md"))
    return [page.name for page in pages if BLOCK.search(page.read_text(encoding="utf-8"))]


def _table(head: str, rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, re.sub(r"[^|]+", "---", head)]
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _settings() -> str:
    return "".join(fields_table([*defined("wherry", "ModelConfig").fields()])).lstrip()


def _options() -> str:
    def default(value: Any) -> str:
        switch = {True: "on", False: "off"}
        said = switch[value] if isinstance(value, bool) else value
        return "" if value in (None, ()) else f"`{said}`"

    def row(one: Any) -> tuple[str, str, str]:
        keyword = f" (`{one.keyword}=`)" if one.keyword not in ("", one.key) else ""
        return f"`{one.flag}`{keyword}", default(one.default), one.help

    return _table("| flag | default | meaning |", map(row, OPTIONS.values()))


def _errors() -> str:
    def rows() -> Iterator[tuple[str, ...]]:
        for name, error in vars(errors).items():
            if isinstance(error, type) and issubclass(error, errors.WherryError):
                public = f"`wherry.{name}`" if name in wherry.__all__ else f"`{name}`"
                below = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
                codes = str(error.http_status), error.grpc_code, error.reason.lower()
                yield public, below, *codes, error.__doc__ or ""

    return _table("| error | below | HTTP | gRPC | outcome | means |", rows())


TABLES: Final[dict[str, Callable[[], str]]] = {
    "settings of a model": _settings,
    "options": _options,
    "errors": _errors,
}
