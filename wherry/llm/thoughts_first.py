"""How does a model think before an answer that must have a form?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wherry.llm.constraint import Matcher

#: Tokens that may hold the end's mark and the beginning of what follows.
LAST_TOKENS: Final = 32


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """The marks around thoughts. `begin`: the token that begins them; None: the prompt has begun
    them already."""

    begin: int | None
    end: str


class ThoughtsFirst:
    """A constraint that begins after the thoughts, if there are any. They end with their mark: the
    end-of-text token `last` may not stand in them."""

    def __init__(
        self,
        form: Matcher,
        marks: ThoughtMarks,
        decode: Callable[[Sequence[int]], str],
        encode: Callable[[str], Sequence[int]],
        last: int | None,
    ) -> None:
        self._form = form
        self._marks = marks
        self._decode, self._encode, self._last = decode, encode, last
        self._thinking = marks.begin is None
        self._may_begin = not self._thinking
        self._tokens: list[int] = []

    def mask(self, logits: Any) -> None:
        if self._thinking:
            if self._last is not None:
                logits[self._last] = float("-inf")
            return
        begin = self._marks.begin if self._may_begin else None
        kept = None if begin is None else logits[begin].clone()
        self._form.mask(logits)
        if begin is not None:
            logits[begin] = kept

    def accept(self, token: int) -> None:
        if self._thinking:
            self._think(token)
            return
        may_begin, self._may_begin = self._may_begin, False
        if may_begin and token == self._marks.begin:
            self._thinking = True
        else:
            self._form.accept(token)

    def problem(self) -> str:
        """As that of the form."""
        return self._form.problem()

    def copy(self) -> ThoughtsFirst:
        """The same for another answer, before it has begun."""
        return ThoughtsFirst(self._form.copy(), self._marks, self._decode, self._encode, self._last)

    def _think(self, token: int) -> None:
        self._tokens = [*self._tokens[1 - LAST_TOKENS :], token]
        _, ended, behind = self._decode(self._tokens).partition(self._marks.end)
        if ended:
            self._thinking = False
            for further in self._encode(behind.lstrip()) if behind.strip() else ():
                self._form.accept(further)
