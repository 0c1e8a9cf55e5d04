"""How does a chat's answer become a message: blocks, and events while it goes on?"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from wherry.core.api import LoadedModel, PromptTooLong
from wherry.llm.anthropic.request import MessagesRequest
from wherry.llm.openai.chat_answer import ChatAnswer, ChatChoice
from wherry.llm.openai.chat_request import ChatCall
from wherry.llm.openai.client_request import ClientRequest
from wherry.llm.openai.generation import ChoiceDelta
from wherry.llm.openai.parts import AnswerPart, PartedAnswer


class AnthropicErrorFields(msgspec.Struct):
    """What went wrong, and the field at fault."""

    type: str
    message: str


class AnthropicError(msgspec.Struct, kw_only=True):
    """An error, as Anthropic's clients expect it."""

    type: Literal["error"]
    error: AnthropicErrorFields
    request_id: str | None


#: The type that goes with a status, as Anthropic names them.
TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(
    error: Exception | None, status: int, message: str, _field: str | None = None, id: str = ""
) -> bytes:
    """Anthropic's form, which names the field in the message only."""
    other = "invalid_request_error" if status < 500 or status == 501 else "api_error"
    if isinstance(error, PromptTooLong):
        message = f"prompt is too long: {message}"  # clients shorten it when they read this
    fields = AnthropicErrorFields(TYPES.get(status, other), message)
    return msgspec.json.encode(AnthropicError(type="error", error=fields, request_id=id or None))


