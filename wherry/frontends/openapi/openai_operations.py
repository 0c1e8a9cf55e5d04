"""What do the routes of OpenAI's and Anthropic's clients take and answer, and which of them can
these models answer?"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from wherry.frontends.anthropic.fields import CountRequest, MessagesRequest
from wherry.frontends.content.media_types import FORM
from wherry.frontends.openai.adapter_routes import LoadAdapter, UnloadAdapter
from wherry.frontends.openai.fields.chat import ChatRequest
from wherry.frontends.openai.fields.completion import CompletionRequest
from wherry.frontends.openai.fields.conversion import DetokenizeRequest, TokenizeRequest
from wherry.frontends.openai.fields.embeddings import EmbeddingRequest
from wherry.frontends.openai.fields.messages import MOST_ROLE_CHARS
from wherry.frontends.openai.fields.scores import RerankRequest, ScoreRequest
from wherry.frontends.openai.responses import ResponsesRequest
from wherry.frontends.openapi.operation import (
    ANY_TEXT,
    EVENTS,
    FILE,
    JSON,
    TEXT,
    Json,
    Operation,
    json_of,
    list_of,
    named,
    object_of,
    tells,
)
from wherry.frontends.openapi.schemas import without_raw
from wherry.frontends.openapi.v2_operations import OF_INFERENCE, READS


class OpenAIErrorFields(msgspec.Struct, kw_only=True):
    """What went wrong: `param` is the field that is to blame."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(msgspec.Struct, kw_only=True):
    """An error, as OpenAI's clients expect it."""

    error: OpenAIErrorFields


class AnthropicErrorFields(msgspec.Struct, kw_only=True):
    """What went wrong, and the field that is to blame."""

    type: str
    message: str


class AnthropicError(msgspec.Struct, kw_only=True):
    """An error, as Anthropic's clients expect it."""

    type: Literal["error"]
    error: AnthropicErrorFields
    request_id: str | None


