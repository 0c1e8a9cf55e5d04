"""How is a long text split into pieces for a model, at sentences or words?"""

from __future__ import annotations

import re

#: Where to split, best first: after a paragraph, a sentence (without a space in Chinese), a clause,
#: a word.
BORDERS = (
    re.compile(r"\n\s*\n\s*"),
    re.compile(r"[.!?…]+[\"')\]]*\s+|[。！？]+[”’」』]*\s*|\n+"),
    re.compile(r"[,;:]\s+|[，；：、]"),
    re.compile(r"\s+"),
)


def split_text(text: str, max_chars: int = 300) -> list[str]:
    """Split `text` into pieces of at most `max_chars` characters, at the best boundary in reach.

        wherry.split_text("One sentence. Another.", 15)  # -> ['One sentence. ', 'Another.']

    The pieces joined are the text. White space alone joins a neighbouring piece where it fits.
    Without a boundary a piece ends after `max_chars` characters. An empty text is one empty piece.
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
    """Where to split `window`, given the character that follows it."""
    for border in BORDERS:
        ends = [match.end() for match in border.finditer(window)]
        if following.isspace() and window[-1:].strip() and border is BORDERS[-1]:
            return len(window)  # the window ends at a word's end
        # A boundary in the first half would make needlessly short pieces.
        if ends and (ends[-1] > len(window) // 2 or border is BORDERS[-1]):
            return ends[-1]
    return len(window)
