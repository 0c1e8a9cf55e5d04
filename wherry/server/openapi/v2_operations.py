"""What do the routes of the V2 protocol, health and metrics take and answer?

Each is here under its method and path; a test compares them with the routes that there are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from wherry.server.http.exchange import JSON
from wherry.server.http.operation import (
    ANY_TEXT,
    BINARY,
    EVENTS,
    FILE,
    NO_TEXT,
    OF_INFERENCE,
    OF_NATURAL,
    READS,
    TEXT,
    Json,
    Operation,
    json_of,
    list_of,
    object_of,
    tells,
)
from wherry.server.openapi import answers
from wherry.server.v2.settings import LOG_FORMATS
from wherry.server.v2.trace_settings import TRACE_LEVELS

_EMPTY: Final = {TEXT: NO_TEXT}
_WHOLE_NUMBER: Final[Json] = {"type": "string", "pattern": "^[0-9]{1,18}$"}


def _text_number(least: int) -> Json:
    number: Json = {"type": "integer", "minimum": least, "maximum": 2**63 - 1}
    pattern = "^(-1|[0-9]{1,18})$" if least < 0 else _WHOLE_NUMBER["pattern"]
    return {"anyOf": [number, {"type": "string", "pattern": pattern}, {"type": "null"}]}


def _or_null(kind: str, **more: Any) -> Json:
    return {"type": [kind, "null"], **more}


_LEVELS: Final = {"type": "string", "enum": list(TRACE_LEVELS)}
_AT_START: Final = "Only the server's start decides."

#: Changes of the settings; what is not said, or null, stays.
LOG_CHANGES: Final = object_of(
    {
        "log_info": _or_null("boolean"),
        "log_warning": _or_null("boolean"),
        "log_error": _or_null("boolean"),
        "log_verbose_level": _or_null("integer", minimum=0),
        "log_format": _or_null("string", enum=[*LOG_FORMATS, None]),
        "log_file": {"enum": ["", None], "description": _AT_START},
    },
    title="LogChanges",
    additionalProperties=False,
)
TRACE_CHANGES: Final = object_of(
    {
        "trace_level": {"anyOf": [list_of(_LEVELS, minItems=1), _LEVELS, {"type": "null"}]},
        "trace_rate": _text_number(0),
        "trace_count": _text_number(-1),
        "log_frequency": _text_number(0),
        "trace_file": _or_null("string", enum=["", None], description=_AT_START),
        "trace_mode": {"enum": ["triton", None], "description": _AT_START},
    },
    title="TraceChanges",
    description="null takes a setting back.",
    additionalProperties=False,
)
REGION: Final = object_of(
    {
        "key": {
            "type": "string",
            "minLength": 1,
            "description": "The name of a POSIX shared memory object.",
        },
        "byte_size": {"type": "integer", "minimum": 1},
        "offset": {"type": "integer", "minimum": 0, "default": 0},
    },
    ["key", "byte_size"],
    title="RegionRequest",
)
CUDA_REGION: Final = object_of(
    {"raw_handle": object_of({"b64": ANY_TEXT}, ["b64"]), "byte_size": {"type": "integer"}},
    ["raw_handle", "byte_size"],
    title="CudaRegionRequest",
)
_JSON_TEXT: Final[Json] = {"type": "string", "contentMediaType": JSON}
LOAD: Final = object_of(
    {
        "parameters": object_of(
            {"config": _JSON_TEXT, "config_patch": _JSON_TEXT},
            description=(
                "A configuration in place of the model's own, or changes of it, as JSON text; and"
                " files in place of its folder's, each in base64."
            ),
            patternProperties={"^file:": {"type": "string", "contentEncoding": "base64"}},
            additionalProperties=False,
        )
    },
    title="LoadRequest",
)
UNLOAD: Final = object_of(
    {"parameters": object_of({"unload_dependents": {"type": "boolean", "default": False}})},
    title="UnloadRequest",
)
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
WANTED: Final = object_of(
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
        "outputs": list_of(WANTED),
    },
    ["inputs"],
    title="InferRequest",
)
#: A member of `generate` that is no input is a parameter.
PARAMETER: Final[Json] = {"type": ["string", "number", "boolean"]}
INPUTS: Final[Json] = {
    "title": "GenerateRequest",
    "description": "The model's inputs by name; what is no input is a parameter.",
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
        "JSON, or binary tensors behind the JSON; then Inference-Header-Content-Length says how"
        " long the JSON is."
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
_COMMAND: Final = (400, 413, 501)
_TRACE: Final = tells("Tell the trace settings", answers.TraceValues)


def _command(
    summary: str, takes: Any, gives: Any, *errors: int, description: str = ""
) -> Operation:
    """An operator's command, whose body may be left out."""
    return Operation(
        summary=summary,
        description=description,
        takes=json_of(takes),
        may_be_empty=True,
        gives=json_of(gives),
        errors=(*_COMMAND, *errors),
    )


_SET_TRACE: Final = _command("Change the trace settings", TRACE_CHANGES, answers.TraceValues)


def _health(summary: str, told: Any, *errors: int, description: str = "") -> Operation:
    """What answers with JSON to a client that takes it, and else with nothing."""
    gives = {**json_of(told), **_EMPTY}
    return Operation(summary=summary, description=description, gives=gives, errors=errors)


