"""What does the OpenAPI document of a server hold?

The routes themselves have the group of a path, whether it needs a key, and its methods; the tables
of this room have what goes in and comes out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wherry.core.api import LoadedModel
from wherry.llm.api import (
    ABLE,
    MESSAGES,
    MOST_ROLE_CHARS,
    MOST_ROWS,
    AnthropicError,
    OpenAIError,
    abilities,
    speaks_openai,
    vector_fit,
)
from wherry.server.access.api_keys import GROUPS, Restrictions
from wherry.server.http.exchange import JSON, Error
from wherry.server.http.route import (
    ANY_TEXT,
    EVENTS,
    Json,
    Operation,
    Route,
    list_of,
    named,
    object_of,
)
from wherry.server.openapi.model_schemas import SchemaRegistry, model_operations, without_raw

#: More names than these are of no use to a reader.
MOST_NAMES: Final = 100
#: The requests, and the ability that a model has.
REQUESTS: Final = {
    "EmbeddingRequest": "embeddings",
    "RerankRequest": "scores",
    "ScoreRequest": "scores",
}
_NULL: Final[Json] = {"type": "null"}
_TOKENS: Final = list_of({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, minItems=1)
_DOCUMENT: Final[Json] = {"anyOf": [ANY_TEXT, {"$ref": "#/components/schemas/TextDocument"}]}
_DOCUMENTS: Final[Json] = {
    "anyOf": [*_DOCUMENT["anyOf"], list_of(_DOCUMENT, minItems=1, maxItems=MOST_ROWS)]
}
_TEXTS: Final = list_of(ANY_TEXT, minItems=1, maxItems=MOST_ROWS)

#: The content of a message: a text, or parts that are texts.
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
    for name, ability in REQUESTS.items():
        if able := [model for model in models if ABLE[ability](model)]:
            made[name] = _keywords(name, able)
    return made


def _keywords(name: str, able: Sequence[LoadedModel]) -> Json:
    properties: Json = {}
    levels = [m.config.priority_levels for m in able]
    if all(levels):  # else any number is the same
        properties["priority"] = {"enum": [*range(max(levels) + 1), None]}
    more: Json = {}
    names = sorted({m.name for m in able})
    if len(names) > 1:
        more["required"] = ["model"]
    if len(names) <= MOST_NAMES:
        properties["model"] = {"enum": names if more else [*names, None]}
    if name == "EmbeddingRequest":
        fits = [fit for m in able if (fit := vector_fit(m.signature)) is not None]
        widths = [fit.vector.shape[0] for fit in fits]
        most = {"maximum": max(widths)} if min(widths) >= 0 else {}
        properties["dimensions"] = {"anyOf": [{"type": "integer", "minimum": 1, **most}, _NULL]}
        lists = list_of(_TOKENS, minItems=1, maxItems=MOST_ROWS)
        read = [ANY_TEXT, _TEXTS] if any(fit.text for fit in fits) else []
        read += [_TOKENS, lists] if any(fit.tokens for fit in fits) else []
        properties["input"] = {"anyOf": read}
        more["required"] = ["input", *more.get("required", ())]
        return {"properties": properties, **more}
    first, *others = ("text_1", "text_2") if name == "ScoreRequest" else ("query", "documents")
    properties |= dict.fromkeys(others if first == "query" else (first, *others), _DOCUMENTS)
    more["required"] = [first, *others, *more.get("required", ())]
    return {"properties": properties, **more}


#: Models that have paths of their own in a document; the others have those of any model. A
#: thousand would be megabytes, which no page shows and no generator of clients survives.
MAX_MODELS: Final = 100

#: That of a loaded model, at whatever path.
_OF_A_MODEL: Final = Route({}, "inference")


def _in_path(name: str, description: str, **limits: Any) -> Json:
    return named(name, "path", {**ANY_TEXT, **limits}, description, required=True)


_GROUPS: Final = list_of({"type": "string", "enum": list(GROUPS)})
#: In paths, queries and headers; by its name, where no other has the same.
PARAMETERS: Final[dict[str, Json]] = {
    "model": _in_path("model", "The name of a model.", pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$"),
    "response": _in_path(
        "response", "The id of a response that is kept.", pattern="^resp_[0-9a-f]+$"
    ),
    "version": _in_path(
        "version",
        "A version of the model; the paths without one mean the highest.",
        pattern="^[0-9]+$",
    ),
    "region": _in_path("region", "The name of a region of shared memory.", minLength=1),
    "without": named("without", "query", _GROUPS, "Groups of routes that are left out."),
    "model of the document": named(
        "model", "query", list_of(ANY_TEXT, maxItems=16), "Names of models."
    ),
    "X-Request-Timeout": named(
        "X-Request-Timeout",
        "header",
        {"type": "number", "exclusiveMinimum": 0},
        "Seconds; past them the answer is 504.",
    ),
    "X-Request-Id": named("X-Request-Id", "header", ANY_TEXT, "Comes back with the answer."),
    "X-Tenant-Id": named(
        "X-Tenant-Id", "header", ANY_TEXT, "On whose behalf; tenants are served in turns."
    ),
}
FAILURES: Final = {
    400: "The request is wrong; the error names what is.",
    401: "A valid API key is needed.",
    403: "This part of the server is not for this client, or for a page of another origin.",
    404: "There is no such model, version, region or path.",
    406: "The answer has no type that Accept names.",
    413: "The request is too large.",
    415: "The model takes no body of this type.",
    421: "The server does not answer to this host name.",
    422: "The request crashes the processes that run it, and is refused for a while.",
    429: "Overloaded; nothing was queued. Retry later.",
    499: "The request was cancelled.",
    500: "The model, or the server, has failed.",
    501: "The model or the protocol has no such feature.",
    503: "Not ready, or too busy. Retry later.",
    504: "Not finished in time.",
}
_RETRIED: Final = (429, 503)
#: Names of the routes' groups, as tags; others are called like the group.
_ERRORS: Final = {"": Error, "openai": OpenAIError, "anthropic": AnthropicError}


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedServer:
    """What a document describes: a server's models, and the routes that its clients may use."""

    version: str
    models: Sequence[LoadedModel]
    #: By their paths; those of loaded models are written beside them.
    routes: Mapping[str, Route]
    has_keys: bool = False
    restrictions: Restrictions | None = None
    #: The groups of routes that are left out.
    without: Collection[str] = ()


