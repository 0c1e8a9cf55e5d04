"""Which whole number does a text begin with, as C's atoi and C++'s stol read it?"""

from __future__ import annotations

import re
from typing import Final

_WHOLE: Final = re.compile(r"[ \t\n\v\f\r]*([+-]?)0*([0-9]*)", re.ASCII)
#: More than any of 64 bits has.
_MOST_DIGITS: Final = 20


def number_before(text: str) -> int | None:
    """The number; None if there is none. Of one with more than 20 digits the first 21."""
    found = _WHOLE.match(text)
    if found is None or not text[found.start(1) : found.end()].strip("+-"):
        return None
    size = int(found[2][: _MOST_DIGITS + 1] or "0")
    return -size if found[1] == "-" else size
