"""What do the fields of requests for vectors, classes and scores mean together, for these models?

The types of the fields say what any model may be sent; this says what the models that are there
take.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from wherry.frontends.openai.embedding import tasks_of
from wherry.frontends.openai.fields.beside import BESIDE, HINTS
from wherry.frontends.openai.fields.embeddings import MOST_INPUTS
from wherry.frontends.openai.fields.scores import MOST_PAIRS, SIDES
from wherry.frontends.openai.fits import NumbersFit, numbers_fit
from wherry.frontends.openai.models import ABLE
from wherry.frontends.openai.numbers_call import NumbersCall
from wherry.frontends.openapi.operation import ANY_TEXT, Json, list_of
from wherry.runtime.loaded_model import LoadedModel

#: More names than these say nothing to a reader.
MOST_NAMES: Final = 100
#: The requests, and the abilities of which a model has one.
REQUESTS: Final = {
    "EmbeddingRequest": ("embeddings",),
    "EmbedRequest": ("embeddings",),
    "ClassifyRequest": ("classifications",),
    "PoolingRequest": ("poolings",),
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
#: Bits come in bytes.
_OF_BITS: Final[Json] = {
    "if": {
        "required": ["embedding_types"],
        "properties": {
            "embedding_types": {"type": "array", "contains": {"enum": ["binary", "ubinary"]}}
        },
    },
    "then": {"properties": {"output_dimension": {"multipleOf": 8}}},
}


def task_schemas(models: Iterable[LoadedModel], messages: Json) -> dict[str, Json]:
    """Keywords of the requests' schemas, by their names. `messages` is the schema of a chat's."""
    models, made = list(models), {}
    for name, abilities in REQUESTS.items():
        found = [[m for m in models if ABLE[ability](m)] for ability in abilities]
        if any(found):
            made[name] = _keywords(name, [*filter(None, found)], messages)
    return made


def _keywords(name: str, found: Sequence[Sequence[LoadedModel]], messages: Json) -> Json:
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
    if name == "ScoreRequest":
        more["oneOf"] = [_pair(*pair) for pair in SIDES]
    elif name == "RerankRequest":
        properties["documents"] = _DOCUMENTS
        more["required"] = ["query", "documents", *more.get("required", ())]
    else:
        fits = [fit for m in able if (fit := numbers_fit(m.signature)) is not None]
        widths = [fit.numbers.shape[0] for fit in fits if len(fit.numbers.shape) == 1]
        most = {"maximum": max(widths)} if widths and min(widths) >= 0 else {}
        width: Json = {"anyOf": [{"type": "integer", "minimum": 1, **most}, _NULL]}
        if name == "EmbedRequest":
            properties["texts"] = _TEXTS
            properties["output_dimension"] = width
            more |= _OF_BITS
            more["required"] = ["texts", *more.get("required", ())]
        else:
            properties |= {} if name == "ClassifyRequest" else {"dimensions": width}
            if name == "PoolingRequest":
                tasks = {task: None for m in able for task in tasks_of(m)}
                properties["task"] = {"enum": [*tasks, None]}
            whole = {spec.name for m in able for spec in m.signature.inputs}
            cut = {n: {"enum": [*BESIDE[n], None]} for n in NumbersCall.done if n not in whole}
            more["oneOf"] = _read(fits, messages, cut)
    return {"properties": properties, **more}


def _beside(able: Sequence[LoadedModel], *, of_pairs: bool) -> Json:
    """The fields that say how a model reads, where no model here can be told: only with the values
    that ask for nothing."""
    known = {*HINTS, *(spec.name for m in able for spec in m.signature.inputs)}
    if not of_pairs:
        if any(m.signature.output("logits") for m in able):
            known.add("use_activation")
        known |= NumbersCall.done  # of tokens: what may stand beside texts is said with them
    left = {name: neutral for name, neutral in BESIDE.items() if name not in known}
    return {field: {"enum": [*neutral, None]} for field, neutral in left.items()}


def _pair(left: str, right: str) -> Json:
    """These two sides, and no other."""
    others = {name for pair in SIDES for name in pair} - {left, right}
    sides = dict.fromkeys((left, right), _DOCUMENTS)
    return {"required": [left, right], "properties": {**sides, **dict.fromkeys(others, _NULL)}}


def _read(fits: Sequence[NumbersFit], messages: Json, cut: Json) -> list[Json]:
    """What a model is to read, as far as a model here takes it. `cut`: what may be said of how much
    of a text is read."""
    lists = list_of(_TOKENS, minItems=1, maxItems=MOST_INPUTS)
    kinds: list[tuple[bool, str, Json, Json]] = [
        (any(fit.text for fit in fits), "input", {"anyOf": [ANY_TEXT, _TEXTS]}, cut),
        (any(fit.tokens for fit in fits), "input", {"anyOf": [_TOKENS, lists]}, {}),
        (any(fit.messages for fit in fits), "messages", messages, cut),
    ]
    return [
        {
            "required": [name],
            "properties": {"input": _NULL, "messages": _NULL, **beside, name: schema},
        }
        for there, name, schema, beside in kinds
        if there
    ]
