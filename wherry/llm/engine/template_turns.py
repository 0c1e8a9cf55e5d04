"""How is a chat template kept from running without end?

A chat template is a program from the checkpoint. Jinja's sandbox denies it the system and ranges
above 100,000, but allows nested loops. So the lines it runs are counted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

#: A conversation of 1,000 messages with tools runs about 50,000 lines. A million lines take 0.5 s.
MOST_LINES: Final = 1_000_000
#: The file name that Jinja gives a template compiled from a string.
_FILE: Final = "<template>"


class TooManyTurns(Exception):
    """A template ran more lines than allowed."""


@contextmanager
def limited(most_lines: int = MOST_LINES) -> Iterator[None]:
    """Raise TooManyTurns when the templates rendered in this block run more than `most_lines`
    lines.

    Applies to the calling thread. Costs about 0.2 us for each line.
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
