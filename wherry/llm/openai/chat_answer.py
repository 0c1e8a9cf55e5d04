"""How do a model's pieces become the messages of a chat, with calls of tools?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from wherry.core.api import LoadedModel
from wherry.llm.formats.answer_text import AnswerStyle, AnswerText
from wherry.llm.formats.calls import MessagePart, ToolCall
from wherry.llm.formats.families import FORCED
from wherry.llm.openai.chat_request import AllowedCalls, ChatCall, ChatRequest
from wherry.llm.openai.client_request import ClientRequest
from wherry.llm.openai.generation import ChoiceDelta, OpenAIAnswer, TokenUsage
from wherry.llm.openai.generation_request import AnswerParts
from wherry.server.api import new_request_id


class ChosenToken(msgspec.Struct):
    """A token, and how probable it was."""

    token: str
    logprob: float | None
    bytes: list[int] | None


class AnswerToken(ChosenToken):
    """A token of an answer, and its alternatives."""

    top_logprobs: list[ChosenToken]


class AnswerTokens(msgspec.Struct):
    """The log probabilities of an answer's tokens."""

    content: list[AnswerToken]
    refusal: None = None


class CalledFunction(msgspec.Struct, kw_only=True):
    """A function's name and arguments; in a chunk the name, then pieces of the arguments."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str


class AnswerCall(msgspec.Struct, kw_only=True):
    """A call of a tool; in a chunk with its index among the answer's calls."""

    index: int | msgspec.UnsetType = msgspec.UNSET
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function"] | msgspec.UnsetType = msgspec.UNSET
    function: CalledFunction


class ChatMessage(msgspec.Struct, kw_only=True):
    """The assistant's message. Clients of vLLM read `reasoning` in each message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[AnswerCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One answer to a conversation."""

    index: int
    message: ChatMessage
    logprobs: AnswerTokens | None = None
    finish_reason: str | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The answers to a conversation."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[Any] | None = None


