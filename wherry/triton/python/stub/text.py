"""How are text and log records encoded for the server?"""

from __future__ import annotations

import json
import os
from typing import Any

#: Begins a line of the worker's output that is a log record.
_LOG_MARK = b"\x1e"


def clean(text: str) -> str:
    """The text without lone surrogates, which UTF-8 cannot encode."""
    text = str(text)
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def sent(path: str) -> str:
    """A path as JSON in UTF-8 can carry it; `received` gives it back. Names of files need not be
    UTF-8."""
    return path.encode("utf-8", "surrogatepass").decode("latin-1")


def received(path: str) -> str:
    return path.encode("latin-1").decode("utf-8", "surrogatepass")


def write_record(record: dict[str, Any]) -> None:
    os.write(2, _LOG_MARK + json.dumps(record).encode() + b"\n")
