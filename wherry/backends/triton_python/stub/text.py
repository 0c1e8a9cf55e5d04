"""Which text can be sent, and how does a record of the log go out?"""

from __future__ import annotations

import json
import os
from typing import Any

#: Begins a line of the worker's output that is a record of its log.
_LOG_MARK = b"\x1e"


def clean(text: str) -> str:
    """Text that can be sent: no half of a surrogate pair."""
    return str(text).encode("utf-8", "replace").decode("utf-8")


def write_record(record: dict[str, Any]) -> None:
    """A record of the log among what the worker prints."""
    os.write(2, _LOG_MARK + json.dumps(record).encode() + b"\n")