class OpenAIModel(msgspec.Struct, kw_only=True):
    """A model that can answer OpenAI's requests."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    #: In Anthropic's words.
    type: Literal["model"]
    display_name: str
    created_at: datetime
    #: The most tokens of a prompt and its answer, where the model tells.
    max_model_len: int | None = None


class OpenAIModels(msgspec.Struct, kw_only=True):
    """The models that can answer OpenAI's requests."""

    object: Literal["list"]
    data: list[OpenAIModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


class TokenUsage(msgspec.Struct, kw_only=True):
    """How many tokens were read and written."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    #: Of a model that thinks.
    completion_tokens_details: dict[str, int] = {}


class ChatMessage(msgspec.Struct, kw_only=True):
    """What the assistant says."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: list[dict[str, Any]] = []


class ChatChoice(msgspec.Struct, kw_only=True):
    """One answer to a conversation."""

    index: int
    message: ChatMessage
    finish_reason: str | None
    logprobs: dict[str, Any] | None = None


class ChatCompletion(msgspec.Struct, kw_only=True):
    """How a conversation goes on."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage


class ChatChunk(msgspec.Struct, kw_only=True):
    """A part of it, in an event; the last event is [DONE]."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: TokenUsage | None = None


class TextChoice(msgspec.Struct, kw_only=True):
    """How one text goes on."""

    index: int
    text: str
    finish_reason: str | None
    logprobs: dict[str, Any] | None = None


class TextCompletion(msgspec.Struct, kw_only=True):
    """How texts go on; in an event a part of them, and the last event is [DONE]."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: TokenUsage | None = None


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response, with the fields of the request that it repeats."""

    id: str
    object: Literal["response"]
    created_at: int
    status: str
    model: str
    output: list[dict[str, Any]]


class ResponseTokens(msgspec.Struct, kw_only=True):
    """How many tokens the model would read."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ResponseDeleted(msgspec.Struct, kw_only=True):
    """A response that is not kept any more."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ResponseItems(msgspec.Struct, kw_only=True):
    """A page of items."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseEvent(msgspec.Struct, kw_only=True):
    """A step of a response."""

    type: str
    sequence_number: int


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
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageEvent(msgspec.Struct, kw_only=True):
    """A step of a message; the event has the name of its type."""

    type: str


class CountedTokens(msgspec.Struct, kw_only=True):
    """How many tokens a conversation has."""

    input_tokens: int


class Vector(msgspec.Struct, kw_only=True):
    """The vector of one text: numbers, or those of 32 bits in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class OfTexts(msgspec.Struct, kw_only=True):
    """What a model says of texts, or of pairs of them, in their order."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    usage: TokenUsage


class Vectors(OfTexts, kw_only=True):
    """The vectors of texts, in their order."""

    data: list[Vector]


class RankedDocument(msgspec.Struct, kw_only=True):
    """A document, by its place in the request, and how well it answers."""

    index: int
    relevance_score: float
    document: dict[str, str] = {}


class Ranking(msgspec.Struct, kw_only=True):
    """Documents, the best first."""

    id: str
    object: Literal["list"]
    model: str
    results: list[RankedDocument]
    usage: TokenUsage


class PairScore(msgspec.Struct, kw_only=True):
    """How well two texts go together."""

    index: int
    object: Literal["score"]
    score: float


class PairScores(OfTexts, kw_only=True):
    """The scores of pairs of texts, in their order."""

    data: list[PairScore]


class Transcription(msgspec.Struct, kw_only=True):
    """What was said in a recording; with `verbose_json` also what else the model tells."""

    text: str
    task: str | None = None
    language: str | None = None
    duration: float | None = None
    segments: list[dict[str, Any]] = []
    words: list[dict[str, Any]] = []


class TranscriptionEvent(msgspec.Struct, kw_only=True):
    """More of a transcription, or its end with all of it."""

    type: str


class TokenList(msgspec.Struct, kw_only=True):
    """The tokens of a text or a conversation."""

    count: int
    tokens: list[int]
    max_model_len: int | None = None
    token_strs: list[str] | None = None


class VersionText(msgspec.Struct, kw_only=True):
    """The server's version."""

    version: str


class TokensText(msgspec.Struct, kw_only=True):
    """The text of tokens."""

    prompt: str


#: What a message says: a text, or parts that are texts.
_CONTENT: Final[Json] = {
    "anyOf": [
        ANY_TEXT,
        list_of(
            {
                "anyOf": [
                    object_of({"type": {"const": kind}, kind: ANY_TEXT}, ["type", kind])
                    for kind in ("text", "refusal")
                ]
            }
        ),
    ]
}
#: What a message calls; the arguments are an object, or its JSON as a text.
_CALL: Final = object_of(
    {"function": object_of({"name": ANY_TEXT, "arguments": {}}, ["name"])}, ["function"]
)
_MESSAGE: Final = object_of(
    {
        "role": {"type": "string", "minLength": 1, "maxLength": MOST_ROLE_CHARS},
        "content": {"anyOf": [_CONTENT, {"type": "null"}]},
    },
    ["role"],
    anyOf=[
        {"required": ["content"], "properties": {"content": _CONTENT}},
        {
            "properties": {
                "role": {"const": "assistant"},
                "tool_calls": list_of(_CALL, minItems=1),
            },
            "required": ["tool_calls"],
        },
    ],
)
#: More than the types of the fields say.
SHARPER: Final[dict[str, Json]] = {
    "ChatRequest": {"properties": {"messages": list_of(_MESSAGE, minItems=1)}}
}

#: The form of a recording.
_RECORDING: Final = object_of(
    {
        "file": FILE,
        **dict.fromkeys(("model", "language", "prompt"), ANY_TEXT),
        "temperature": {"type": "number"},
        "stream": {"type": "boolean"},
        "response_format": {
            "type": "string",
            "enum": ["json", "text", "verbose_json", "srt", "vtt"],
        },
        "timestamp_granularities[]": list_of({"type": "string", "enum": ["segment", "word"]}),
    },
    ["file"],
    title="TranscriptionForm",
)

#: Of a page of items.
_PAGE: Final = (
    named("order", "query", {"type": "string", "enum": ["asc", "desc"], "default": "desc"}),
    named("limit", "query", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}),
    named("after", "query", ANY_TEXT),
)
_STREAMED: Final = "With `stream` the answer is a stream of server-sent events."


def _run(summary: str, takes: Any, gives: Any, also: Json | None = None, **more: Any) -> Operation:
    """What a model runs for; `also`: the answers of other types than JSON."""
    return Operation(
        summary=summary,
        takes=json_of(without_raw(takes)),
        gives={JSON: gives, **(also or {})},
        errors=OF_INFERENCE,
        reads=READS,
        **more,
    )


def _generation(summary: str, takes: Any, gives: Any, events: Any) -> Operation:
    return _run(summary, takes, gives, {EVENTS: {}}, description=_STREAMED, events=events)