_LIVE: Final = _health("Whether the server lives", answers.ServerLive)
_READY: Final = _health(
    "Whether the server and its models are ready",
    answers.ServerReady,
    503,
    description="With status 503 the body has the reason for each model that is not.",
)

#: What may stand behind a model's name.
_OF_MODEL: Final[dict[str, tuple[str, Operation]]] = {
    "": (
        "GET",
        tells("A model's versions, inputs and outputs", answers.ModelMetadata, 404, 503),
    ),
    "/config": (
        "GET",
        tells("A model's configuration, as Triton's ModelConfig", dict[str, Any], 404, 503),
    ),
    "/ready": ("GET", _health("Whether a model is ready", answers.ModelReady, 404, 503)),
    "/stats": ("GET", tells("A model's statistics", answers.AllStatistics, 400, 404, 503)),
    "/batching": (
        "GET",
        tells("What a model's batcher believes and has decided", answers.Batching, 404, 503),
    ),
    "/infer": ("POST", INFER),
    "/generate": ("POST", GENERATE),
    "/generate_stream": ("POST", GENERATE_STREAM),
}


def _object_with(*names: str) -> Json:
    return {"type": "object", "required": [*names]}


V2_OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/openapi.json"): tells(
        "This document",
        _object_with("openapi", "info", "paths"),
        400,
        404,
        description="With `model=NAME`, which may be there more than once, of these models only.",
        reads=("model of the document", "without"),
    ),
    ("GET", "/dashboard/numbers"): tells(
        "The numbers of the dashboard, now",
        _object_with("at", "server", "models"),
        404,
        reads=("replica",),
    ),
    ("GET", "/dashboard/events"): Operation(
        summary="The numbers of the dashboard, as they change",
        description="The first event has all of them, the others what has changed.",
        gives={EVENTS: {}},
        events={"type": "object"},
        errors=(404, 429),
        reads=("replica",),
    ),
    ("GET", "/docs"): Operation(summary="This document as a page", gives={"text/html": ANY_TEXT}),
    ("GET", "/"): Operation(summary="The start page", gives={"text/html": ANY_TEXT}),
    **{
        ("GET", path): _LIVE
        for path in ("/v2/health/live", "/livez", "/healthz", "/health", "/ping")
    },
    ("GET", "/v2/health/ready"): _READY,
    ("GET", "/readyz"): _READY,
    ("GET", "/v2"): tells("The server's name, version and extensions", answers.ServerMetadata),
    ("GET", "/v2/models"): tells(
        "Every model with its state, inputs, outputs and examples", answers.ModelList
    ),
    ("GET", "/v2/models/stats"): tells("The statistics of every model", answers.AllStatistics),
    **{
        (method, f"/v2/models/{{model}}{version}{rest}"): operation
        for rest, (method, operation) in _OF_MODEL.items()
        for version in ("", "/versions/{version}")
    },
    ("GET", "/v2/models/{model}/trace/setting"): replace(_TRACE, errors=(400, 503)),
    ("POST", "/v2/models/{model}/trace/setting"): replace(
        _SET_TRACE, summary="Change a model's trace settings"
    ),
    ("GET", "/v2/trace/setting"): _TRACE,
    ("POST", "/v2/trace/setting"): _SET_TRACE,
    ("GET", "/v2/logging"): tells("Tell the log's settings", answers.LogValues),
    ("POST", "/v2/logging"): _command("Change the log's settings", LOG_CHANGES, answers.LogValues),
    ("POST", "/v2/repository/index"): _command(
        "List the models of the repositories", answers.IndexRequest, list[answers.IndexRow], 503
    ),
    ("POST", "/v2/repository/models/{model}/load"): _command(
        "Load a model, or load it again",
        LOAD,
        {},
        404,
        503,
        description="Answers when it is ready. What a client loads is code that the server runs.",
    ),
    ("POST", "/v2/repository/models/{model}/unload"): _command(
        "Take a model out of service", UNLOAD, {}, 404, 503
    ),
    ("GET", "/metrics"): Operation(
        summary="What the server counts, for Prometheus",
        gives={TEXT: ANY_TEXT, "application/openmetrics-text": ANY_TEXT},
    ),
}

_REGIONS: Final = list[answers.RegionStatus]


def _memory(
    kind: str, region: Json, status: str, one: str, register: str, forget: str, forget_all: str
) -> dict[tuple[str, str], Operation]:
    """The routes of one kind of shared memory, each with its summary."""
    path = f"/v2/{kind}sharedmemory"
    return {
        ("GET", f"{path}/status"): tells(status, _REGIONS),
        ("GET", f"{path}/region/{{region}}/status"): tells(one, _REGIONS, 404),
        ("POST", f"{path}/region/{{region}}/register"): tells(
            register, {}, *_COMMAND, takes=json_of(region)
        ),
        ("POST", f"{path}/region/{{region}}/unregister"): tells(forget, {}),
        ("POST", f"{path}/unregister"): tells(forget_all, {}),
    }


#: Only there if the server may use its clients' shared memory.
SHARED_MEMORY_OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    **_memory(
        "system",
        REGION,
        "The registered regions",
        "A registered region, in a list",
        "Map a region of shared memory",
        "Forget a region",
        "Forget all regions",
    ),
    **_memory(
        "cuda",
        CUDA_REGION,
        "No region: this server takes no CUDA memory",
        "404: this server takes no CUDA memory",
        "501: this server takes no CUDA memory",
        "Forget a region, of which there are none",
        "Forget all regions, of which there are none",
    ),
}
