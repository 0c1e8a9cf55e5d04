"""Which handler answers a path, and how is it described?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from wherry.server.http.exchange import JSON

Json = dict[str, Any]

TEXT: Final = "text/plain"
EVENTS: Final = "text/event-stream"
BINARY: Final = "application/octet-stream"

#: Bodies without a schema: a file, any text, no text.
FILE: Final[Json] = {"type": "string", "format": "binary", "contentMediaType": BINARY}
ANY_TEXT: Final[Json] = {"type": "string"}
NO_TEXT: Final[Json] = {"type": "string", "maxLength": 0}

#: Statuses of a request that a model is to run.
OF_INFERENCE: Final = (400, 404, 413, 422, 429, 499, 500, 501, 503, 504)
#: The same, where the body may be of several types.
OF_NATURAL: Final = (*OF_INFERENCE, 406, 415)
#: Parameters and headers of such a request.
READS: Final = ("X-Request-Timeout", "X-Request-Id", "X-Tenant-Id")
STREAMED: Final = "With `stream` the answer is a stream of server-sent events."


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path. A schema is a type that msgspec describes, or JSON as it is."""

    summary: str
    description: str = ""
    #: The schema of the request's body by its media type; empty: it has none.
    takes: Mapping[str, Any] = field(default_factory=dict)
    may_be_empty: bool = False
    gives: Mapping[str, Any] = field(default_factory=lambda: {JSON: {}})
    #: What the data of each event is, where the answer is a stream of them.
    events: Any = None
    #: Statuses of its errors, beside those that any request may have.
    errors: tuple[int, ...] = ()
    #: The schemas of errors that have a form of their own, by the status.
    failures: Mapping[int, Any] = field(default_factory=dict)
    #: Names of the parameters and headers that it reads, beside those in its path.
    reads: tuple[str, ...] = ()
    parameters: tuple[Json, ...] = ()
    #: Examples of the body by media type, each with its name.
    examples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: The part of the document that it belongs to, unless that is its group's.
    tag: str = ""
    #: Its name in clients that are generated; "": from its method and path.
    id: str = ""


def json_of(schema: Any) -> dict[str, Any]:
    return {JSON: schema}


def returns(summary: str, gives: Any, *errors: int, **more: Any) -> Operation:
    """An operation that answers with JSON, or with one of these statuses."""
    return Operation(summary=summary, gives=json_of(gives), errors=errors, **more)


def inference(
    summary: str, takes: Any, gives: Any, also: Mapping[str, Any] = {}, **more: Any
) -> Operation:
    """What a model runs for. `also`: answers of other types than JSON."""
    return Operation(
        summary=summary,
        takes=json_of(takes),
        gives={JSON: gives, **also},
        errors=OF_INFERENCE,
        reads=READS,
        **more,
    )


def generation(summary: str, takes: Any, gives: Any, events: Any) -> Operation:
    return inference(summary, takes, gives, {EVENTS: {}}, description=STREAMED, events=events)


def object_of(
    properties: Mapping[str, Any], required: Sequence[str] | None = None, **more: Any
) -> Json:
    """The schema of an object with these members, of which some are `required`."""
    needed = {} if required is None else {"required": [*required]}
    return {"type": "object", "properties": properties, **needed, **more}


def list_of(items: Any, **more: Any) -> Json:
    return {"type": "array", "items": items, **more}


def named(name: str, place: str, schema: Json, description: str = "", **more: Any) -> Json:
    """A parameter that is in the path, the query or a header."""
    about = {"description": description} if description else {}
    return {"name": name, "in": place, **about, "schema": schema, **more}


#: Called with the values of the parameters in the path, if it has any, and the exchange.
Handler = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Route:
    """The handlers of one path by their methods, and the group of the API that it belongs to.

    `group` is one of `restricted.GROUPS`: what an operator restricts, switches off, or serves on
    a port of its own. An `open` route needs no key: load balancers probe these.
    """

    handlers: Mapping[str, Handler]
    group: str
    open: bool = False
    operations: Mapping[str, Operation] = field(default_factory=dict)
    #: Abilities of models; the document has the route if a model has one of them, or this is empty.
    needs: tuple[str, ...] = ()

    def of(self, *arguments: object) -> Route:
        """The route whose handlers are called with these arguments, and the exchange."""
        handlers = {name: partial(handler, *arguments) for name, handler in self.handlers.items()}
        return replace(self, handlers=handlers)


class Patterns:
    """Routes of paths with parameters, as `/v2/models/{model}`; `{name*}` may have slashes in it,
    and `{version:[0-9]+}` must match.

    The handlers are called with the parameters' values, or what `argument` makes of them once for
    each lookup, and the exchange.
    """

    def __init__(
        self, routes: Mapping[str, Route], argument: Callable[..., object] | None = None
    ) -> None:
        self._argument = argument
        #: By their paths as OpenAPI writes them.
        self.routes = {re.sub(r"(\*|:[^}]+)}", "}", path): route for path, route in routes.items()}
        self._compiled = [(_compiled(pattern), route) for pattern, route in routes.items()]

    def route(self, path: str) -> Route | None:
        for pattern, route in self._compiled:
            if (found := pattern.fullmatch(path)) is not None:
                values = found.groups()
                return (
                    route.of(*values)
                    if self._argument is None
                    else route.of(self._argument(*values))
                )
        return None


def _compiled(pattern: str) -> re.Pattern[str]:
    # Texts, and between them what a parameter may be.
    parts = re.split(r"{\w+(\*|:[^}]+|)}", pattern)
    kinds = {"": "[^/]+", "*": ".*"}
    groups = [f"({kinds.get(kind, kind[1:])})" for kind in parts[1::2]]
    texts = [re.escape(text) for text in parts[::2]]
    return re.compile("".join(a + b for a, b in zip(texts, [*groups, ""], strict=True)))
