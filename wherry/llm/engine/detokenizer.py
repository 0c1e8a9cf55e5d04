"""Which text do the tokens so far make, and which part of it may be sent?

A token may end within a character, and a stop string may begin within a token. Text that could
still change or become part of a stop string is held back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

#: A UTF-8 character has at most four bytes and a token at least one: waiting longer cannot help.
_LONGEST_CHARACTER = 4
_BROKEN = "\ufffd"


class Detokenizer:
    """Turns tokens into text, in pieces that never end within a character.

    The text of a token depends on its neighbours (a space, a combining accent), so new tokens are
    decoded together with some tokens before them.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        #: Tokens whose text was returned, decoded again as context for the next ones, and tokens
        #: whose text was not.
        self._shown = list(context[-_LONGEST_CHARACTER:])
        self._shown_text = decode(self._shown) if self._shown else ""
        self._held: list[int] = []
        #: The last tokens behind the shown ones that had no text, as special tokens that are
        #: skipped: any number of them may come.
        self._silent: list[int] = []

    def push(self, token: int) -> str:
        """Add a token. The text that is complete now; "" if a character is still incomplete."""
        self._held.append(token)
        text = self._decode(self._shown + self._silent + self._held)
        if text.endswith(_BROKEN) and len(self._held) < _LONGEST_CHARACTER:
            return ""
        return self._show(text)

    def flush(self) -> str:
        """The remaining text at the end; incomplete characters become U+FFFD."""
        if not self._held:
            return ""
        return self._show(self._decode(self._shown + self._silent + self._held))

    def _show(self, text: str) -> str:
        new = text[len(self._shown_text) :]
        behind, self._held = self._silent + self._held, []
        if new:
            self._shown, self._silent = behind, []
            self._shown_text = self._decode(self._shown)
        else:
            self._silent = behind[-_LONGEST_CHARACTER:]
        return new


class StopTexts:
    """Finds the first of several stop strings in a text that arrives in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        #: The stop string that was found.
        self.found: str | None = None

    def push(self, piece: str, *, may_stop: bool = True) -> str:
        """Add a piece of text. The text that can be sent; nothing more after `found` is set.

        Without `may_stop` no stop string ends in this piece; one may begin there.
        """
        if not self._stops:
            return piece
        text = self._held + piece
        if may_stop and (found := self._first_end(text)) is not None:
            end, self.found = found
            self._held = ""
            return text[: end - len(self.found)]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text held back, at the end of the generation."""
        held, self._held = self._held, ""
        return held

    def _first_end(self, text: str) -> tuple[int, str] | None:
        """The end of the stop string that ends first behind what was held back, and the longest of
        those: which one is found must not depend on the pieces."""
        ends = []
        for stop in self._stops:
            begin = text.find(stop, max(0, len(self._held) + 1 - len(stop)))
            if begin >= 0:
                ends.append((begin + len(stop), stop))
        return min(ends, key=lambda end: (end[0], -len(end[1])), default=None)


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[len(text) - length :]):
            return length
    return 0
