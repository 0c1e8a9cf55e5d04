"""Which queries and commands, apart from inference, does V2 have for a server and its models?

Each query and each command is one row of OPERATIONS: HTTP matches the paths, gRPC the name, and
the OpenAPI document shows what goes in and comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from wherry.core.api import (
    AccessDenied,
    InvalidRequest,
    LoadedModel,
    ModelNotFound,
    ModelNotReady,
    RegionNotFound,
    Tag,
    Unsupported,
)
from wherry.server.calls.call import Entry
from wherry.server.calls.client_text import without_paths
from wherry.server.calls.settings import LOG_FORMATS, TRACE_LEVELS
from wherry.server.content.urls import decoded
from wherry.server.http.exchange import JSON
from wherry.server.http.route import (
    NO_TEXT,
    TEXT,
    Json,
    Operation,
    json_of,
    list_of,
    object_of,
    returns,
)
from wherry.server.v2 import describe
from wherry.server.v2.batching import batching
from wherry.server.v2.common import Common
from wherry.server.v2.describe import ExactAnswer
from wherry.server.v2.shared_memory import SharedRegion
from wherry.triton.api import ModelControl

EXTENSIONS: Final = (
    "classification",
    "sequence",
    "schedule_policy",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "system_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
    "generate",
)
FILE: Final = "file:"
_TEXTS: Final = {"config": "config", "config_patch": "patch"}


class ModelReady(ExactAnswer):
    """The model is ready. Only for clients whose Accept has JSON."""

    name: str
    ready: bool


class ServerMetadata(ExactAnswer):
    """The server's name, its version, and the extensions of the V2 protocol that it has."""

    name: str
    version: str
    extensions: list[str]


class Batching(msgspec.Struct, kw_only=True):
    """What the batcher believes and has decided; which members there are depends on the policy."""

    name: str
    version: str
    max_batch_size: int
    queued_requests: int


class IndexRequest(msgspec.Struct, kw_only=True):
    """Which models are to be listed: those that are ready only, or all."""

    ready: bool = False


class IndexRow(ExactAnswer, omit_defaults=True):
    """A model of the repositories; one that was never loaded has a name only."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


class LogValues(ExactAnswer):
    """The settings of the server's log."""

    log_file: str
    log_info: bool
    log_warning: bool
    log_error: bool
    log_verbose_level: int
    log_format: str


class TraceValues(ExactAnswer):
    """The settings of the server's, or of one model's traces; numbers as text, as in Triton."""

    trace_level: list[Literal["OFF", "TIMESTAMPS", "TENSORS"]]
    trace_rate: str
    trace_count: str
    log_frequency: str
    trace_file: str
    trace_mode: str


