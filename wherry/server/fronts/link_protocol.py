"""What crosses a link between a front and the owner of models?

msgpack, both ways, in the frames of `workers.encoding`. A column is what it is in the core: a list
as such, an array as an extension that the encoding knows. Nothing is pickled. The rows that a
message names by `ids` have these numbers among those of one model on one link; the front numbers
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from wherry.core.api import Form, FrontFigures, LoadReport, ModelConfig, SequenceStep


class LinkMessage(msgspec.Struct, array_like=True, tag=True, gc=False):
    """Tagged with its class name, its fields in order."""


# From a front


class Hello(LinkMessage):
    """The first message of a front."""

    #: The front's name, for people.
    name: str


class Rows(LinkMessage):
    """Requests of one row each that differ in their values only: no deadline, parameters,
    sequence or stream. Their ids are `first`, `first + 1` and so on."""

    model: int
    first: int
    count: int
    columns: dict[str, Any]
    tenant: str


class OneRequest(LinkMessage):
    """Any request. `timeout` is what is left of its caller's, in seconds."""

    model: int
    id: int
    rows: int
    columns: dict[str, Any]
    tenant: str
    request_id: str
    timeout: float | None
    #: As the model's configuration counts; 0: its default.
    priority: int
    parameters: Mapping[str, Any] | None
    sequence: SequenceStep | None
    requested_outputs: list[str] | None
    streams: bool
    #: The W3C's headers of the span that the front has of it; None: it is not traced.
    trace: dict[str, str] | None = None


class CancelRows(LinkMessage):
    """The callers of these are gone, or have been answered otherwise."""

    model: int
    ids: list[int]


class Consumed(LinkMessage):
    """The reader of a stream has taken responses."""

    model: int
    id: int
    responses: int


class ForwardRequest(LinkMessage):
    """An HTTP request that the owner's own application is to answer."""

    id: int
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    peer: str | None


class ForwardCall(LinkMessage):
    """A gRPC call of one message that the owner's own application is to answer."""

    id: int
    path: str
    metadata: dict[str, str]
    #: What is left of the client's deadline, in seconds.
    timeout: float | None
    message: bytes


class LoadQuery(LinkMessage):
    """The owner is to report how busy it is: `LoadReported`."""


class Forget(LinkMessage):
    """The client of a ForwardRequest or ForwardCall has left."""

    id: int


# From an owner


class SpecCard(msgspec.Struct, array_like=True):
    """A TensorSpec as it crosses: of JSON's type only whether it is a list."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    form: Form
    optional: bool
    json_list: bool
    #: What its bytes hold: the kind, and the settings.
    media: tuple[str, dict[str, Any]] | None = None
    #: The row of requests that leave it out; bytes are known to the owner only.
    default: bool | int | float | str | None = None


class ModelCard(msgspec.Struct, array_like=True):
    """A loaded version, with all that a front needs to check and encode its requests."""

    #: What messages call it on this link.
    number: int
    config: ModelConfig
    inputs: list[SpecCard]
    outputs: list[SpecCard]
    row_wise: bool
    streams: bool
    is_async: bool
    returns: str
    #: Class names of outputs, for classification.
    labels: dict[str, list[str]]
    #: String inputs whose rows must have the same shape within a batch.
    variable_strings: list[str]
    calls_others: bool
    is_ensemble: bool = False


class OwnedModels(LinkMessage):
    """All versions that can be called, and why others cannot. The first message of an owner, and
    again after each change; the front answers each with `Seen`."""

    revision: int
    cards: list[ModelCard]
    #: Name, version, state and reason of each version that is not ready.
    others: list[tuple[str, str, str, str]]


class FrontSettings(LinkMessage):
    """What all fronts of an owner need to know alike besides its models. Sent before the first
    `OwnedModels` and after each change; the front answers each with `Seen`."""

    revision: int
    #: The settings of the log, by name.
    log: dict[str, bool | int | str]
    #: Name, key, offset and size in bytes of each shared memory region that clients registered.
    regions: list[tuple[str, str, int, int]]
    #: What fronts make the names of tenants with, of keys that only a proxy knows.
    tenant_key: bytes


class Seen(LinkMessage):
    """The front serves the `OwnedModels` of this revision. From a front."""

    revision: int


class RowAnswers(LinkMessage):
    """The answers to requests of one row each, which follow each other in the columns."""

    model: int
    ids: list[int]
    columns: dict[str, Any]


class Response(LinkMessage):
    """One response to one request: its answer, or one of a stream."""

    model: int
    id: int
    rows: int
    columns: dict[str, Any]
    parameters: Mapping[str, Any] | None
    #: Whether the model marked it as the last one of a stream.
    final: bool
    #: Whether the request has ended with it.
    ends: bool


class RowsRefused(LinkMessage):
    """These requests end with an error: the name of its class, its text, and attributes that are
    not those of its class."""

    model: int
    ids: list[int]
    error: str
    text: str
    more: dict[str, bool | int | float | str | None]


class ResponsePart(LinkMessage):
    """A part of the answer to a ForwardRequest. The first one has the status and the headers, the
    last one `ends`."""

    id: int
    status: int
    content_type: str
    headers: list[tuple[str, str]]
    body: bytes
    ends: bool


class CallResponsePart(LinkMessage):
    """A part of the answer to a ForwardCall: a message, the final status, or both."""

    id: int
    message: bytes | None
    #: The name of the status; "": more messages follow.
    code: str = ""
    text: str = ""
    metadata: list[tuple[str, str]] = []

    @property
    def ends(self) -> bool:
        return bool(self.code)


class LoadReported(LinkMessage):
    load: LoadReport


class Measure(LinkMessage):
    """The front is to report its figures: `FrontMeasured`."""


class FrontMeasured(LinkMessage):
    figures: FrontFigures


FromFront = (
    Hello
    | Rows
    | OneRequest
    | CancelRows
    | Consumed
    | ForwardRequest
    | ForwardCall
    | LoadQuery
    | Forget
    | Seen
    | FrontMeasured
)
FromOwner = (
    OwnedModels
    | FrontSettings
    | RowAnswers
    | Response
    | RowsRefused
    | ResponsePart
    | CallResponsePart
    | LoadReported
    | Measure
)


def ids_of(message: Rows | OneRequest | RowAnswers | Response) -> list[int]:
    if isinstance(message, Rows):
        return list(range(message.first, message.first + message.count))
    return message.ids if isinstance(message, RowAnswers) else [message.id]
