"""What do the fields of requests for vectors and scores mean together, for these models?

The types of the fields say what any model may be sent; this says what the models that are there
take.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from wherry.core.api import LoadedModel
from wherry.llm.api import (
    ABLE,
    BESIDE,
    CUTS,
    MOST_INPUTS,
    MOST_PAIRS,
    MOST_ROLE_CHARS,
    VectorFit,
    vector_fit,
)
from wherry.server.http.route import ANY_TEXT, Json, list_of, object_of

#: More names than these say nothing to a reader.
MOST_NAMES: Final = 100
#: The requests, and the abilities of which a model has one.
REQUESTS: Final = {
    "EmbeddingRequest": ("embeddings",),
    "RerankRequest": ("scores", "cosines"),
    "ScoreRequest": ("scores", "cosines"),
}
_NULL: Final[Json] = {"type": "null"}
_TOKENS: Final = list_of({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, minItems=1)
_DOCUMENT: Final[Json] = {"anyOf": [ANY_TEXT, {"$ref": "#/components/schemas/TextDocument"}]}
_DOCUMENTS: Final[Json] = {
    "anyOf": [*_DOCUMENT["anyOf"], list_of(_DOCUMENT, minItems=1, maxItems=MOST_PAIRS)]
}
_TEXTS: Final = list_of(ANY_TEXT, minItems=1, maxItems=MOST_INPUTS)

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
CHAT_MESSAGES: Final = list_of(_MESSAGE, minItems=1)


def task_schemas(models: Iterable[LoadedModel]) -> dict[str, Json]:
    """Keywords of the requests' schemas, by their names."""
    models, made = list(models), {}
    for name, abilities in REQUESTS.items():
        found = [[m for m in models if ABLE[ability](m)] for ability in abilities]
        if any(found):
            made[name] = _keywords(name, [*filter(None, found)])
    return made


def _keywords(name: str, found: Sequence[Sequence[LoadedModel]]) -> Json:
    """Of a request for models with one of some abilities, those with the best one first."""
    able = [loaded for models in found for loaded in models]
    properties: Json = _beside(able, of_pairs=name in ("RerankRequest", "ScoreRequest"))
    levels = [m.config.priority_levels for m in able]
    if all(levels):  # else any number is the same
        properties["priority"] = {"enum": [*range(max(levels) + 1), None]}
    more: Json = {}
    names = sorted({m.name for m in able})
    if len({m.name for m in found[0]}) > 1:
        more["required"] = ["model"]
    if len(names) <= MOST_NAMES:
        properties["model"] = {"enum": names if more else [*names, None]}
    if name == "EmbeddingRequest":
        fits = [fit for m in able if (fit := vector_fit(m.signature)) is not None]
        widths = [fit.vector.shape[0] for fit in fits]
        most = {"maximum": max(widths)} if min(widths) >= 0 else {}
        properties["dimensions"] = {"anyOf": [{"type": "integer", "minimum": 1, **most}, _NULL]}
        whole = {spec.name for m in able for spec in m.signature.inputs}
        cut = {n: {"enum": [*BESIDE[n], None]} for n in CUTS - whole}
        more["oneOf"] = _read(fits, cut)
        return {"properties": properties, **more}
    first, *others = ("text_1", "text_2") if name == "ScoreRequest" else ("query", "documents")
    properties |= dict.fromkeys(others if first == "query" else (first, *others), _DOCUMENTS)
    more["required"] = [first, *others, *more.get("required", ())]
    return {"properties": properties, **more}


def _beside(able: Sequence[LoadedModel], *, of_pairs: bool) -> Json:
    """The fields that say how a model reads, where no model here can be told: only with the values
    that ask for nothing."""
    known = {spec.name for m in able for spec in m.signature.inputs}
    if not of_pairs:
        known |= CUTS  # of tokens: what may stand beside texts is said with them
    left = {name: neutral for name, neutral in BESIDE.items() if name not in known}
    return {field: {"enum": [*neutral, None]} for field, neutral in left.items()}


def _read(fits: Sequence[VectorFit], cut: Json) -> list[Json]:
    """What a model is to read, as far as a model here takes it. `cut`: what may be said of how much
    of a text is read."""
    lists = list_of(_TOKENS, minItems=1, maxItems=MOST_INPUTS)
    kinds: list[tuple[bool, str, Json, Json]] = [
        (any(fit.text for fit in fits), "input", {"anyOf": [ANY_TEXT, _TEXTS]}, cut),
        (any(fit.tokens for fit in fits), "input", {"anyOf": [_TOKENS, lists]}, {}),
        (any(fit.messages for fit in fits), "messages", CHAT_MESSAGES, cut),
    ]
    return [
        {
            "required": [name],
            "properties": {"input": _NULL, "messages": _NULL, **beside, name: schema},
        }
        for there, name, schema, beside in kinds
        if there
    ]
