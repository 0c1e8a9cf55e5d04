"""What are the tokens and the constraint of a request?

Independent of the engine's loop: tokenizing a long text or compiling a large schema takes a while
and may run in another thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from wherry.core.api import InvalidRequest
from wherry.llm.engine.constraint import (
    AnswerForm,
    FormedCalls,
    Grammars,
    Matcher,
    TokenBits,
    are_strict,
    strict_functions,
)
from wherry.llm.engine.sampling import Parameters
from wherry.llm.engine.tokenizer import Tokenizer, truncated
from wherry.llm.formats.answer_text import END_TOKENS, ModelStyle
from wherry.llm.formats.families import THOUGHT_FAMILIES, TOOL_FAMILIES

if TYPE_CHECKING:  # imports torch
    from wherry.llm.engine.lora import Adapters, AdapterWeights
from collections.abc import Callable

#: Tokens that may hold the end mark and the beginning of what follows.
LAST_TOKENS: Final = 32


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """The marks around thoughts. `begin`: the token that begins them; None: the prompt has begun
    them already."""

    begin: int | None
    end: str


class ThoughtsFirst:
    """A constraint that begins after the thoughts, if there are any; `form` None: the
    answer is free.

    Thoughts before a form end with their mark: they may not contain the end-of-text token `last`.
    After `most` tokens of them (None: any number) only their mark may follow.
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
        #: The remaining tokens of the end mark, once there were `most` tokens of thoughts.
        self._closing: list[int] = []
        self._close()

    def mask(self, allowed: TokenBits) -> None:
        if self._closing:
            allowed[:] = 0
            _allow(allowed, self._closing[0])
        elif self._thinking:
            if self._last is not None and self._form is not None:
                allowed[self._last >> 3] &= ~(1 << (self._last & 7)) & 0xFF
        elif self._form is not None:
            begin = self._marks.begin if self._may_begin else None
            self._form.mask(allowed)
            if begin is not None:
                _allow(allowed, begin)

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
        return "" if self._form is None else self._form.problem()

    def copy(self) -> ThoughtsFirst:
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
        """Make the thoughts end if no more tokens of them are allowed."""
        if self._thinking and self._most == 0 and not self._closing:
            self._closing = list(self._encode(self._marks.end))


def _allow(allowed: TokenBits, token: int) -> None:
    allowed[token >> 3] |= 1 << (token & 7)


