"""Which text do the tokens so far make, and how much of it may be shown already?

A token may end within a character, and a stop text may begin within a token: what could still
turn out to be part of one is held back until it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

#: A character has at most four bytes, a token at least one: a longer wait brings nothing.
_LONGEST_CHARACTER = 4
_BROKEN = "\ufffd"


class Detokenizer:
    """Tokens in, text out, in pieces that never end within a character.

    What a token looks like depends on its neighbours (a space, a joined accent), so the tokens
    since the last piece are decoded together with some before them.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        #: Tokens that were shown and are context for the next, and those that were not.
        self._shown = list(context[-_LONGEST_CHARACTER:])
        self._shown_text = decode(self._shown) if self._shown else ""
        self._held: list[int] = []

    def push(self, token: int) -> str:
        """The text that is complete with this token; "" if it is not."""
        self._held.append(token)
        text = self._decode(self._shown + self._held)
        if text.endswith(_BROKEN) and len(self._held) < _LONGEST_CHARACTER:
            return ""
        return self._show(text)

    def flush(self) -> str:
        """The rest, at the end: broken characters as U+FFFD."""
        return self._show(self._decode(self._shown + self._held)) if self._held else ""

    def _show(self, text: str) -> str:
        new = text[len(self._shown_text) :]
        if new:
            self._shown, self._held = self._held, []
            self._shown_text = self._decode(self._shown)
        return new


class StopTexts:
    """Finds which of several texts is complete first, across the borders of the pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        #: The one that was found.
        self.found: str | None = None

    def push(self, piece: str) -> str:
        """What may be shown. After `found` is set nothing follows."""
        if not self._stops:
            return piece
        text = self._held + piece
        complete = [stop for stop in self._stops if stop in text]
        if complete:
            # Had the pieces been smaller, the one that is complete first would have ended it.
            self.found = min(complete, key=lambda stop: (text.find(stop) + len(stop), -len(stop)))
            self._held = ""
            return text[: text.find(self.found)]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back in vain."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text could begin the stop text?"""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[len(text) - length :]):
            return length
    return 0
