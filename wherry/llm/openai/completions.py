"""What may stand in a request to /v1/completions, and how do a model's pieces become its texts?"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import msgspec

from wherry.core.api import LoadedModel
from wherry.llm.openai.client_request import ClientRequest
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.generation import ChoiceDelta, OpenAIAnswer, TokenUsage
from wherry.llm.openai.generation_request import OF_GENERATIONS, AnswerParts, ModelCall, Request
from wherry.llm.openai.reading import Alternatives, NotDone, Whole

#: Each is a request of its own to the model.
MAX_PROMPTS: Final = 1024


class CompletionRequest(Request):
    """POST /v1/completions."""

    not_done: ClassVar[Mapping[str, NotDone]] = {
        **OF_GENERATIONS,
        "best_of": NotDone((1,), use="n"),
        "suffix": NotDone(("",)),
    }

    prompt: str | list[str | Whole | list[Whole]]
    #: Default: 16; 0 only with `echo`.
    max_tokens: Whole | None = None
    logprobs: Alternatives | None = None
    #: Puts the prompt before the answer.
    echo: bool | None = None
    #: False: without the tokens that the checkpoint puts before a text.
    add_special_tokens: bool | None = None

    def call(self) -> ModelCall:
        texts = self.prompts()
        own = [{"prompt" if isinstance(one, str) else "token_ids": one} for one in texts]
        return ModelCall.of(own, {"parameters": self.sampling()}, "prompt")

    def prompts(self) -> list[str | list[int]]:
        """One or several, each a text or tokens."""
        value: Any = self.prompt
        kinds = {str} if isinstance(value, str) else {type(part) for part in value}
        if len(kinds) > 1:
            raise BadField("prompt", "must hold texts, or tokens, or lists of tokens")
        prompts = [value] if isinstance(value, str) or kinds == {int} else list(value)
        if not prompts or not all(prompts):
            raise BadField("prompt", "is empty")
        if len(prompts) > MAX_PROMPTS:
            raise BadField("prompt", f"holds {len(prompts)} prompts; send at most {MAX_PROMPTS}")
        return prompts

    def sampling(self) -> dict[str, Any]:
        sampling = self.parameters()
        if self.add_special_tokens is False:
            sampling["add_special_tokens"] = False
        if self.max_tokens is not None:
            sampling["max_tokens"] = self.max_tokens
        if self.logprobs is not None:
            sampling["logprobs"] = self.logprobs
        if self.echo and not self.echoes():
            sampling["echo"] = True
        return sampling

    def echoes(self) -> list[str]:
        """The prompts, if they can be echoed here. The model makes the echo of tokens, of truncated
        prompts, with log probabilities, or without an answer."""
        simple = (self.logprobs, self.truncate_prompt_tokens) == (None, None)
        if not self.echo or not simple or self.max_tokens == 0:
            return []
        return [prompt for prompt in self.prompts() if isinstance(prompt, str)]


#: Most bytes of a text that no token stands for, as where a tokenizer normalizes a letter.
LOOK_AHEAD: Final = 12


class TextTokens(msgspec.Struct):
    """The log probabilities of a text's tokens, and where each begins in the text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(msgspec.Struct, kw_only=True):
    """The continuation of one prompt."""

    index: int
    text: str
    logprobs: TextTokens | None = None
    finish_reason: str | None
    stop_reason: str | int | None = None
    token_ids: list[int] | msgspec.UnsetType | None = msgspec.UNSET
    #: Of the prompt, with its first piece or the whole answer.
    prompt_token_ids: list[int] | msgspec.UnsetType | None = msgspec.UNSET
    prompt_logprobs: list[Any] | msgspec.UnsetType | None = msgspec.UNSET