#: What an answer must look like.
Form = Matcher | FormedCalls | ThoughtsFirst
#: Characters of a prompt that is tokenized in the engine's thread: at most about 20 ms.
SHORT_CHARACTERS: Final = 4096


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    tokens: list[int]
    constraint: Form | None = None
    #: Its adapter's key, and the weights if they are not loaded yet.
    adapter: AdapterWeights | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request's prompt as received, in one of its three forms: `prompt`, `messages`,
    `token_ids`."""

    prompt: str = ""
    messages: Sequence[Mapping[str, Any]] = ()
    token_ids: Sequence[int] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    #: Variables for the chat template.
    template: Mapping[str, Any] | None = None
    parameters: Parameters = Parameters()  # noqa: RUF009 - frozen
    #: The folder of the adapter.
    adapter: Path | None = None
    #: Number of tokens to keep; None: all.
    truncate: int | None = None
    #: Whether all three forms may be missing.
    may_be_empty: bool = False

    def checked(self, model: str) -> Self:
        """Return self. InvalidRequest unless exactly one of the three forms is set."""
        forms = [bool(self.prompt), bool(self.messages), bool(self.token_ids)].count(True)
        if forms != 1 and not (forms == 0 and self.may_be_empty):
            problem = f"model {model!r}: give one of prompt, messages and token_ids"
            raise InvalidRequest(problem, field="prompt")
        return self

    @property
    def is_short(self) -> bool:
        """Whether reading it takes no longer than a step of the engine."""
        if self.adapter is not None:
            return False
        if self.parameters.constraint is not None or len(self.prompt) > SHORT_CHARACTERS:
            return False
        if are_strict(self.tools):
            return False
        return not self.messages or _is_short([self.messages, self.tools])


def _is_short(values: list[Any]) -> bool:
    """Whether it has few characters and members; counting stops when it has many."""
    count = 0
    while values and count <= SHORT_CHARACTERS:
        value = values.pop()
        count += len(value) if isinstance(value, Sized) else 1
        if isinstance(value, Mapping):
            values += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            values += value
    return count <= SHORT_CHARACTERS


class PromptReader:
    def __init__(
        self,
        model: str,
        tokenizer: Tokenizer,
        vocabulary: int,
        adapters: Adapters | None = None,
        style: ModelStyle | None = None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._adapters = adapters
        self._style = style
        self.grammars = Grammars(model, tokenizer, vocabulary)

    def read(self, unread: Prompt) -> TokenizedPrompt:
        """Tokenize the prompt, compile the constraint, and read the adapter. May take seconds.
        InvalidRequest names what is wrong. Any thread, but one call at a time."""
        tokens = tokens_of(unread.checked(self._model), self._tokenizer)
        constraint: Form | None = None
        adapter = None
        form = self._form(unread)
        most = unread.parameters.thinking_budget
        if most is not None or (isinstance(form, Matcher) and unread.messages):
            constraint = self._behind_thoughts(form, tokens, most)
        else:
            constraint = form
        if unread.adapter is not None and self._adapters is not None:
            adapter = self._adapters.read(unread.adapter)
        return TokenizedPrompt(tokens, constraint, adapter)

    def _form(self, unread: Prompt) -> Matcher | FormedCalls | None:
        """The form of the answer, or of the calls in it, if the model makes any."""
        if (form := unread.parameters.constraint) is not None:
            return self.grammars.constraint(form)
        if self._style is None or not unread.messages or not are_strict(unread.tools):
            return None
        family, words = TOOL_FAMILIES.get(self._style.tools), self._tokenizer
        functions = strict_functions(unread.tools)
        try:
            grammar = family.grammar(functions, self.grammars.marks()) if family else None
        except ValueError as error:
            text = f"model {self._model!r}: tools: {error}"
            raise InvalidRequest(text, field="tools") from None
        if grammar is None:
            return None
        calls = self.grammars.constraint(AnswerForm(grammar=grammar.lark), "tools")
        decode = partial(words.decode, skip_special=False)
        thoughts = THOUGHT_FAMILIES.get(self._style.thoughts)
        end = thoughts.format.end if thoughts else ""
        return FormedCalls(calls, grammar, decode, partial(words.encode, special=False), end)

    def _behind_thoughts(
        self, form: Matcher | FormedCalls | None, tokens: Sequence[int], most: int | None
    ) -> Form | None:
        words, style = self._tokenizer, self._style
        decode = partial(words.decode, skip_special=False)
        end = decode(tokens[-END_TOKENS:])
        found = style.thoughts_of(end) if style else None
        begin = words.encode(found[0], special=False) if found is not None and found[0] else []
        # A mark of several tokens cannot be combined with a form.
        if found is None or not found[1] or len(begin) > 1:
            if most is not None and not (style and style.has_stopped_thinking(end)):
                problem = "the marks around this model's thoughts are not known, or not one token"
                text = f"model {self._model!r}: thinking_budget: {problem}"
                raise InvalidRequest(text, field="thinking_budget")
            return form
        marks = ThoughtMarks(begin[0] if begin else None, found[1])
        encode = partial(words.encode, special=False)
        return ThoughtsFirst(form, marks, decode, encode, words.end, most)


def tokens_of(unread: Prompt, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a prompt in any of its forms, truncated if the request sets that."""
    side, special = unread.parameters.truncation_side, unread.parameters.add_special_tokens
    if unread.messages:
        tokens = tokenizer.encode_chat(
            unread.messages,
            tools=unread.tools,
            options=unread.template,
            special=bool(special),
            keep=unread.truncate,
            side=side,
        )
    elif unread.token_ids:
        tokens = list(unread.token_ids)
    else:
        special = special is not False
        tokens = tokenizer.encode(unread.prompt, special=special, keep=unread.truncate, side=side)
    return tokens if unread.truncate is None else truncated(tokens, unread.truncate, side)