class Named(Protocol):
    """What a request names: a model and its version, or a region; "" and None if nothing."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str | None: ...


class Name(NamedTuple):
    name: str = ""
    version: str | None = None


#: The other members of a request: of a JSON body, or of a message as plain values.
Members = Mapping[str, Any]


class Administration:
    """The answers of one server over one protocol. In its event loop, but for what reads files."""

    def __init__(self, entry: Entry, common: Common, control: ModelControl) -> None:
        self._over_grpc = entry.over_grpc
        self._runtime = entry.runtime
        self._common = common
        self._regions = common.shared_memory
        self._control = control

    # The server and its models

    def server_metadata(self, _: Named, __: Members) -> ServerMetadata:
        absent = {"generate"} if self._over_grpc else set()
        if not self._regions.allowed:
            absent.add("system_shared_memory")
        known = [extension for extension in EXTENSIONS if extension not in absent]
        return ServerMetadata(
            name=self._common.name, version=self._common.version, extensions=known
        )

    def models(self, _: Named, __: Members) -> describe.ModelList:
        models = [describe.overview(loaded) for loaded in self._runtime.models()]
        listed = {model.name for model in models}
        models += [
            describe.unloaded(name, reason)
            for name, reason in self._runtime.not_ready().items()
            if name not in listed
        ]
        return describe.ModelList(models=sorted(models, key=lambda model: model.name))

    def model_ready(self, named: Named, _: Members) -> ModelReady:
        reason = self._loaded(named).not_ready_reason()
        if reason:
            raise ModelNotReady(f"model '{named.name}' is not ready: {reason}")
        return ModelReady(name=named.name, ready=True)

    def model_metadata(self, named: Named, _: Members) -> describe.ModelMetadata:
        return describe.metadata(self._runtime, self._loaded(named), named.version)

    def model_config(self, named: Named, _: Members) -> Json:
        return describe.model_config(self._loaded(named))

    def model_statistics(self, named: Named, _: Members) -> describe.AllStatistics:
        return describe.model_stats(self._runtime, named.name, named.version)

    def batching(self, named: Named, _: Members) -> Json:
        return batching(self._loaded(named))

    def _loaded(self, named: Named) -> LoadedModel:
        return self._runtime.model(named.name, named.version)

    # The repositories

    def index(self, _: Named, members: Members) -> list[IndexRow]:
        ready = members.get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidRequest(f"ready must be true or false, not {ready!r}", tag=Tag.JSON)
        return [
            IndexRow(**{**asdict(one), "reason": without_paths(one.reason)})
            for one in self._control.index(ready)
        ]

    def load(self, named: Named, members: Members) -> None:
        upload = self._common.allow_model_upload
        self._control.load(named.name, **load_options(_parameters(members), upload=upload))

    def unload(self, named: Named, members: Members) -> None:
        dependents = _parameters(members).get("unload_dependents", False)
        if not isinstance(dependents, bool):
            raise InvalidRequest(f"unload_dependents must be true or false, not {dependents!r}")
        self._control.unload(named.name, dependents=dependents)

    # Settings

    def log_settings(self, _: Named, members: Members) -> LogValues:
        """Change what has a value, and answer with all."""
        changes = {name: value for name, value in members.items() if value is not None}
        values: Members = self._common.log_settings.update(changes)
        return LogValues(**values)

    def trace_settings(self, named: Named, members: Members) -> TraceValues:
        """Change what is there, of a model if one is named, and answer with all. A setting without
        a value goes back to its default."""
        try:
            if named.name:
                self._loaded(named)
        except ModelNotFound:  # in Triton's words
            raise InvalidRequest(f"Request for unknown model : {named.name}") from None
        values = self._common.trace_settings.update(members, named.name or None)
        return TraceValues(**values)

    # Shared memory. There is no CUDA memory here: its status is empty, to unregister an unknown
    # region is no error, and to register one is refused.

    def regions(self, named: Named, _: Members) -> list[SharedRegion]:
        return self._regions.status(named.name or None)

    def register(self, named: Named, members: Members) -> None:
        name = named.name
        if not name:
            raise InvalidRequest(
                "'region name' is necessary to register system shared memory region",
                more="; POST to /v2/systemsharedmemory/region/NAME/register",
            )
        key = _member(name, members, "key", str)
        byte_size = _member(name, members, "byte_size", int)
        offset = _member(name, {"offset": 0, **members}, "offset", int)
        self._regions.register(name, key, byte_size, offset)

    def unregister(self, named: Named, _: Members) -> None:
        self._regions.unregister(named.name or None)

    def cuda_regions(self, named: Named, _: Members) -> list[SharedRegion]:
        if named.name:
            raise RegionNotFound(f"Unable to find cuda shared memory region: '{named.name}'")
        return []

    def register_cuda(self, named: Named, _: Members) -> None:
        raise Unsupported(
            f"cuda shared memory region '{named.name}': this server takes no CUDA shared memory;"
            " use system shared memory, or send the data"
        )

    def unregister_cuda(self, _: Named, __: Members) -> None: ...


def _parameters(members: Members) -> dict[str, Any]:
    parameters = members.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequest("parameters must be an object", tag=Tag.JSON)
    return parameters


def _member(region: str, body: Members, name: str, kind: type) -> Any:
    value = body.get(name)
    if type(value) is not kind:
        problem, tag = "is missing", None
        if name in body:
            problem = "must be a string" if kind is str else "must be a whole number"
            tag = Tag.JSON
        raise InvalidRequest(f"shared memory region '{region}': '{name}' {problem}", tag=tag)
    return value


def load_options(parameters: dict[str, Any], *, upload: bool) -> dict[str, Any]:
    """The parameters of a load request as arguments of ModelControl.load. Files are code that will
    run here: AccessDenied if there are some and clients may not `upload`."""
    if not upload and any(key.startswith(FILE) for key in parameters):
        raise AccessDenied(
            "files of a model may not be sent to this server: it has no API keys and listens on"
            " other addresses than loopback; put the model into its repository, give the server"
            " keys (--api-key-file), or start it with --allow-model-upload"
        )
    options: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    for key, value in parameters.items():
        if key in _TEXTS:
            if not isinstance(value, str):
                problem = f"parameter {key!r} must be a string that holds JSON"
                raise InvalidRequest(problem, tag=Tag.JSON)
            options[_TEXTS[key]] = value
        elif key.startswith(FILE):
            files[key.removeprefix(FILE)] = _content(key, value)
        else:
            raise InvalidRequest(
                f"unknown parameter {key!r}; known are 'config', 'config_patch' and 'file:PATH'"
            )
    return {**options, "files": files} if files else options


def _content(key: str, value: Any) -> bytes:
    """Base64 in JSON; bytes where the protocol has them."""
    if isinstance(value, bytes):
        return value
    try:
        return decoded(value)
    except (TypeError, ValueError):
        raise InvalidRequest(f"parameter {key!r} must be a file's content in base64") from None


# What goes in


def _or_null(kind: str, **more: Any) -> Json:
    return {"type": [kind, "null"], **more}


def _text_number(least: int) -> Json:
    number: Json = {"type": "integer", "minimum": least, "maximum": 2**63 - 1}
    pattern = "^(-1|[0-9]{1,18})$" if least < 0 else "^[0-9]{1,18}$"
    return {"anyOf": [number, {"type": "string", "pattern": pattern}, {"type": "null"}]}


_LEVELS: Final = {"type": "string", "enum": list(TRACE_LEVELS)}
_AT_START: Final = "Only the server's start decides."
#: Changes of the settings; what is left out, or null, stays.
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


# The table


@dataclass(frozen=True, slots=True, kw_only=True)
class V2Operation:
    group: str
    do: Callable[[Administration, Named, Members], Any]
    #: What goes in and comes out by method and path, of which a part may be left out: [PART]. None:
    #: the document does not have it.
    http: Mapping[str, Operation | None]
    #: The method's name over gRPC; "": it has no method.
    rpc: str = ""
    #: It reads files, hence not in the loop; or it loads a model, and its body may be large.
    in_thread: bool = False
    loads: bool = False


def health(summary: str, ready: Any, *errors: int, **more: Any) -> Operation:
    """What answers with JSON to a client that takes it, and else with nothing."""
    return Operation(summary=summary, gives={JSON: ready, TEXT: NO_TEXT}, errors=errors, **more)


_COMMAND: Final = (400, 413, 501)


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


def _memory(
    kind: str,
    method: str,
    word: str,
    do: Callable[[Administration, Named, Members], Any],
    of_one: Operation | None = None,
    of_all: Operation | None = None,
) -> V2Operation:
    path = f"{method} /v2/{kind}sharedmemory"
    return V2Operation(
        rpc=f"{kind.capitalize()}SharedMemory{word.capitalize()}",
        group="shared-memory",
        do=do,
        http={f"{path}/region/{{region}}/{word}": of_one, f"{path}/{word}": of_all},
    )


MODEL: Final = "/v2/models/{model}[/versions/{version:[0-9]+}]"
_MODEL_TRACE: Final = "/v2/models/{model}/trace/setting"
_REPOSITORY: Final = "/v2/repository"

OPERATIONS: Final[tuple[V2Operation, ...]] = (
    V2Operation(
        rpc="ServerMetadata",
        group="metadata",
        do=Administration.server_metadata,
        http={"GET /v2": returns("The server's name, version and extensions", ServerMetadata)},
    ),
    V2Operation(
        group="metadata",
        do=Administration.models,
        http={
            "GET /v2/models": returns(
                "Every model with its state, inputs, outputs and examples", describe.ModelList
            )
        },
    ),
    V2Operation(
        rpc="ModelMetadata",
        group="metadata",
        do=Administration.model_metadata,
        http={
            f"GET {MODEL}": returns(
                "A model's versions, inputs and outputs", describe.ModelMetadata, 404, 503
            )
        },
    ),
    V2Operation(
        rpc="ModelConfig",
        group="model-config",
        do=Administration.model_config,
        http={
            f"GET {MODEL}/config": returns(
                "A model's configuration, as Triton's ModelConfig", dict[str, Any], 404, 503
            )
        },
    ),
    V2Operation(
        rpc="ModelReady",
        group="health",
        do=Administration.model_ready,
        http={f"GET {MODEL}/ready": health("Whether a model is ready", ModelReady, 404, 503)},
    ),
    V2Operation(
        rpc="ModelStatistics",
        group="statistics",
        do=Administration.model_statistics,
        http={
            "GET /v2/models/stats": returns(
                "The statistics of every model", describe.AllStatistics
            ),
            f"GET {MODEL}/stats": returns(
                "A model's statistics", describe.AllStatistics, 400, 404, 503
            ),
        },
    ),
    V2Operation(
        group="statistics",
        do=Administration.batching,
        http={
            f"GET {MODEL}/batching": returns(
                "What a model's batcher has learnt and decided", Batching, 404, 503
            )
        },
    ),
    V2Operation(
        rpc="TraceSetting",
        group="trace",
        do=Administration.trace_settings,
        http={
            f"GET {_MODEL_TRACE}": returns("A model's trace settings", TraceValues, 400, 503),
            f"POST {_MODEL_TRACE}": _command(
                "Change a model's trace settings", TRACE_CHANGES, TraceValues
            ),
            "GET /v2/trace/setting": returns("The trace settings", TraceValues),
            "POST /v2/trace/setting": _command(
                "Change the trace settings", TRACE_CHANGES, TraceValues
            ),
        },
    ),
    V2Operation(
        rpc="LogSettings",
        group="logging",
        do=Administration.log_settings,
        http={
            "GET /v2/logging": returns("The log's settings", LogValues),
            "POST /v2/logging": _command("Change the log's settings", LOG_CHANGES, LogValues),
        },
    ),
    V2Operation(
        rpc="RepositoryIndex",
        group="model-repository",
        do=Administration.index,
        in_thread=True,
        http={
            f"POST {_REPOSITORY}/index": _command(
                "List the models of the repositories", IndexRequest, list[IndexRow], 503
            ),
            # Of one repository, which is of all of them, as in Triton.
            f"POST {_REPOSITORY}/{{repository}}/index": None,
        },
    ),
    V2Operation(
        rpc="RepositoryModelLoad",
        group="model-repository",
        do=Administration.load,
        in_thread=True,
        loads=True,
        http={
            f"POST {_REPOSITORY}/models/{{model}}/load": _command(
                "Load a model, or load it again",
                LOAD,
                {},
                404,
                503,
                description=(
                    "Answers when it is ready. What a client loads is code that the server runs."
                ),
            )
        },
    ),
    V2Operation(
        rpc="RepositoryModelUnload",
        group="model-repository",
        do=Administration.unload,
        in_thread=True,
        http={
            f"POST {_REPOSITORY}/models/{{model}}/unload": _command(
                "Take a model out of service", UNLOAD, {}, 404, 503
            )
        },
    ),
    _memory(
        "system",
        "GET",
        "status",
        Administration.regions,
        returns("A registered region, in a list", list[SharedRegion], 404),
        returns("The registered regions", list[SharedRegion]),
    ),
    _memory(
        "system",
        "POST",
        "register",
        Administration.register,
        returns("Map a region of shared memory", {}, *_COMMAND, takes=json_of(REGION)),
    ),
    _memory(
        "system",
        "POST",
        "unregister",
        Administration.unregister,
        returns("Forget a region", {}),
        returns("Forget all regions", {}),
    ),
    _memory("cuda", "GET", "status", Administration.cuda_regions),
    _memory("cuda", "POST", "register", Administration.register_cuda),
    _memory("cuda", "POST", "unregister", Administration.unregister_cuda),
)
