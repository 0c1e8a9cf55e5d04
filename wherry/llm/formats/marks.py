"""Where may a mark begin in a text of which more is to come?"""

from __future__ import annotations


def partial(text: str, mark: str) -> int:
    """The length of the text's longest end that a mark begins with, but is not."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