def document(served: DescribedServer) -> Json:
    return OpenApiWriter(served).written()


class OpenApiWriter:
    def __init__(self, served: DescribedServer) -> None:
        self._served = served
        self._registry = SchemaRegistry()
        self._responses: dict[str, Json] = {}
        self._used: dict[str, Json] = {}
        self._ids: set[str] = set()
        self._tags: dict[str, None] = {}

    def written(self) -> Json:
        paths: dict[str, Json] = {}
        own = {loaded.config.route for loaded in self._served.models}
        for path, route, operations in self._operations():
            if path not in own or route is _OF_A_MODEL:  # which has the place of a protocol's
                for method, operation in operations.items():
                    described = self._operation(method, path, operation, route)
                    paths.setdefault(path, {})[method.lower()] = described
        chats = {"ChatRequest": {"properties": {"messages": CHAT_MESSAGES}}}
        self._registry.sharpen({**chats, **task_schemas(self._served.models)})
        about, tags = self._about(), [{"name": name} for name in self._tags]
        return {
            "openapi": "3.1.0",
            "info": {"title": "wherry", "version": self._served.version, "description": about},
            # Relative to the document: whatever prefix a proxy has put before it, stays.
            "servers": [{"url": "."}],
            "tags": tags,
            "paths": paths,
            "components": {
                "schemas": dict(sorted(self._registry.schemas.items())),
                "responses": dict(sorted(self._responses.items())),
                "parameters": self._used,
                "headers": HEADERS,
                "securitySchemes": self._schemes(),
            },
        }

    def _about(self) -> str:
        text = "An inference server."
        names = len(self._served.models)
        if names > MAX_MODELS:
            text += (
                f" {names} models are loaded; the paths of {MAX_MODELS} of them are here, the"
                " others have those of any model. openapi.json?model=NAME has those of NAME."
            )
        return text

    def _operations(self) -> Iterator[tuple[str, Route, Mapping[str, Operation]]]:
        served = self._served
        if self._is_served(_OF_A_MODEL):
            for loaded in _highest(served.models)[:MAX_MODELS]:
                for path, operation in model_operations(loaded, self._registry):
                    yield path, _OF_A_MODEL, {"POST": operation}
        able = {ability for loaded in served.models for ability in abilities(loaded)}
        for path, route in served.routes.items():
            if self._is_served(route) and (not route.needs or able.intersection(route.needs)):
                yield path, route, route.operations

    def _is_served(self, route: Route) -> bool:
        rules = self._served.restrictions
        is_off = rules is not None and rules.is_off(route.group)
        return route.group not in self._served.without and not is_off

    def _operation(self, method: str, path: str, operation: Operation, route: Route) -> Json:
        made: Json = {
            "operationId": self._id(operation.id or _id_of(method, path)),
            "summary": operation.summary,
            "tags": [self._tag(operation.tag or self._wire(path, route) or route.group)],
        }
        if route is _OF_A_MODEL:
            made["x-model"] = operation.tag  # a group of routes may have the same name
        if operation.description:
            made["description"] = operation.description
        in_path = re.findall(r"{(\w+)}", path)
        named = [self._parameter(name) for name in (*in_path, *operation.reads)]
        if parameters := [*named, *operation.parameters]:
            made["parameters"] = parameters
        if operation.takes:
            made["requestBody"] = {
                "required": not operation.may_be_empty,
                "content": self._content(
                    {media: without_raw(kind) for media, kind in operation.takes.items()},
                    operation.examples,
                ),
            }
        made["responses"] = self._answers(operation, route, self._wire(path, route))
        if security := self._security(route):
            made["security"] = security
        return made

    def _content(
        self, bodies: Mapping[str, Any], examples: Mapping[str, Any], events: Any = None
    ) -> Json:
        content: Json = {}
        for media, schema in bodies.items():
            if media == EVENTS:
                schema = self._event(events)
            content[media] = {"schema": self._registry.of(schema)} if schema != {} else {}
            if examples.get(media):
                content[media]["examples"] = examples[media]
        return content

    def _event(self, holds: Any) -> Json:
        """One event of a stream, as OpenAPI 3.2 has it; 3.1 has nothing for them."""
        inside = {"contentMediaType": JSON, "contentSchema": self._registry.of(holds)}
        return {
            "type": "object",
            "properties": {"data": {"type": "string", **inside}},
            "required": ["data"],
        }

    def _answers(self, operation: Operation, route: Route, wire: str) -> Json:
        content = self._content(operation.gives, {}, operation.events)
        answers: Json = {"200": {"description": "Done.", "content": content}}
        statuses = {*operation.errors, *operation.failures, 403, 421}
        if not route.open:
            statuses |= {401, 503} if self._served.has_keys else {503}
        for status in sorted(statuses):
            answers[str(status)] = self._failure(status, operation, wire)
        return answers

    def _failure(self, status: int, operation: Operation, wire: str) -> Json:
        name = f"{_ERRORS[wire].__name__}{status}"
        schema = self._registry.of(Error)
        if wire:
            # What is refused before the route is known has the form of all others.
            both = [self._registry.of(_ERRORS[wire]), schema]
            schema = {"anyOf": both} if status in (403, 421, 500, 503) else both[0]
        if (own := operation.failures.get(status)) is not None:
            name, schema = own.__name__, self._registry.of(own)
        content: Json = {JSON: {"schema": schema}}
        if operation.events is not None and not wire:
            # A stream whose first response is an error has its status, and is a stream still.
            name, content[EVENTS] = f"StreamError{status}", {"schema": self._event(Error)}
        headers: Json = {"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}}
        if status in _RETRIED:
            headers["Retry-After"] = {"$ref": "#/components/headers/Retry-After"}
        self._responses[name] = {
            "description": FAILURES[status],
            "headers": headers,
            "content": content,
        }
        return {"$ref": f"#/components/responses/{name}"}

    def _wire(self, path: str, route: Route) -> str:
        """Whose clients a path is for; "" if they are not a language model's."""
        if route is _OF_A_MODEL:
            return ""
        if path.startswith(MESSAGES):
            return "anthropic"
        return "openai" if speaks_openai(path) else ""

    def _parameter(self, name: str) -> Json:
        key = name.replace(" ", "_")
        self._used[key] = PARAMETERS[name]
        return {"$ref": f"#/components/parameters/{key}"}

    def _tag(self, name: str) -> str:
        self._tags[name] = None
        return name

    def _id(self, preferred: str) -> str:
        """A name for functions of generated clients; those may not distinguish cases and signs."""
        base = re.sub(r"\W+", "_", preferred, flags=re.ASCII).strip("_")
        name, number = base, 1
        while name.lower().replace("_", "") in self._ids:
            number += 1
            name = f"{base}_{number}"
        self._ids.add(name.lower().replace("_", ""))
        return name

    # Access

    def _security(self, route: Route) -> list[Json]:
        rules = self._served.restrictions
        header = None if rules is None else rules.header_of(route.group)
        more: Json = {} if header is None else {_scheme_of(header): []}
        if self._served.has_keys and not route.open:
            return [{"bearer": [], **more}, {"apiKey": [], **more}]
        return [more] if more else []

    def _schemes(self) -> Json:
        schemes: Json = {}
        if self._served.has_keys:
            schemes["bearer"] = {"type": "http", "scheme": "bearer"}
            schemes["apiKey"] = {"type": "apiKey", "in": "header", "name": "X-API-Key"}
        rules = self._served.restrictions
        for header in () if rules is None else sorted(rules.headers):
            schemes[_scheme_of(header)] = {"type": "apiKey", "in": "header", "name": header}
        return schemes


HEADERS: Final[Json] = {
    "X-Request-Id": {
        "description": "The request's own id, or one that the server's log has.",
        "schema": {"type": "string"},
    },
    "Retry-After": {
        "description": "Seconds after which a retry may succeed.",
        "schema": {"type": "integer", "minimum": 0},
    },
}


def _highest(models: Sequence[LoadedModel]) -> list[LoadedModel]:
    """The highest version of each model, by name: what a path without a version means."""
    by_name: dict[str, LoadedModel] = {}
    for loaded in sorted(models, key=lambda one: (one.name, int(one.version))):
        by_name[loaded.name] = loaded
    return list(by_name.values())


def _scheme_of(header: str) -> str:
    return "header." + re.sub(r"[^A-Za-z0-9_-]", "_", header.lower())


def _id_of(method: str, path: str) -> str:
    """`get_model_version_config` of `/v2/models/{model}/versions/{version}/config`."""
    words = re.sub(r"s?/{\w+}", "", path.removeprefix("/v2"))
    return f"{method.lower()}_{words.strip('/') or 'server'}"