#: Why an answer ended, by a chat's finish reason.
STOPS: Final = {"tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}


class ThinkingTokens(msgspec.Struct):
    """Tokens of an answer that are thoughts."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct, kw_only=True):
    """How many tokens were read and written, in Anthropic's form."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    #: Of a model that thinks.
    output_tokens_details: ThinkingTokens | msgspec.UnsetType = msgspec.UNSET


class AnswerTextBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
    """The assistant's text."""

    text: str


class AnswerThinking(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking"):
    """The assistant's thoughts."""

    thinking: str
    signature: str


class AnswerToolUse(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = AnswerTextBlock | AnswerThinking | AnswerToolUse


class MessageObject(msgspec.Struct, kw_only=True):
    """The assistant's message, in Anthropic's form."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageDelta(msgspec.Struct, kw_only=True):
    """More of a block, or why the message ended."""

    type: (
        Literal["text_delta", "thinking_delta", "input_json_delta", "signature_delta"]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    thinking: str | msgspec.UnsetType = msgspec.UNSET
    partial_json: str | msgspec.UnsetType = msgspec.UNSET
    signature: str | msgspec.UnsetType = msgspec.UNSET
    stop_reason: str | msgspec.UnsetType | None = msgspec.UNSET
    stop_sequence: str | msgspec.UnsetType | None = msgspec.UNSET


class MessageEvent(msgspec.Struct, kw_only=True):
    """A step of a message; the event has the name of its type."""

    type: str
    message: MessageObject | msgspec.UnsetType = msgspec.UNSET
    index: int | msgspec.UnsetType = msgspec.UNSET
    content_block: AnswerBlock | msgspec.UnsetType = msgspec.UNSET
    delta: MessageDelta | msgspec.UnsetType = msgspec.UNSET
    usage: MessageUsage | msgspec.UnsetType = msgspec.UNSET


class MessageAnswer(PartedAnswer[MessageEvent]):
    """One message of at most `most_tokens`. With `counts_cached`, its usage counts apart the tokens
    that were not computed again."""

    kind, prefix = "message", "msg"

    def __init__(self, chat: ChatAnswer, most_tokens: int, *, counts_cached: bool) -> None:
        super().__init__(chat)
        self._most_tokens = most_tokens
        self._counts_cached = counts_cached
        self._content: list[AnswerBlock] = []
        #: Why it ended, and its stop text; None while it goes on.
        self._stop: tuple[str | None, str | None] = None, None

    @classmethod
    def of_request(
        cls, request: ClientRequest, loaded: LoadedModel, fields: MessagesRequest, call: ChatCall
    ) -> MessageAnswer:
        has, inputs = loaded.signature.input, call.inputs
        if not has("parameters"):  # always sent: a plain model ignores it
            for name in ("max_tokens", "clip_max_tokens"):
                inputs["parameters"].pop(name)
        if not has("template"):  # a hint, which such a model ignores
            inputs.pop("template", None)
        chat = ChatAnswer(fields.model or loaded.reported_name(), request.id, call.calls)
        return cls(chat, fields.max_tokens, counts_cached=fields.marks_cache())

    def begun(self, piece: ChoiceDelta | None) -> list[MessageEvent]:
        message = self.whole()
        counted = piece.details.get("prompt_tokens", 0) if piece is not None else 0
        message.usage.input_tokens = counted or self.usage.prompt_tokens
        return [MessageEvent(type="message_start", message=message)]

    def opened(self, part: AnswerPart) -> list[MessageEvent]:
        start = MessageEvent(
            type="content_block_start", index=part.place, content_block=_block(part)
        )
        return [start] if part.place else [start, MessageEvent(type="ping")]

    def grown(self, part: AnswerPart, text: str) -> list[MessageEvent]:
        if part.kind == "text":
            return [_delta(part, MessageDelta(type="text_delta", text=text))]
        if part.kind == "reasoning":
            return [_delta(part, MessageDelta(type="thinking_delta", thinking=text))]
        return [_delta(part, MessageDelta(type="input_json_delta", partial_json=text))]

    def closed(self, part: AnswerPart, *, cut: bool) -> list[MessageEvent]:
        self._content.append(block := _block(part, self.id))
        stop = MessageEvent(type="content_block_stop", index=part.place)
        if not isinstance(block, AnswerThinking):
            return [stop]
        signed = MessageDelta(type="signature_delta", signature=block.signature)
        return [_delta(part, signed), stop]

    def ended(self, choice: ChatChoice) -> list[MessageEvent]:
        reason, sequence = self._stop = self._stopped(choice)
        delta = MessageDelta(stop_reason=reason, stop_sequence=sequence)
        return [
            MessageEvent(type="message_delta", delta=delta, usage=self._usage()),
            MessageEvent(type="message_stop"),
        ]

    def whole(self) -> MessageObject:
        reason, sequence = self._stop
        return MessageObject(
            id=self.id,
            model=self.model,
            content=list(self._content),
            stop_reason=reason,
            stop_sequence=sequence,
            usage=self._usage(),
        )

    def failure(self, error: bytes) -> tuple[str, bytes]:
        return "error", error

    def _stopped(self, choice: ChatChoice) -> tuple[str, str | None]:
        reason, stop = choice.finish_reason or "stop", choice.stop_reason
        if reason == "stop" and isinstance(stop, str):
            return "stop_sequence", stop
        if reason == "length" and 0 < self.usage.completion_tokens < self._most_tokens:
            return "model_context_window_exceeded", None
        return STOPS.get(reason, "end_turn"), None

    def _usage(self) -> MessageUsage:
        usage, thought = self.usage, self.usage.reasoning_tokens
        cached = usage.cached_tokens if self._counts_cached else 0
        return MessageUsage(
            input_tokens=usage.prompt_tokens - cached,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=cached,
            output_tokens=usage.completion_tokens,
            output_tokens_details=msgspec.UNSET if thought is None else ThinkingTokens(thought),
        )


def _delta(part: AnswerPart, delta: MessageDelta) -> MessageEvent:
    return MessageEvent(type="content_block_delta", index=part.place, delta=delta)


def _block(part: AnswerPart, signature: str = "") -> AnswerBlock:
    if part.kind == "text":
        return AnswerTextBlock(text=part.text)
    if part.kind == "reasoning":
        return AnswerThinking(thinking=part.text, signature=signature)
    id = f"toolu_{part.id.removeprefix('call_')}"
    return AnswerToolUse(id=id, name=part.name, input=_input(part.text))


def _input(arguments: str) -> dict[str, Any]:
    """The arguments as an object; an empty one if they were cut off or are too deep to be read."""
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
