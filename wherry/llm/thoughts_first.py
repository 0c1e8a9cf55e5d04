"""How does a model think before an answer that must have a form, or within a budget of tokens?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from wherry.llm.constraint import Matcher
from wherry.llm.strict_calls import FormedCalls

#: Tokens that may hold the end's mark and the beginning of what follows.
LAST_TOKENS: Final = 32


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """The marks around thoughts. `begin`: the token that begins them; None: the prompt has begun
    them already."""

    begin: int | None
    end: str


class ThoughtsFirst:
    """A constraint that begins after the thoughts, if there are any; `form` None: nothing does.

    Thoughts before a form end with their mark: the end-of-text token `last` may not stand in them.
    After `most` tokens of them (None: any number) nothing may follow but their mark.
    """

    def __init__(
        self,
        form: Matcher | FormedCalls | None,
        marks: ThoughtMarks,
        decode: Callable[[Sequence[int]], str],
        encode: Callable[[str], Sequence[int]],
        last: int | None,
        most: int | None = None,
    ) -> None:
        self._form = form
        self._marks = marks
        self._decode, self._encode, self._last = decode, encode, last
        self._thinking = marks.begin is None
        self._may_begin = not self._thinking
        self._tokens: list[int] = []
        self._most = most
        #: The tokens that still end the thoughts, once there were so many.
        self._closing: list[int] = []
        self._close()

    def mask(self, allowed: npt.NDArray[np.bool_]) -> None:
        if self._closing:
            allowed[:] = False
            allowed[self._closing[0]] = True
        elif self._thinking:
            if self._last is not None and self._form is not None:
                allowed[self._last] = False
        elif self._form is not None:
            begin = self._marks.begin if self._may_begin else None
            self._form.mask(allowed)
            if begin is not None:
                allowed[begin] = True

    def accept(self, token: int) -> None:
        if self._thinking:
            self._think(token)
            return
        may_begin, self._may_begin = self._may_begin, False
        if may_begin and token == self._marks.begin:
            self._thinking = True
            self._close()
        elif self._form is not None:
            self._form.accept(token)

    def problem(self) -> str:
        """As that of the form."""
        return "" if self._form is None else self._form.problem()

    def copy(self) -> ThoughtsFirst:
        """The same for another answer, before it has begun."""
        form = None if self._form is None else self._form.copy()
        encoding = self._decode, self._encode
        return ThoughtsFirst(form, self._marks, *encoding, self._last, self._most)

    def _think(self, token: int) -> None:
        if self._most is not None:
            self._most -= not self._closing
        self._closing = self._closing[1:]
        self._tokens = [*self._tokens[1 - LAST_TOKENS :], token]
        _, ended, behind = self._decode(self._tokens).partition(self._marks.end)
        if not ended:
            self._close()
            return
        self._thinking, self._closing = False, []
        if self._form is not None:
            for further in self._encode(behind.lstrip()) if behind.strip() else ():
                self._form.accept(further)

    def _close(self) -> None:
        """Have the thoughts end, if there have been as many as there may be."""
        if self._thinking and self._most == 0 and not self._closing:
            self._closing = list(self._encode(self._marks.end))
