"""How does a chat's answer become a message: blocks, and events while it goes on?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from wherry.core.api import PromptTooLong
from wherry.llm.openai.chat_answer import ChatAnswer
from wherry.llm.openai.generation import ChoiceDelta, Json
from wherry.llm.openai.parts import AnswerPart, PartedAnswer
from wherry.llm.openai.tokens import CountAnswer


class AnthropicErrorFields(msgspec.Struct):
    """What went wrong, and the field that is to blame."""

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
    """Anthropic's form, which names the field in the message alone."""
    other = "invalid_request_error" if status < 500 or status == 501 else "api_error"
    if isinstance(error, PromptTooLong):
        message = f"prompt is too long: {message}"  # by which clients know to shorten it
    fields = AnthropicErrorFields(TYPES.get(status, other), message)
    return msgspec.json.encode(AnthropicError(type="error", error=fields, request_id=id or None))


PING: Final = {"type": "ping"}
#: Why an answer ended, by a chat's words.
STOPS: Final = {"tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}


class MessageUsage(msgspec.Struct, kw_only=True):
    """How many tokens were read and written, in Anthropic's words."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    #: Of a model that thinks.
    output_tokens_details: dict[str, int] = {}


class MessageObject(msgspec.Struct, kw_only=True):
    """What the assistant says, in Anthropic's form."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Json]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageEvent(msgspec.Struct, kw_only=True):
    """A step of a message; the event has the name of its type."""

    type: str


class MessageAnswer(PartedAnswer):
    """One message. `most_tokens` were asked for; with `tells_cached` its usage has the tokens
    apart that were not computed again."""

    kind, chunk_kind, prefix = "message", "message", "msg"
    error_form = staticmethod(error_body)

    def __init__(self, chat: ChatAnswer, most_tokens: int, *, tells_cached: bool) -> None:
        super().__init__(chat)
        self._most_tokens = most_tokens
        self._tells_cached = tells_cached
        self._content: list[Json] = []
        self._stop: Json = {"stop_reason": None, "stop_sequence": None}

    def begun(self, piece: ChoiceDelta | None) -> list[Json]:
        counted = piece.details.get("prompt_tokens", 0) if piece is not None else 0
        usage = {**self._usage(), "input_tokens": counted or self.usage.prompt_tokens}
        return [{"type": "message_start", "message": {**self.whole(), "usage": usage}}]

    def opened(self, part: AnswerPart) -> list[Json]:
        start = {"type": "content_block_start", "index": part.place, "content_block": _block(part)}
        return [start] if part.place else [start, PING]

    def grown(self, part: AnswerPart, text: str, logprobs: Sequence[Json]) -> list[Json]:
        kind, field = _DELTAS[part.kind]
        return [_delta(part, {"type": kind, field: text})]

    def closed(self, part: AnswerPart, *, cut: bool) -> list[Json]:
        self._content.append(block := _block(part, self.id))
        events = [{"type": "content_block_stop", "index": part.place}]
        if part.kind == "reasoning":
            signed = {"type": "signature_delta", "signature": block["signature"]}
            events.insert(0, _delta(part, signed))
        return events

    def ended(self, choice: Json | None) -> list[Json]:
        self._stop = self._stopped(choice)
        return [
            {"type": "message_delta", "delta": self._stop, "usage": self._usage()},
            {"type": "message_stop"},
        ]

    def whole(self) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": list(self._content),
            **self._stop,
            "usage": self._usage(),
        }

    def _stopped(self, choice: Json | None) -> Json:
        reason = "stop" if choice is None else choice["finish_reason"]
        stop = None if choice is None else choice.get("stop_reason")
        if reason == "stop" and isinstance(stop, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        mapped = STOPS.get(reason, "end_turn")
        if reason == "length" and 0 < self.usage.completion_tokens < self._most_tokens:
            mapped = "model_context_window_exceeded"
        return {"stop_reason": mapped, "stop_sequence": None}

    def _usage(self) -> Json:
        usage = self.usage
        cached = usage.cached_tokens if self._tells_cached else 0
        thought = usage.reasoning_tokens
        usage_details = (
            {} if thought is None else {"output_tokens_details": {"thinking_tokens": thought}}
        )
        return {
            "input_tokens": usage.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage.completion_tokens,
            **usage_details,
        }


class MessageCountAnswer(CountAnswer):
    """How many tokens a conversation has."""

    error_form = staticmethod(error_body)


#: The delta of a part's text, and its member.
_DELTAS: Final = {
    "reasoning": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}


def _delta(part: AnswerPart, delta: Json) -> Json:
    return {"type": "content_block_delta", "index": part.place, "delta": delta}


def _block(part: AnswerPart, signature: str = "") -> Json:
    """A part as a block, with what it holds so far."""
    if part.kind == "text":
        return {"type": "text", "text": part.text}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": part.text, "signature": signature}
    id = f"toolu_{part.id.removeprefix('call_')}"
    return {"type": "tool_use", "id": id, "name": part.name, "input": _input(part.text)}


def _input(arguments: str) -> dict[str, Any]:
    """The arguments as an object; what was cut off is none, nor is what is too deep to be read."""
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