class ChatDelta(msgspec.Struct, kw_only=True):
    """What a chunk adds to a message."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[AnswerCall] | msgspec.UnsetType = msgspec.UNSET


class ChunkChoice(msgspec.Struct, kw_only=True):
    """What a chunk adds to one answer."""

    index: int
    delta: ChatDelta
    logprobs: AnswerTokens | None = None
    finish_reason: str | None = None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """A part of a completion, in an event; the last event is [DONE]."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: TokenUsage | msgspec.UnsetType | None = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatAnswer(OpenAIAnswer):
    """Messages of the assistant; thoughts and calls are taken out of the text.

    A model's first piece reports how it writes these (`details["style"]`, an `AnswerStyle`).
    """

    kind, prefix = "chat.completion", "chatcmpl"
    choices: dict[int, ChatChoice]

    def __init__(
        self,
        model: str,
        request_id: str,
        calls: AllowedCalls = AllowedCalls(),  # noqa: B008 - frozen
        *,
        shown: AnswerParts = AnswerParts(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(model, request_id, shown)
        self._prompt_tokens: list[int] | None = None
        self._prompt_logprobs: list[Any] | None = None
        self._calls = calls
        #: What the ids of its calls are made of, once there is one: clients may send the same
        #: X-Request-Id several times.
        self._named = ""
        self._style, self._plain = AnswerStyle(), True
        self._texts: dict[int, AnswerText] = {}
        #: How many calls each choice has made.
        self._made: dict[int, int] = {}

    @classmethod
    def of_request(
        cls, request: ClientRequest, loaded: LoadedModel, fields: ChatRequest, call: ChatCall
    ) -> ChatAnswer:
        name = fields.model or loaded.reported_name()
        return cls(name, request.id, call.calls, shown=call.shown)

    def add(self, piece: ChoiceDelta) -> list[ChunkChoice]:
        chunks: list[ChunkChoice] = []
        choice = self.choices.get(piece.index)
        if choice is None:
            choice = self.choices[piece.index] = self._choice(piece)
            chunks.append(_chunk(piece.index, role="assistant", content=""))
        self.usage.add(piece.usage)
        self._prompt_tokens = piece.details.get("prompt_token_ids", self._prompt_tokens)
        self._prompt_logprobs = piece.details.get("prompt_logprobs", self._prompt_logprobs)
        for message_part in self._message_parts(piece):
            chunks += self._text(choice, message_part)
            if message_part.calls:
                chunks += self._called(choice, message_part.calls)
        if piece.logprobs:
            _add_tokens(choice, chunks, [_token(token) for token in piece.logprobs])
        if piece.finish_reason:
            self._finish(choice, piece, chunks)
        if choice.token_ids is not None and piece.token_ids:
            choice.token_ids += piece.token_ids
            chunks = chunks or [_chunk(piece.index)]
            chunks[-1].token_ids = list(piece.token_ids)
        return chunks

    def _choice(self, piece: ChoiceDelta) -> ChatChoice:
        if style := piece.details.get("style"):
            self._style = AnswerStyle(**style)
            self._plain = self._style.plain
        if self._calls.functions or not self._plain:
            style = replace(self._style, tools=FORCED) if self._calls.forced else self._style
            self._texts[piece.index] = AnswerText(style, self._calls.functions)
        token_ids: list[int] | None = [] if self.shown.token_ids else None
        message = ChatMessage(content="")
        return ChatChoice(
            index=piece.index, finish_reason=None, message=message, token_ids=token_ids
        )

    def _message_parts(self, piece: ChoiceDelta) -> list[MessagePart]:
        """The thoughts, text and calls in the piece."""
        text = self._texts.get(piece.index)
        if text is None:
            return [MessagePart(text=piece.text)]
        message_part = text.feed(piece.text)
        if piece.finish_reason:
            message_part += text.end(cut=piece.finish_reason == "length")
        return message_part

    def _text(self, choice: ChatChoice, message_part: MessagePart) -> list[ChunkChoice]:
        message, chunks = choice.message, list[ChunkChoice]()
        if (thoughts := message_part.thoughts) and self.shown.thoughts:
            message.reasoning = message.reasoning_content = (message.reasoning or "") + thoughts
            chunks.append(_chunk(choice.index, reasoning_content=thoughts, reasoning=thoughts))
        if text := message_part.text:
            message.content = (message.content or "") + text
            chunks.append(_chunk(choice.index, content=text))
        return chunks

    def _called(self, choice: ChatChoice, calls: Sequence[ToolCall]) -> list[ChunkChoice]:
        """Add calls to the message, up to the most that are allowed: a name first, then pieces
        of the arguments."""
        index, chunks = choice.index, list[ChunkChoice]()
        for call in calls:
            if call.name:
                self._made[index] = self._made.get(index, 0) + 1
            number = self._made[index] - 1
            if self._calls.most is not None and number >= self._calls.most:
                continue
            made = choice.message.tool_calls or []
            choice.message.tool_calls = made
            if call.name:
                self._named = self._named or new_request_id()
                id = call.id or call_id(f"{self._named}/{index}", number, self._style.tools)
                begun = CalledFunction(name=call.name, arguments="")
                made.append(AnswerCall(id=id, type="function", function=copy(begun)))
                opening = AnswerCall(index=number, id=id, type="function", function=begun)
                chunks.append(_chunk(index, tool_calls=[opening]))
            if call.arguments:
                made[-1].function.arguments += call.arguments
                piece = CalledFunction(arguments=call.arguments)
                chunks.append(_chunk(index, tool_calls=[AnswerCall(index=number, function=piece)]))
        return chunks

    def end(self) -> list[ChunkChoice]:
        return self.stopped([*self.choices] or [0])

    def whole(self) -> ChatCompletion:
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self.choices[index] for index in sorted(self.choices)],
            usage=self.usage.total(),
            prompt_token_ids=self._prompt_tokens,
            prompt_logprobs=self._prompt_logprobs,
        )

    def chunk(self, choice: ChunkChoice) -> ChatChunk:
        made = self.event([choice], self.usage_of_event())
        if choice.delta.role is not msgspec.UNSET and self._prompt_tokens is not None:
            made.prompt_token_ids = self._prompt_tokens
        return made

    def event(
        self, choices: list[ChunkChoice], usage: TokenUsage | msgspec.UnsetType | None
    ) -> ChatChunk:
        return ChatChunk(
            id=self.id, created=self.created, model=self.model, choices=choices, usage=usage
        )

    def _finish(self, choice: ChatChoice, piece: ChoiceDelta, chunks: list[ChunkChoice]) -> None:
        """Note the end, and send it with the last text, or in a chunk of its own."""
        message, reason = choice.message, piece.finish_reason
        if message.tool_calls or message.reasoning:
            message.content = message.content or None
        if message.tool_calls and reason == "stop":
            reason = "tool_calls"
        choice.finish_reason = reason
        if not chunks or not _is_text(chunks[-1].delta):
            chunks.append(_chunk(choice.index))
        chunks[-1].finish_reason = reason
        if "stop_reason" in piece.details:
            choice.stop_reason = chunks[-1].stop_reason = piece.details["stop_reason"]


def _chunk(index: int, **delta: Any) -> ChunkChoice:
    return ChunkChoice(index=index, delta=ChatDelta(**delta))


def _is_text(delta: ChatDelta) -> bool:
    """Whether it has text and does not open the message."""
    return delta.content is not msgspec.UNSET and delta.role is msgspec.UNSET


def _add_tokens(choice: ChatChoice, chunks: list[ChunkChoice], tokens: list[AnswerToken]) -> None:
    """Add a piece's tokens to its choice, and to the first chunk that does not open the message."""
    gathered = choice.logprobs = choice.logprobs or AnswerTokens([])
    gathered.content += tokens
    first = next((chunk for chunk in chunks if chunk.delta.role is msgspec.UNSET), None)
    if first is None:
        chunks.append(first := _chunk(choice.index, content=""))
    first.logprobs = AnswerTokens(tokens)


def _token(token: Mapping[str, Any]) -> AnswerToken:
    top = [ChosenToken(one["token"], one["logprob"], one["bytes"]) for one in token["top"]]
    return AnswerToken(token["token"], token["logprob"], token["bytes"], top)


def call_id(answer: str, number: int, family: str) -> str:
    """The id of a call: as unique as the pair of its answer's id and its index.
    Templates of Mistral's models refuse all but nine letters and digits."""
    digest = blake2b(f"{answer}/{number}".encode(), digest_size=12).hexdigest()
    return digest[:9] if family == "mistral" else f"call_{digest}"
