"""How do a model's responses become OpenAI's choices, whole or in chunks?"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from wherry.core.api import InferResponse, LoadedModel
from wherry.llm.openai.errors import ErrorForm, error_object
from wherry.server.api import JSON

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """A further part of one choice."""

    index: int
    text: str
    finish_reason: str = ""
    logprobs: Sequence[Mapping[str, Any]] = ()
    usage: Mapping[str, int] = field(default_factory=dict)
    token_ids: Sequence[int] = ()
    #: What else the engine says: `Delta.details`.
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """What a client wants to see beside the text and its end."""

    #: The usage at the end of a stream, and in each event the usage so far.
    usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False
    #: Tokens of log probabilities by their numbers: `token_id:N`.
    tokens_as_ids: bool = False
    thoughts: bool = True


def piece_of(loaded: LoadedModel, response: InferResponse) -> ChoiceDelta:
    """One response of an engine's model, or of a plain one whose only output is text."""
    row = {name: column[0] for name, column in response.outputs.items()}
    if "text" not in row:
        return ChoiceDelta(0, _text(row[loaded.signature.outputs[0].name]))
    return ChoiceDelta(
        int(row.get("index", 0)),
        _text(row["text"]),
        _text(row.get("finish_reason", "")),
        row.get("logprobs") or (),
        row.get("usage") or {},
        [int(token) for token in row.get("token_ids", ())],
        row.get("details") or {},
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode(errors="replace")


class TokenUsage(msgspec.Struct, kw_only=True):
    """How many tokens were read and written."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    #: Of a model that thinks.
    completion_tokens_details: dict[str, int] = {}


@dataclass(slots=True)
class Usage:
    """The tokens of a request, over all its prompts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    #: None: the model does not think, or its engine does not tell.
    reasoning_tokens: int | None = None

    def add(self, usage: Mapping[str, int]) -> None:
        self.prompt_tokens += usage.get("prompt_tokens", 0)
        self.completion_tokens += usage.get("completion_tokens", 0)
        self.cached_tokens += usage.get("cached_tokens", 0)
        if (thought := usage.get("reasoning_tokens")) is not None:
            self.reasoning_tokens = (self.reasoning_tokens or 0) + thought

    def json(self) -> Json:
        fields = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        if self.reasoning_tokens is not None:
            fields["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return fields


class OpenAIAnswer(ABC):
    """The answer to one request: gathers pieces, and says what of them is to be sent."""

    #: What the objects are called, whole and in chunks, and how their ids begin.
    kind: str
    chunk_kind: str
    prefix: str
    #: What ends a stream of them.
    last: bytes | None = b"[DONE]"
    #: How its protocol writes an error.
    error_form: ErrorForm = staticmethod(error_object)

    def __init__(self, model: str, request_id: str, shown: AnswerParts = AnswerParts()) -> None:
        self.model = model
        self.shown = shown
        self.request_id = request_id
        self.id = f"{self.prefix}-{request_id}"
        self.created = int(time.time())
        self.usage = Usage()
        self.choices: dict[int, Json] = {}
        #: As far as it is known before the end, and before the last piece.
        self._so_far = self._before = Usage()

    def take(self, piece: ChoiceDelta) -> list[Json]:
        """Take a piece in as the model gave it: count its tokens, and call them as is wished."""
        if self.shown.continuous_usage:
            self._before = self._so_far
            self._so_far = Usage(
                self._before.prompt_tokens + piece.details.get("prompt_tokens", 0),
                self._before.completion_tokens + len(piece.token_ids),
            )
        if self.shown.tokens_as_ids:
            piece = replace(piece, logprobs=[_by_id(token) for token in piece.logprobs])
        return self.add(piece)

    def piece(self, loaded: LoadedModel, response: InferResponse) -> ChoiceDelta:
        """What one response of the model adds."""
        return piece_of(loaded, response)

    @abstractmethod
    def add(self, piece: ChoiceDelta) -> list[Json]:
        """Take a piece in; return the choices of the chunks that it makes."""

    @abstractmethod
    def end(self) -> list[Json]:
        """End the answer; return the choices of its last chunks."""

    @abstractmethod
    def whole(self) -> object:
        """The answer in one object, which can be encoded."""

    def _whole(self) -> Json:
        choices = [self.choices[index] for index in sorted(self.choices)]
        return {**self._head(self.kind), "choices": choices, "usage": self.usage.json()}

    @property
    def media_type(self) -> str:
        """Of the answer that is not a stream."""
        return JSON

    def body(self) -> bytes:
        """The answer in one piece, as it goes onto the wire."""
        return msgspec.json.encode(self.whole())

    def chunk(self, choice: Json) -> Json:
        """One event; where usage is asked for, all but the last say that they have none, or how
        much it is so far."""
        made = {**self._head(self.chunk_kind), "choices": [choice]}
        if self.shown.continuous_usage:
            opens = "role" in choice.get("delta", ())  # it comes before the piece's tokens
            count = self._before.completion_tokens if opens else self._so_far.completion_tokens
            made["usage"] = replace(self._so_far, completion_tokens=count).json()
        elif self.shown.usage:
            made["usage"] = None
        return made

    def failure(self, error: Json) -> Json:
        """The event of an error that ends a stream."""
        return error

    def usage_chunk(self) -> Json:
        return {**self._head(self.chunk_kind), "choices": [], "usage": self.usage.json()}

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _by_id(token: Mapping[str, Any]) -> Json:
    """A token of log probabilities that is called by its number, and so its alternatives."""
    name = {"token": f"token_id:{token['id']}"}
    return {**token, **name, "top": [{**t, "token": f"token_id:{t['id']}"} for t in token["top"]]}
