"""How is a chat template kept from running for ever?

It is the checkpoint's own program. Jinja's sandbox keeps it from the system and from ranges of more
than 100,000, but not from a loop in a loop. So its lines are counted while it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

#: A conversation of 1,000 messages with tools takes some 50,000 lines; these take half a second.
MOST_LINES: Final = 1_000_000
#: What jinja calls a template that came as a text.
_FILE: Final = "<template>"


class TooManyTurns(Exception):
    """A template has run more lines than it may."""


@contextmanager
def limited(most_lines: int = MOST_LINES) -> Iterator[None]:
    """Let templates of this thread run `most_lines` lines together; then TooManyTurns.

    Costs some 0.2 us a line.
    """
    left = most_lines

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise TooManyTurns(f"it runs more than {most_lines} lines")
        return line

    def call(frame: FrameType, event: str, _: Any) -> Any:
        return line if frame.f_code.co_filename == _FILE else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(before)
