"""Which part of a library's error about a file may be shown to a client?"""

from __future__ import annotations

import re
from typing import Final

_PLACE: Final = re.compile(r"(?<![\w.])~?/[^\s'\":,]{2,}")


def brief(error: BaseException) -> str:
    """The type and the first two lines of `error`, at most 200 characters, without file paths."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = _PLACE.sub("...", " ".join(lines[:2]))
    return f"{type(error).__name__}: {text[:200]}"
