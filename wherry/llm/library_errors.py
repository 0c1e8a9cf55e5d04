"""What of a library's error about a foreign file may be shown?"""

from __future__ import annotations

import re
from typing import Final

_PLACE: Final = re.compile(r"(?<![\w.])~?/[^\s'\":,]{2,}")


def brief(error: BaseException) -> str:
    """What a library said about a file, without the places where it looked for it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = _PLACE.sub("...", " ".join(lines[:2]))
    return f"{type(error).__name__}: {said[:200]}"
