"""How do calls follow their functions' schemas, where the model decides whether it calls?

Text is free, and no mask is computed for it. From what a call begins with in the family's own
notation a grammar says what may follow, up to the call's end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wherry.llm.engine.constraint import OBJECT, Matcher
from wherry.llm.engine.schemas import closed, loosened
from wherry.llm.formats.call_writer import CallGrammar, Strict

#: Tokens that may hold what a call begins with.
LAST_TOKENS: Final = 48
#: The schema of a function without parameters.
_NOTHING: Final[dict[str, Any]] = {**OBJECT, "properties": {}, "additionalProperties": False}


def are_strict(tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the arguments of one of these must follow its schema."""
    return any(_function(tool).get("strict") is True for tool in tools)


def strict_functions(tools: Sequence[Mapping[str, Any]]) -> Strict:
    """The schemas of what may be called, by name; None of those that are not strict."""
    functions = [_function(tool) for tool in tools]
    return {
        str(one["name"]): closed(loosened(dict(one.get("parameters") or _NOTHING))[0])
        if one.get("strict") is True
        else None
        for one in functions
        if one.get("name")
    }


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, Mapping) else {}


class FormedCalls:
    """A constraint of the calls in an answer. `form` is the compiled `grammar`. Behind
    `thought_end`, a mark, the answer begins once more: thoughts may end without one, so calls
    within them have the grammar, too."""

    def __init__(
        self,
        form: Matcher,
        grammar: CallGrammar,
        decode: Callable[[Sequence[int]], str],
        encode: Callable[[str], Sequence[int]],
        thought_end: str = "",
    ) -> None:
        self._form = form
        self._grammar = grammar
        self._decode, self._encode = decode, encode
        self._thought_end = thought_end
        #: The grammar of calls that have begun.
        self._calls: Matcher | None = None
        #: The text's last tokens, and whether these are all tokens of the answer.
        self._tokens: list[int] = []
        self._whole = True

    def mask(self, allowed: npt.NDArray[np.bool_]) -> None:
        if self._calls is not None:
            self._calls.mask(allowed)

    def accept(self, token: int) -> None:
        if self._calls is not None:
            self._calls.accept(token)
            if self._calls.ended:
                self._calls = None
            return
        self._whole = self._whole and len(self._tokens) < LAST_TOKENS
        self._tokens = [*self._tokens[1 - LAST_TOKENS :], token]
        text = self._decode(self._tokens)
        begun = self._grammar.anywhere.search(text)
        if begun is not None:
            self._begin(text[begun.start() :])
            return
        _, ended, behind = text.rpartition(self._thought_end or "\0")
        if self._whole or ended:
            answer = behind.lstrip()
            if self._grammar.first.match(answer):
                self._begin(answer)

    def problem(self) -> str:
        """As that of the grammar."""
        return "" if self._calls is None else self._calls.problem()

    def copy(self) -> FormedCalls:
        """The same for another answer, before it has begun."""
        encoding = self._decode, self._encode
        return FormedCalls(self._form, self._grammar, *encoding, self._thought_end)

    def _begin(self, text: str) -> None:
        """Have calls begin with this text, unless it cannot be their beginning: it is free then."""
        self._tokens, self._whole = [], False
        calls = self._form.copy()
        if calls.accepts(self._encode(text)):
            self._calls = None if calls.ended else calls
