"""What does a request ask: which tokens, and what must the answer look like?

Pure of the engine's loop: a long text or a large schema takes a while, and may be read in a thread
of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wherry.llm.constraint import AnswerForm, Grammars, Matcher
from wherry.llm.tokenizer import Tokenizer
from wherry.values.errors import InvalidRequest

#: Characters of a text that is read at once: the engine waits for it some 20 ms at most.
BRIEF: Final = 4096


@dataclass(frozen=True, slots=True)
class Question:
    """A request, read."""

    tokens: list[int]
    constraint: Matcher | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came. One of the first three says what is asked."""

    prompt: str = ""
    messages: Sequence[Mapping[str, Any]] = ()
    token_ids: Sequence[int] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    #: For the chat template.
    template: Mapping[str, Any] | None = None
    special: bool = True
    constraint: AnswerForm | None = None
    #: May it be the empty text?
    may_be_empty: bool = False

    @property
    def is_brief(self) -> bool:
        """Takes reading it no longer than a step of the engine?"""
        if self.constraint is not None or len(self.prompt) > BRIEF:
            return False
        return not self.messages or len(str(self.messages)) + len(str(self.tools)) <= BRIEF


class QuestionReader:
    """Reads what is asked of one model. InvalidRequest says what is wrong with it."""

    def __init__(self, model: str, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self.grammars = Grammars(model, tokenizer, vocabulary)

    def read(self, asked: Asked) -> Question:
        """Safe from any thread, one at a time."""
        tokens = self._tokens(asked)
        if asked.constraint is None:
            return Question(tokens)
        return Question(tokens, self.grammars.constraint(asked.constraint))

    def _tokens(self, asked: Asked) -> list[int]:
        given = [bool(asked.prompt), bool(asked.messages), bool(asked.token_ids)]
        if sum(given) != 1 and not (asked.may_be_empty and not any(given)):
            raise InvalidRequest(
                f"model {self._model!r}: give one of prompt, messages and token_ids",
                field="prompt",
            )
        if asked.messages:
            return self._tokenizer.encode_chat(
                asked.messages, tools=asked.tools, options=asked.template
            )
        if asked.token_ids:
            return list(asked.token_ids)
        return self._tokenizer.encode(asked.prompt, special=asked.special)
