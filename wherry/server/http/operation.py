"""What is said of one route: what it takes, what it answers, and how it fails?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wherry.server.http.exchange import JSON

Json = dict[str, Any]

TEXT: Final = "text/plain"
EVENTS: Final = "text/event-stream"
BINARY: Final = "application/octet-stream"

#: Text of which nothing more is said, and none.
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
    #: Whether the body may be left out.
    may_be_empty: bool = False
    #: The schema of the answer's body by its media type.
    gives: Mapping[str, Any] = field(default_factory=lambda: {JSON: {}})
    #: What the data of each event is, where the answer is a stream of them.
    events: Any = None
    #: Statuses of its errors, beside those that any request may have.
    errors: tuple[int, ...] = ()
    #: The schemas of errors that have a form of their own, by the status.
    failures: Mapping[int, Any] = field(default_factory=dict)
    #: Names of the parameters and headers that it reads, beside those in its path.
    reads: tuple[str, ...] = ()
    #: Other parameters, as they are written.
    parameters: tuple[Json, ...] = ()
    #: Examples of the body by media type, each with its name.
    examples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Where the summary of the group does not say it: the part of the document that it belongs to.
    tag: str = ""
    #: Its name in clients that are generated; "": from its method and path.
    id: str = ""


def json_of(schema: Any) -> dict[str, Any]:
    """The media types of a body that is JSON."""
    return {JSON: schema}


def tells(summary: str, gives: Any, *errors: int, **more: Any) -> Operation:
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
    """An inference whose answer may come in events."""
    return inference(summary, takes, gives, {EVENTS: {}}, description=STREAMED, events=events)


def object_of(
    properties: Mapping[str, Any], required: Sequence[str] | None = None, **more: Any
) -> Json:
    """The schema of an object with these members, of which some are `required`."""
    needed = {} if required is None else {"required": [*required]}
    return {"type": "object", "properties": properties, **needed, **more}


def list_of(items: Any, **more: Any) -> Json:
    """The schema of a list of these."""
    return {"type": "array", "items": items, **more}


def named(name: str, place: str, schema: Json, description: str = "", **more: Any) -> Json:
    """A parameter that is in the path, the query or a header."""
    about = {"description": description} if description else {}
    return {"name": name, "in": place, **about, "schema": schema, **more}
