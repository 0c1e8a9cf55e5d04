"""What do the routes of the V2 protocol, health and metrics take and answer?

Each is here under its method and path; a test compares them with the routes that there are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from wherry.frontends.openapi import answers
from wherry.frontends.openapi.operation import (
    ANY_TEXT,
    BINARY,
    EVENTS,
    FILE,
    JSON,
    NO_TEXT,
    TEXT,
    Json,
    Operation,
    json_of,
)
from wherry.frontends.v2.settings import LOG_FORMATS
from wherry.frontends.v2.trace_settings import TRACE_LEVELS

#: Statuses of a request that a model is to run.
OF_INFERENCE: Final = (400, 404, 413, 422, 429, 499, 500, 501, 503, 504)
#: The same, where the body may be of several types.
OF_NATURAL: Final = (*OF_INFERENCE, 406, 415)
#: Parameters and headers of such a request.
READS: Final = ("X-Request-Timeout", "X-Request-Id", "X-Tenant-Id")

_EMPTY: Final = {TEXT: NO_TEXT}
#: Of a command: application/json, and nothing in it.
_DONE: Final = json_of({})
_WHOLE_NUMBER: Final[Json] = {"type": "string", "pattern": "^[0-9]{1,18}$"}


def _text_number(least: int) -> Json:
    number: Json = {"type": "integer", "minimum": least, "maximum": 2**63 - 1}
    pattern = "^(-1|[0-9]{1,18})$" if least < 0 else _WHOLE_NUMBER["pattern"]
    return {"anyOf": [number, {"type": "string", "pattern": pattern}, {"type": "null"}]}


_LEVELS: Final = {"type": "string", "enum": list(TRACE_LEVELS)}

#: Changes of the settings; what is not said, or null, stays.
LOG_CHANGES: Final[Json] = {
    "title": "LogChanges",
    "type": "object",
    "properties": {
        "log_info": {"type": ["boolean", "null"]},
        "log_warning": {"type": ["boolean", "null"]},
        "log_error": {"type": ["boolean", "null"]},
        "log_verbose_level": {"type": ["integer", "null"], "minimum": 0},
        "log_format": {"type": ["string", "null"], "enum": [*LOG_FORMATS, None]},
        "log_file": {
            "enum": ["", None],
            "description": "Only the server's start decides.",
        },
    },
    "additionalProperties": False,
}
TRACE_CHANGES: Final[Json] = {
    "title": "TraceChanges",
    "description": "null takes a setting back.",
    "type": "object",
    "properties": {
        "trace_level": {
            "anyOf": [
                {"type": "array", "items": _LEVELS, "minItems": 1},
                _LEVELS,
                {"type": "null"},
            ]
        },
        "trace_rate": _text_number(0),
        "trace_count": _text_number(-1),
        "log_frequency": _text_number(0),
        "trace_file": {
            "type": ["string", "null"],
            "enum": ["", None],
            "description": "Only the server's start decides.",
        },
        "trace_mode": {"enum": ["triton", None], "description": "Only the server's start decides."},
    },
    "additionalProperties": False,
}
REGION: Final[Json] = {
    "title": "RegionRequest",
    "type": "object",
    "properties": {
        "key": {
            "type": "string",
            "minLength": 1,
            "description": "The name of a POSIX shared memory object.",
        },
        "byte_size": {"type": "integer", "minimum": 1},
        "offset": {"type": "integer", "minimum": 0, "default": 0},
    },
    "required": ["key", "byte_size"],
}
CUDA_REGION: Final[Json] = {
    "title": "CudaRegionRequest",
    "type": "object",
    "properties": {
        "raw_handle": {
            "type": "object",
            "properties": {"b64": {"type": "string"}},
            "required": ["b64"],
        },
        "byte_size": {"type": "integer"},
    },
    "required": ["raw_handle", "byte_size"],
}
_JSON_TEXT: Final[Json] = {"type": "string", "contentMediaType": JSON}
LOAD: Final[Json] = {
    "title": "LoadRequest",
    "type": "object",
    "properties": {
        "parameters": {
            "description": (
                "A configuration in place of the model's own, or changes of it, as JSON text; and"
                " files in place of its folder's, each in base64."
            ),
            "type": "object",
            "properties": {"config": _JSON_TEXT, "config_patch": _JSON_TEXT},
            "patternProperties": {"^file:": {"type": "string", "contentEncoding": "base64"}},
            "additionalProperties": False,
        }
    },
}
UNLOAD: Final[Json] = {
    "title": "UnloadRequest",
    "type": "object",
    "properties": {
        "parameters": {
            "type": "object",
            "properties": {"unload_dependents": {"type": "boolean", "default": False}},
        }
    },
}
TENSOR: Final[Json] = {
    "title": "Tensor",
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "datatype": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "data": {"type": "array", "items": {}},
        "parameters": {"type": "object"},
    },
    "required": ["name", "datatype", "shape"],
}
TENSORS: Final[Json] = {
    "title": "InferAnswer",
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "parameters": {"type": "object"},
        "outputs": {"type": "array", "items": TENSOR},
    },
    "required": ["model_name", "model_version", "outputs"],
}
#: Of a request and of its tensors.
PARAMETERS: Final[Json] = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}
WANTED: Final[Json] = {
    "title": "RequestedOutput",
    "description": "Parameters: binary_data, classification, and those of shared memory.",
    "type": "object",
    "properties": {"name": {"type": "string"}, "parameters": PARAMETERS},
    "required": ["name"],
}
INPUT_TENSOR: Final[Json] = {
    **TENSOR,
    "title": "InputTensor",
    "description": "`data` is flat or nested; without it, parameters name shared memory.",
    "required": ["name", "datatype", "shape", "data"],
}
INFER_REQUEST: Final[Json] = {
    "title": "InferRequest",
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "parameters": PARAMETERS,
        "inputs": {"type": "array", "items": INPUT_TENSOR},
        "outputs": {"type": "array", "items": WANTED},
    },
    "required": ["inputs"],
}
#: A member of `generate` that is no input is a parameter.
PARAMETER: Final[Json] = {"type": ["string", "number", "boolean"]}
INPUTS: Final[Json] = {
    "title": "GenerateRequest",
    "description": "The model's inputs by name; what is no input is a parameter.",
    "type": "object",
}
OUTPUTS: Final[Json] = {
    "title": "GenerateAnswer",
    "description": "The model's outputs by name.",
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
    },
    "required": ["model_name", "model_version"],
}

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
_TRACE: Final = Operation(
    summary="Tell the trace settings", gives=json_of(answers.TraceValues), errors=()
)
_SET_TRACE: Final = Operation(
    summary="Change the trace settings",
    takes=json_of(TRACE_CHANGES),
    may_be_empty=True,
    gives=json_of(answers.TraceValues),
    errors=(400, 413, 501),
)
_LIVE: Final = Operation(
    summary="Whether the server lives", gives={**json_of(answers.ServerLive), **_EMPTY}
)
_READY: Final = Operation(
    summary="Whether the server and its models are ready",
    description="With status 503 the body has the reason for each model that is not.",
    gives={**json_of(answers.ServerReady), **_EMPTY},
    errors=(503,),
)
_INDEX: Final = Operation(
    summary="List the models of the repositories",
    takes=json_of(answers.IndexRequest),
    may_be_empty=True,
    gives=json_of(list[answers.IndexRow]),
    errors=(400, 413, 501, 503),
)

#: What may stand behind a model's name.
_OF_MODEL: Final[dict[str, tuple[str, Operation]]] = {
    "": (
        "GET",
        Operation(
            summary="A model's versions, inputs and outputs",
            gives=json_of(answers.ModelMetadata),
            errors=(404, 503),
        ),
    ),
    "/config": (
        "GET",
        Operation(
            summary="A model's configuration, as Triton's ModelConfig",
            gives=json_of(dict[str, Any]),
            errors=(404, 503),
        ),
    ),
    "/ready": (
        "GET",
        Operation(
            summary="Whether a model is ready",
            gives={**json_of(answers.ModelReady), **_EMPTY},
            errors=(404, 503),
        ),
    ),
    "/stats": (
        "GET",
        Operation(
            summary="A model's statistics",
            gives=json_of(answers.AllStatistics),
            errors=(400, 404, 503),
        ),
    ),
    "/batching": (
        "GET",
        Operation(
            summary="What a model's batcher believes and has decided",
            gives=json_of(answers.Batching),
            errors=(404, 503),
        ),
    ),
    "/infer": ("POST", INFER),
    "/generate": ("POST", GENERATE),
    "/generate_stream": ("POST", GENERATE_STREAM),
}

V2_OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/openapi.json"): Operation(
        summary="This document",
        description="With `model=NAME`, which may be there more than once, of these models only.",
        gives=json_of({"type": "object", "required": ["openapi", "info", "paths"]}),
        errors=(400, 404),
        reads=("model of the document", "without"),
    ),
    ("GET", "/dashboard/numbers"): Operation(
        summary="The numbers of the dashboard, now",
        gives=json_of({"type": "object", "required": ["at", "server", "models"]}),
        errors=(404,),
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
    ("GET", "/v2/health/live"): _LIVE,
    ("GET", "/livez"): _LIVE,
    ("GET", "/healthz"): _LIVE,
    ("GET", "/health"): _LIVE,
    ("GET", "/ping"): _LIVE,
    ("GET", "/v2/health/ready"): _READY,
    ("GET", "/readyz"): _READY,
    ("GET", "/v2"): Operation(
        summary="The server's name, version and extensions",
        gives=json_of(answers.ServerMetadata),
    ),
    ("GET", "/v2/models"): Operation(
        summary="Every model with its state, inputs, outputs and examples",
        gives=json_of(answers.ModelList),
    ),
    ("GET", "/v2/models/stats"): Operation(
        summary="The statistics of every model", gives=json_of(answers.AllStatistics)
    ),
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
    ("GET", "/v2/logging"): Operation(
        summary="Tell the log's settings", gives=json_of(answers.LogValues)
    ),
    ("POST", "/v2/logging"): Operation(
        summary="Change the log's settings",
        takes=json_of(LOG_CHANGES),
        may_be_empty=True,
        gives=json_of(answers.LogValues),
        errors=(400, 413, 501),
    ),
    ("POST", "/v2/repository/index"): _INDEX,
    ("POST", "/v2/repository/models/{model}/load"): Operation(
        summary="Load a model, or load it again",
        description="Answers when it is ready. What a client loads is code that the server runs.",
        takes=json_of(LOAD),
        may_be_empty=True,
        gives=_DONE,
        errors=(400, 404, 413, 501, 503),
    ),
    ("POST", "/v2/repository/models/{model}/unload"): Operation(
        summary="Take a model out of service",
        takes=json_of(UNLOAD),
        may_be_empty=True,
        gives=_DONE,
        errors=(400, 404, 413, 501, 503),
    ),
    ("GET", "/metrics"): Operation(
        summary="What the server counts, for Prometheus",
        gives={TEXT: ANY_TEXT, "application/openmetrics-text": ANY_TEXT},
    ),
}

_REGIONS: Final = json_of(list[answers.RegionStatus])
#: Only there if the server may use its clients' shared memory.
SHARED_MEMORY_OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/v2/systemsharedmemory/status"): Operation(
        summary="The registered regions", gives=_REGIONS
    ),
    ("GET", "/v2/systemsharedmemory/region/{region}/status"): Operation(
        summary="A registered region, in a list", gives=_REGIONS, errors=(404,)
    ),
    ("POST", "/v2/systemsharedmemory/region/{region}/register"): Operation(
        summary="Map a region of shared memory",
        takes=json_of(REGION),
        gives=_DONE,
        errors=(400, 413, 501),
    ),
    ("POST", "/v2/systemsharedmemory/region/{region}/unregister"): Operation(
        summary="Forget a region", gives=_DONE
    ),
    ("POST", "/v2/systemsharedmemory/unregister"): Operation(
        summary="Forget all regions", gives=_DONE
    ),
    ("GET", "/v2/cudasharedmemory/status"): Operation(
        summary="No region: this server takes no CUDA memory", gives=_REGIONS
    ),
    ("GET", "/v2/cudasharedmemory/region/{region}/status"): Operation(
        summary="404: this server takes no CUDA memory", gives=_REGIONS, errors=(404,)
    ),
    ("POST", "/v2/cudasharedmemory/region/{region}/register"): Operation(
        summary="501: this server takes no CUDA memory",
        takes=json_of(CUDA_REGION),
        gives=_DONE,
        errors=(400, 413, 501),
    ),
    ("POST", "/v2/cudasharedmemory/region/{region}/unregister"): Operation(
        summary="Forget a region, of which there are none", gives=_DONE
    ),
    ("POST", "/v2/cudasharedmemory/unregister"): Operation(
        summary="Forget all regions, of which there are none", gives=_DONE
    ),
}
