"""Which V2 paths are there over HTTP?

Differences from Triton, all on purpose: 400 for JSON that cannot be parsed, application/json for
every error, 503 with the reason where something is not ready; a load that fails is a 4xx with the
reason, where Triton answers 500 and keeps the reason in its log.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec import Struct

from wherry.core.api import Unsupported
from wherry.server.calls.client_text import encode_json
from wherry.server.http.answers import fail, respond, respond_json
from wherry.server.http.exchange import JSON, Exchange
from wherry.server.http.route import (
    ANY_TEXT,
    BINARY,
    EVENTS,
    FILE,
    OF_INFERENCE,
    OF_NATURAL,
    READS,
    Json,
    Operation,
    Patterns,
    Route,
    json_of,
    list_of,
    object_of,
)
from wherry.server.v2.administration import (
    MODEL,
    OPERATIONS,
    Administration,
    Members,
    Name,
    Named,
    V2Operation,
)
from wherry.server.v2.http.entry import HttpEntry, ModelPath, infer
from wherry.server.v2.http.generate import GenerateCall, StreamCall

_MEMBERS: Final[Json] = {
    "name": ANY_TEXT,
    "datatype": ANY_TEXT,
    "shape": list_of({"type": "integer", "minimum": 0}),
    "data": list_of({}),
    "parameters": {"type": "object"},
}
TENSOR: Final = object_of(_MEMBERS, ["name", "datatype", "shape"], title="Tensor")
#: The members of an answer that name its request and model.
ANSWERED: Final[Json] = {"id": ANY_TEXT, "model_name": ANY_TEXT, "model_version": ANY_TEXT}
TENSORS: Final = object_of(
    {**ANSWERED, "parameters": {"type": "object"}, "outputs": list_of(TENSOR)},
    ["model_name", "model_version", "outputs"],
    title="InferAnswer",
)
#: Of a request and of its tensors.
PARAMETERS: Final[Json] = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}
REQUESTED_OUTPUT: Final = object_of(
    {"name": ANY_TEXT, "parameters": PARAMETERS},
    ["name"],
    title="RequestedOutput",
    description="Parameters: binary_data, classification, and those of shared memory.",
)
INPUT_TENSOR: Final = object_of(
    _MEMBERS,
    ["name", "datatype", "shape", "data"],
    title="InputTensor",
    description="`data` is flat or nested; without it, parameters name shared memory.",
)
INFER_REQUEST: Final = object_of(
    {
        "id": ANY_TEXT,
        "parameters": PARAMETERS,
        "inputs": list_of(INPUT_TENSOR),
        "outputs": list_of(REQUESTED_OUTPUT),
    },
    ["inputs"],
    title="InferRequest",
)
#: A member of `generate` that is not an input is a parameter.
PARAMETER: Final[Json] = {"type": ["string", "number", "boolean"]}
INPUTS: Final[Json] = {
    "title": "GenerateRequest",
    "description": "The model's inputs by name; what is not an input is a parameter.",
    "type": "object",
}
OUTPUTS: Final = object_of(
    ANSWERED,
    ["model_name", "model_version"],
    title="GenerateAnswer",
    description="The model's outputs by name.",
)

_STREAM: Final = "Each response is a server-sent event; after 15 to 30 seconds without one there is"
INFER: Final = Operation(
    summary="Tensors in, tensors out",
    description=(
        "JSON, or binary tensors behind the JSON; then Inference-Header-Content-Length is the"
        " length of the JSON."
    ),
    takes={JSON: INFER_REQUEST, BINARY: FILE},
    gives={JSON: TENSORS, BINARY: FILE},
    errors=OF_INFERENCE,
    reads=READS,
)
GENERATE: Final = Operation(
    summary="Inputs by name in plain JSON, one response",
    takes=json_of(INPUTS),
    gives=json_of(OUTPUTS),
    errors=OF_NATURAL,
    reads=READS,
)
GENERATE_STREAM: Final = Operation(
    summary="Inputs by name in plain JSON, each response an event",
    description=f"{_STREAM} a comment. An error after the first is an event with `error`.",
    takes=json_of(INPUTS),
    gives={EVENTS: {}},
    events=OUTPUTS,
    errors=OF_NATURAL,
    reads=READS,
)


MODELS: Final = "/v2/models/{"
INFERENCE: Final[dict[str, tuple[Callable[[ModelPath, Exchange], None], Operation]]] = {
    "infer": (infer, INFER),
    "generate": (GenerateCall.handle, GENERATE),
    "generate_stream": (StreamCall.handle, GENERATE_STREAM),
}


class V2Routes:
    def __init__(self, entry: HttpEntry) -> None:
        self._entry = entry
        self._administration = Administration(entry, entry.common, entry.control)
        found: dict[str, Route] = {}
        for row in OPERATIONS:
            is_there = row.group != "shared-memory" or entry.common.shared_memory.allowed
            for where, operation in row.http.items():
                method, _, pattern = where.partition(" ")
                for path in _paths(pattern):
                    route = found.setdefault(path, Route({}, row.group))
                    handler = {method: partial(self._answer, row, method)}
                    about = {method: operation} if is_there and operation is not None else {}
                    found[path] = Route(
                        {**route.handlers, **handler},
                        row.group,
                        operations={**route.operations, **about},
                    )
        for word, (handle, operation) in INFERENCE.items():
            for path in _paths(f"{MODEL}/{word}"):
                found[path] = Route({"POST": handle}, "inference", operations={"POST": operation})
        for word in ("load", "unload"):
            path = f"/v2/repository/{{repository}}/models/{{model}}/{word}"
            found[path] = Route({"POST": _refuse_repository_name}, "model-repository")
        #: Those of paths without parameters.
        self.fixed = {path: route.of(Name()) for path, route in found.items() if "{" not in path}
        self.models = Patterns(
            {path: route for path, route in found.items() if path.startswith(MODELS)}, self._model
        )
        self.others = Patterns(
            {
                path: route
                for path, route in found.items()
                if path not in self.fixed and not path.startswith(MODELS)
            },
            Name,
        )

    def route(self, path: str) -> Route | None:
        """The route of a path that names a model or a region; None if there is none."""
        return self.models.route(path) or self.others.route(path)

    def _model(self, name: str, version: str | None = None) -> ModelPath:
        return ModelPath(self._entry, name, version and (version.lstrip("0") or "0"))

    def _answer(self, row: V2Operation, method: str, named: Named, exchange: Exchange) -> None:
        def do(members: Members) -> Any:
            return row.do(self._administration, named, members)

        def read() -> Members:
            posted = method == "POST"
            return self._entry.members(exchange, has_files=row.loads) if posted else {}

        if not row.in_thread:
            _respond(row, exchange, do(read()))
        elif row.loads:
            self._in_thread(row, exchange, lambda: do(read()))
        else:
            self._in_thread(row, exchange, partial(do, read()))

    def _in_thread(self, row: V2Operation, exchange: Exchange, do: Callable[[], Any]) -> None:
        port = self._entry.port()

        def answer() -> bytes:
            return _encoded(do())

        def respond_or_fail(outcome: bytes | Exception) -> None:
            if isinstance(outcome, Exception):
                fail(exchange, outcome)
            else:
                respond(exchange, outcome, compress=False)

        self._entry.control.in_thread(
            answer, lambda outcome: port.call(respond_or_fail, outcome), loads=row.loads
        )


def _paths(pattern: str) -> list[str]:
    """A path with and without its optional part."""
    before, bracket, rest = pattern.partition("[/")
    if not bracket:
        return [pattern]
    optional, _, after = rest.partition("}]")
    return [before + after, f"{before}/{optional}}}{after}"]


def _respond(row: V2Operation, exchange: Exchange, answer: Any) -> None:
    if row.group == "health":
        respond_health(exchange, answer)
    else:
        respond(exchange, _encoded(answer), compress=False)


def _encoded(answer: Any) -> bytes:
    return b"" if answer is None else encode_json(answer)


def respond_health(exchange: Exchange, answer: Struct) -> None:
    """Answer 200 to a request about health.

    Triton's answer is empty. A client that accepts JSON gets KServe's, which KServe's client
    reads. Those of Triton send no Accept.
    """
    takes = exchange.request.headers.get("accept", "")
    if any(kind in takes for kind in ("application/json", "application/*", "*/*")):
        respond_json(exchange, answer)
    else:
        respond(exchange, b"", content_type="text/plain")


def _refuse_repository_name(_: Named, exchange: Exchange) -> None:
    raise Unsupported("'repository_name' specification is not supported")
