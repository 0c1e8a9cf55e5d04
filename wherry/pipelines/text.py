"""How is a long text cut into pieces that a model takes, without tearing sentences or words?"""

from __future__ import annotations

import re

#: Where to cut, best first: after a paragraph, a sentence (also without a space after it, as in
#: Chinese), a clause, a word.
BORDERS = (
    re.compile(r"\n\s*\n\s*"),
    re.compile(r"[.!?…]+[\"')\]]*\s+|[。！？]+[”’」』]*\s*|\n+"),
    re.compile(r"[,;:]\s+|[，；：、]"),
    re.compile(r"\s+"),
)


def split_text(text: str, max_chars: int = 300) -> list[str]:
    """Cut `text` into pieces of at most `max_chars` characters, on the best border there is.

    Joined together the pieces are the text; a piece with nothing but white space is part of its
    neighbour where it fits. Where there is no border the cut is hard. An empty text is one empty
    piece.
    """
    if max_chars < 1:
        raise ValueError(f"max_chars must be at least 1, not {max_chars}")
    pieces: list[str] = []
    start = 0
    while len(text) - start > max_chars:
        end = start + _cut(text[start : start + max_chars], text[start + max_chars])
        pieces.append(text[start:end])
        start = end
    pieces.append(text[start:])
    return pieces


def _cut(window: str, following: str) -> int:
    """Where to cut a window of text that is too long by at least the character `following`."""
    for border in BORDERS:
        ends = [match.end() for match in border.finditer(window)]
        if following.isspace() and window[-1:].strip() and border is BORDERS[-1]:
            return len(window)  # the window ends with a word
        # A border in the first half would make pieces that are needlessly short.
        if ends and (ends[-1] > len(window) // 2 or border is BORDERS[-1]):
            return ends[-1]
    return len(window)