def _adapter(summary: str, takes: Any) -> Operation:
    return Operation(
        summary=summary,
        description="In the model control mode `explicit` only.",
        takes=json_of(takes),
        gives={TEXT: ANY_TEXT},
        errors=(400, 403, 404, 503),
    )


def _hearing(summary: str) -> Operation:
    return Operation(
        summary=summary,
        description=_STREAMED,
        takes={FORM: _RECORDING},
        gives={JSON: Transcription, TEXT: ANY_TEXT, "text/vtt": ANY_TEXT, EVENTS: {}},
        events=TranscriptionEvent,
        errors=(*OF_INFERENCE, 415),
        reads=READS,
    )


_OF_PAIRS: Final = {
    **{
        ("POST", path): _run("Documents in the order of a query", RerankRequest, Ranking)
        for path in ("/v1/rerank", "/rerank", "/v2/rerank")
    },
    **{
        ("POST", path): _run("Scores of pairs of texts", ScoreRequest, PairScores)
        for path in ("/v1/score", "/score")
    },
}

#: By the ability that a model must have; "": any.
OF_ABILITY: Final[dict[str, dict[tuple[str, str], Operation]]] = {
    "": {
        ("GET", "/v1/models"): tells("The models that can answer OpenAI's requests", OpenAIModels),
        ("GET", "/v1/models/{model}"): tells("One of these models", OpenAIModel, 404, 503),
        ("POST", "/invocations"): Operation(
            summary="The route that the body's fields and the model tell",
            takes=json_of({"type": "object"}),
            gives={JSON: {}, EVENTS: {}},
            errors=OF_INFERENCE,
            reads=READS,
        ),
        ("GET", "/version"): tells("The server's version", VersionText),
    },
    "chat": {
        ("POST", "/v1/chat/completions"): _generation(
            "A conversation goes on", ChatRequest, ChatCompletion, ChatChunk
        ),
        ("POST", "/v1/responses"): _generation(
            "A conversation goes on, in OpenAI's newer form",
            ResponsesRequest,
            ResponseObject,
            ResponseEvent,
        ),
        ("POST", "/v1/responses/input_tokens"): _run(
            "How many tokens a response's request has", ResponsesRequest, ResponseTokens
        ),
        ("GET", "/v1/responses/{response}"): tells("A response that is kept", ResponseObject, 404),
        ("DELETE", "/v1/responses/{response}"): tells(
            "A response is forgotten", ResponseDeleted, 404
        ),
        ("GET", "/v1/responses/{response}/input_items"): tells(
            "The items of a response's input, page by page",
            ResponseItems,
            400,
            404,
            parameters=_PAGE,
        ),
        ("POST", "/v1/messages"): _generation(
            "A conversation goes on, in Anthropic's form",
            MessagesRequest,
            MessageObject,
            MessageEvent,
        ),
    },
    "completions": {
        ("POST", "/v1/completions"): _generation(
            "A text goes on", CompletionRequest, TextCompletion, TextCompletion
        ),
    },
    "embeddings": {
        ("POST", "/v1/embeddings"): _run("Texts become vectors", EmbeddingRequest, Vectors),
    },
    "scores": _OF_PAIRS,
    "cosines": _OF_PAIRS,
    "transcriptions": {
        ("POST", "/v1/audio/transcriptions"): _hearing("What is said in a recording"),
    },
    "translations": {
        ("POST", "/v1/audio/translations"): _hearing("What is said in a recording, in English"),
    },
    "adapters": {
        ("POST", "/v1/load_lora_adapter"): _adapter("Load an adapter (LoRA)", LoadAdapter),
        ("POST", "/v1/unload_lora_adapter"): _adapter("Unload an adapter (LoRA)", UnloadAdapter),
    },
    "tokens": {
        ("POST", "/v1/messages/count_tokens"): _run(
            "How many tokens a conversation in Anthropic's form has", CountRequest, CountedTokens
        ),
        ("POST", "/tokenize"): _run(
            "A text or a conversation as tokens", TokenizeRequest, TokenList
        ),
        ("POST", "/detokenize"): _run("Tokens as text", DetokenizeRequest, TokensText),
    },
}


def openai_operations(able: Iterable[str]) -> dict[tuple[str, str], Operation]:
    """The routes that models with these abilities can answer."""
    found: dict[tuple[str, str], Operation] = {}
    able = set(able)
    for ability in ("", *sorted(able)) if able else ():
        found.update(OF_ABILITY[ability])
    return found
