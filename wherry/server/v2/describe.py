"""What does a model look like from outside: its metadata, configuration and statistics?

In the shapes that the V2 protocol and Triton's ModelConfig prescribe, for any frontend to encode.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Literal

import msgspec

from wherry.core.api import (
    Compute,
    Duration,
    InvalidRequest,
    LoadedModel,
    ModelNotFound,
    Runtime,
    TensorSpec,
)
from wherry.server.calls.client_text import without_paths
from wherry.server.v2.element_bytes import wire_shape
from wherry.triton.api import (
    RepositoryModel,
    TritonConfig,
    filled,
    platform_of,
    to_json,
    triton_config,
)

Json = dict[str, Any]

#: How much of an example that is a file is shown.
MAX_EXAMPLE_BYTES = 64 << 10

DatatypeName = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BF16", "BYTES",
]  # fmt: skip
State = Literal["READY", "LOADING", "UNLOADING", "UNAVAILABLE"]


class ExactAnswer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An answer with exactly these members."""


class TensorContent(msgspec.Struct, kw_only=True):
    """What the bytes of a tensor are, of an input and of an output alike."""

    content: str
    accepts: list[str]
    media_type: str


class TensorMetadata(ExactAnswer):
    """An input or output; -1 in its shape is any size, the first one counts rows."""

    name: str
    datatype: DatatypeName
    shape: list[int]
    parameters: TensorContent | msgspec.UnsetType = msgspec.UNSET


class ModelMetadata(ExactAnswer):
    """A model's versions, inputs and outputs."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ListedTensor(TensorMetadata, kw_only=True):
    """An input or output, and its form in the model's code."""

    optional: bool | msgspec.UnsetType = msgspec.UNSET
    form: str


class ListedModel(msgspec.Struct, kw_only=True):
    """A model and its state. Of one that is not loaded little is known."""

    name: str
    version: str
    state: State
    reason: str
    description: str | msgspec.UnsetType = msgspec.UNSET
    max_batch_size: int | msgspec.UnsetType = msgspec.UNSET
    streams: bool | msgspec.UnsetType = msgspec.UNSET
    inputs: list[ListedTensor]
    outputs: list[ListedTensor]
    examples: list[Json]


class ModelList(msgspec.Struct):
    """Every model, by name."""

    models: list[ListedModel]


class CountedTime(ExactAnswer):
    """How often, and how long in all, in nanoseconds."""

    count: int
    ns: int


class InferStatistics(ExactAnswer):
    """Requests from arrival to answer, in the queue, and in the phases of their batches."""

    success: CountedTime
    fail: CountedTime
    queue: CountedTime
    compute_input: CountedTime
    compute_infer: CountedTime
    compute_output: CountedTime
    cache_hit: CountedTime
    cache_miss: CountedTime


class BatchStatistics(ExactAnswer):
    """The phases of the batches of one size."""

    batch_size: int
    compute_input: CountedTime
    compute_infer: CountedTime
    compute_output: CountedTime


class PlaceStatistics(ExactAnswer):
    """Responses that came at one place of their streams, and streams that ended there."""

    compute_infer: CountedTime
    compute_output: CountedTime
    success: CountedTime
    fail: CountedTime
    empty_response: CountedTime
    cancel: CountedTime


class MemoryUsage(ExactAnswer):
    """Memory of a model's worker processes."""

    type: str
    id: int
    byte_size: int


class VersionStatistics(ExactAnswer):
    """What was counted of one version since its load."""

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferStatistics
    response_stats: dict[str, PlaceStatistics]
    batch_stats: list[BatchStatistics]
    memory_usage: list[MemoryUsage]


class AllStatistics(ExactAnswer):
    """The statistics of each requested version."""

    model_stats: list[VersionStatistics]


def metadata(runtime: Runtime, loaded: LoadedModel, version: str | None) -> ModelMetadata:
    """The metadata of a model; `version` is the one that the client named, if it did."""
    every = [loaded] if version else all_versions(runtime, loaded.name)
    triton = _triton(loaded)
    return ModelMetadata(
        name=loaded.name,
        versions=[one.version for one in every],
        platform="python" if triton is None else platform_of(triton) or triton.backend,
        inputs=[TensorMetadata(**_tensor(loaded, spec)) for spec in loaded.signature.inputs],
        outputs=[TensorMetadata(**_tensor(loaded, spec)) for spec in loaded.signature.outputs],
    )


def all_versions(runtime: Runtime, name: str) -> list[LoadedModel]:
    """Lowest first."""
    return sorted((m for m in runtime.models() if m.name == name), key=lambda m: int(m.version))


def overview(loaded: LoadedModel) -> ListedModel:
    """One line of our own list of models: what the start page and `wherry models` show."""
    reason, config = loaded.not_ready_reason(), loaded.config
    inputs, outputs = loaded.signature.inputs, loaded.signature.outputs
    return ListedModel(
        name=loaded.name,
        version=loaded.version,
        state="UNAVAILABLE" if reason else "READY",
        reason=without_paths(reason),
        description=config.description,
        max_batch_size=config.max_batch_size,
        streams=loaded.signature.streams,
        inputs=[
            ListedTensor(**_tensor(loaded, s), optional=s.optional, form=s.form.value)
            for s in inputs
        ],
        outputs=[ListedTensor(**_tensor(loaded, s), form=s.form.value) for s in outputs],
        examples=[
            {name: _example(value) for name, value in example.items()}
            for example in config.examples
        ],
    )