class TextCompletion(msgspec.Struct, kw_only=True):
    """The continuations of prompts; in an event a part of them. The last event is [DONE]."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: TokenUsage | msgspec.UnsetType | None = msgspec.UNSET


class TextAnswer(OpenAIAnswer):
    """Texts that go on where the prompts end; `echoes`, if any, stand in front of theirs."""

    kind, prefix = "text_completion", "cmpl"
    choices: dict[int, TextChoice]

    def __init__(
        self,
        model: str,
        request_id: str,
        echoes: Sequence[str],
        n: int,
        shown: AnswerParts = AnswerParts(),  # noqa: B008 - frozen
        prompt_count: int = 1,
    ) -> None:
        super().__init__(model, request_id, shown)
        self._echoes = echoes
        self._n, self._prompt_count = n, prompt_count
        #: The details of each prompt, which come with the first piece of its first answer.
        self._prompts: dict[int, Mapping[str, Any]] = {}
        self._offsets: dict[int, TokenOffsets] = {}

    @classmethod
    def of_request(
        cls, request: ClientRequest, loaded: LoadedModel, fields: CompletionRequest, call: ModelCall
    ) -> TextAnswer:
        if loaded.signature.input("parameters"):
            # OpenAI's own default, unless the request sets another number.
            most = max(16, fields.min_tokens or 0)
            call.inputs["parameters"].setdefault("max_tokens", most)
        name, n = fields.model or loaded.reported_name(), fields.n or 1
        return cls(name, request.id, fields.echoes(), n, fields.shown(), len(call.own))

    def add(self, piece: ChoiceDelta) -> list[TextChoice]:
        self.usage.add(piece.usage)
        choice, text = self.choices.get(piece.index), piece.text
        begins = choice is None
        if choice is None:
            prompt = piece.index // self._n
            details = self._prompts.setdefault(prompt, piece.details)
            choice = self.choices[piece.index] = TextChoice(
                index=piece.index,
                text="",
                finish_reason=None,
                token_ids=[] if self.shown.token_ids else None,
                prompt_token_ids=details.get("prompt_token_ids"),
                prompt_logprobs=details.get("prompt_logprobs"),
            )
            if self._echoes:
                text = self._echoes[prompt] + text
        choice.text += text
        logprobs = self._logprobs(choice, piece, text)
        choice.finish_reason = piece.finish_reason or None
        choice.stop_reason = piece.details.get("stop_reason")
        chunk = TextChoice(
            index=piece.index,
            text=text,
            logprobs=logprobs,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
        )
        if choice.token_ids is not None and choice.token_ids is not msgspec.UNSET:
            choice.token_ids += piece.token_ids
            chunk.token_ids = list(piece.token_ids)
            if begins:
                chunk.prompt_token_ids = choice.prompt_token_ids
                chunk.prompt_logprobs = choice.prompt_logprobs
        return [chunk]

    def _logprobs(self, choice: TextChoice, piece: ChoiceDelta, text: str) -> TextTokens | None:
        """Log probabilities of the tokens whose text has come, which are added to the choice's."""
        offsets = self._offsets.get(piece.index)
        if offsets is None:
            if not piece.logprobs:
                return None
            before = choice.text[: -len(text) or None]
            offsets = self._offsets[piece.index] = TokenOffsets(before)
        placed = offsets.add(piece.logprobs, text, whole=bool(piece.finish_reason))
        if not placed:
            return None
        logprobs = TextTokens(
            [token["token"] for token, _ in placed],
            [token["logprob"] for token, _ in placed],
            [_alternatives(token) for token, _ in placed],
            [place for _, place in placed],
        )
        gathered = choice.logprobs = choice.logprobs or TextTokens([], [], [], [])
        gathered.tokens += logprobs.tokens
        gathered.token_logprobs += logprobs.token_logprobs
        gathered.top_logprobs += logprobs.top_logprobs
        gathered.text_offset += logprobs.text_offset
        return logprobs

    def end(self) -> list[TextChoice]:
        return self.stopped(range(self._prompt_count * self._n))

    def whole(self) -> TextCompletion:
        choices = [self.choices[index] for index in sorted(self.choices)]
        return self.event(choices, self.usage.total())

    def chunk(self, choice: TextChoice) -> TextCompletion:
        return self.event([choice], self.usage_of_event())

    def event(
        self, choices: list[TextChoice], usage: TokenUsage | msgspec.UnsetType | None
    ) -> TextCompletion:
        return TextCompletion(
            id=self.id, created=self.created, model=self.model, choices=choices, usage=usage
        )


def _alternatives(token: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the log probabilities of a token and, behind it, of its alternatives, by text. Of two
    with the same text (parts of characters) the more probable counts. None for the first token of a
    prompt, which nothing predicts."""
    if token["logprob"] is None:
        return None
    found: dict[str, float] = {}
    for one in (token, *token["top"]):
        found[one["token"]] = max(one["logprob"], found.get(one["token"], one["logprob"]))
    return found


class TokenOffsets:
    """At which character of a choice's text each of its tokens begins.

    Text may come later than its tokens, as what could become a stop text is held back: a token
    waits for its text, or until too much other text has come for it to follow.
    """

    def __init__(self, before: str) -> None:
        """`before` is text in front of the first token's."""
        self._characters = len(before)
        #: Text that belongs to no token yet, and how much of its first character does.
        self._text = b""
        self._tokens: deque[Mapping[str, Any]] = deque()

    def add(
        self, tokens: Iterable[Mapping[str, Any]], text: str, *, whole: bool
    ) -> list[tuple[Mapping[str, Any], int]]:
        """Add tokens and text, which is the last if `whole`. Return the tokens whose place is
        known now."""
        self._tokens += tokens
        self._text += text.encode()
        placed, end = [], 0
        while self._tokens:
            token = self._tokens[0]
            raw = bytes(token.get("bytes") or token["token"].encode())
            found = _place(raw, self._text, end, whole=whole)
            if found is None:
                break
            begin, stop = found
            self._characters += _characters(self._text[end:begin])
            placed.append(
                (token, self._characters - any(map(_continues, self._text[begin : begin + 1])))
            )
            self._characters += _characters(self._text[begin:stop])
            end = stop
            self._tokens.popleft()
        self._text = self._text[end:]
        return placed


def _place(token: bytes, text: bytes, start: int, *, whole: bool) -> tuple[int, int] | None:
    """Begin and end of a token in a text; an empty range if it is not there (special tokens), None
    if it may still come."""
    for form in (token, token.removeprefix(b" ")):  # which a vocabulary may have before a text
        if text.startswith(form, start):
            return start, start + len(form)
    last = start + len(token) + LOOK_AHEAD
    if len(text) < last and not whole:
        return None
    found = text.find(token, start, last)
    return (start, start) if found < 0 else (found, found + len(token))


def _characters(text: bytes) -> int:
    return sum(not _continues(byte) for byte in text)


def _continues(byte: int) -> bool:
    """Whether this is a continuation byte of a UTF-8 character."""
    return byte & 0xC0 == 0x80