def _example(value: Any) -> Any:
    """An example's value as JSON that may be sent as it is; of a long file only its size."""
    if not isinstance(value, bytes):
        return value
    if len(value) > MAX_EXAMPLE_BYTES:
        return f"({len(value)} bytes)"
    return {"b64": b64encode(value).decode()}


def unloaded(name: str, reason: str) -> ListedModel:
    """`overview` of a model that is not there (yet)."""
    return ListedModel(
        name=name,
        version="",
        state="LOADING" if reason == "loading" else "UNAVAILABLE",
        reason=without_paths(reason),
        inputs=[],
        outputs=[],
        examples=[],
    )


def model_config(loaded: LoadedModel) -> Json:
    """Triton's ModelConfig as JSON, its defaults filled in, and our own settings beside it."""
    triton = _triton(loaded)
    if triton is not None:
        devices = {instance.device for instance in loaded.runner.instances}
        gpus = sorted(device.index for device in devices if device.kind == "cuda")
        # Nothing of our own beside it: clients change a member and send it back to load.
        described: Json = _plain(to_json(triton, gpus=gpus))
        return described
    described = filled(triton_config(loaded.config, loaded.signature))
    return {**described, "wherry": _own_settings(loaded)}


def _plain(value: Any) -> Any:
    """JSON as protobuf's printer writes it: a whole number is one, whatever its field holds."""
    if isinstance(value, dict):
        return {name: _plain(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_plain(member) for member in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


_COUNTED = ("success", "fail", "queue", "cache_hit", "cache_miss")


def statistics(loaded: LoadedModel) -> VersionStatistics:
    """A consistent snapshot, all fields always there."""
    counted = loaded.statistics
    with counted.lock:
        return VersionStatistics(
            name=loaded.name,
            version=loaded.version,
            last_inference=int(counted.last_inference_at * 1000),
            inference_count=counted.inference_count,
            execution_count=counted.execution_count,
            inference_stats=InferStatistics(
                **{name: _duration(getattr(counted, name)) for name in _COUNTED},
                **_compute(counted.compute),
            ),
            response_stats={
                str(place): PlaceStatistics(
                    compute_infer=_duration(at.came),
                    compute_output=CountedTime(count=at.came.count, ns=0),
                    success=_duration(at.came),
                    fail=_duration(at.fail),
                    empty_response=_duration(at.empty_response),
                    cancel=_duration(at.cancel),
                )
                for place, at in enumerate(counted.response_places)
            },
            batch_stats=[
                BatchStatistics(batch_size=size, **_compute(batch))
                for size, batch in sorted(counted.batch_sizes.items())
            ],
            memory_usage=_memory_usage(loaded),
        )


def model_stats(runtime: Runtime, name: str = "", version: str | None = None) -> AllStatistics:
    """The statistics of one version, of all versions of one model, or of all models.
    InvalidRequest, in Triton's words, for an unknown model."""
    if not name:
        chosen = sorted(runtime.models(), key=lambda m: (m.name, int(m.version)))
    else:
        try:
            chosen = [runtime.model(name, version)]
        except ModelNotFound:
            missing = f"requested model '{name}' is not available"
            if all_versions(runtime, name):
                missing = f"requested model version is not available for model '{name}'"
            raise InvalidRequest(missing) from None
        if version is None:
            chosen = all_versions(runtime, name)
    return AllStatistics(model_stats=[statistics(loaded) for loaded in chosen])


def _triton(loaded: LoadedModel) -> TritonConfig | None:
    return loaded.model.triton if isinstance(loaded.model, RepositoryModel) else None


def _tensor(loaded: LoadedModel, spec: TensorSpec) -> Json:
    shape = wire_shape(spec, loaded.config.max_batch_size > 0)
    about: Json = {"name": spec.name, "datatype": spec.datatype.name, "shape": shape}
    if (media := spec.media) is not None:
        about["parameters"] = TensorContent(
            content=media.kind, accepts=list(media.accepts), media_type=media.media_type
        )
    return about


_OWN_SETTINGS = (
    "version description isolation request_timeout execution_timeout stall_timeout unload_timeout"
    " isolate_errors run_again run_in_caller crash_budget crash_window max_restart_delay"
    " max_unread_responses"
)


def _own_settings(loaded: LoadedModel) -> Json:
    """The settings that Triton's ModelConfig has no field for; times in seconds."""
    config = loaded.config
    return {
        **{name: getattr(config, name) for name in _OWN_SETTINGS.split()},
        "devices": [group.device for group in config.instances],
        "pipeline": loaded.is_pipeline,
        "inputs": {spec.name: spec.form.value for spec in loaded.signature.inputs},
        "outputs": {spec.name: spec.form.value for spec in loaded.signature.outputs},
    }


def _memory_usage(loaded: LoadedModel) -> list[MemoryUsage]:
    sizes = [instance.rss_bytes for instance in loaded.runner.instances]
    held = sum(size for size in sizes if size)
    return [MemoryUsage(type="CPU", id=0, byte_size=held)] if held else []


def _compute(computed: Compute) -> dict[str, CountedTime]:
    return {
        "compute_input": CountedTime(count=computed.count, ns=computed.input_ns),
        "compute_infer": CountedTime(count=computed.count, ns=computed.infer_ns),
        "compute_output": CountedTime(count=computed.count, ns=computed.output_ns),
    }


def _duration(duration: Duration) -> CountedTime:
    return CountedTime(count=duration.count, ns=duration.ns)
