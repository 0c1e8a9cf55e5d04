"""What does a model look like from outside: its metadata, configuration and statistics?

Plain values in the shapes that the V2 protocol and Triton's ModelConfig prescribe, for any
frontend to encode.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from wherry.core.api import (
    Compute,
    Duration,
    InvalidRequest,
    LoadedModel,
    MediaSpec,
    ModelNotFound,
    ModelStatistics,
    Runtime,
    TensorSpec,
)
from wherry.server.calls.client_text import without_paths
from wherry.server.v2.wire_shape import wire_shape
from wherry.triton.api import (
    RepositoryModel,
    TritonConfig,
    filled,
    platform_of,
    to_json,
    triton_config,
)

Json = dict[str, Any]

#: Of an example that is a file, so much is shown.
MAX_EXAMPLE_BYTES = 64 << 10


def metadata(runtime: Runtime, loaded: LoadedModel, version: str | None) -> Json:
    """The metadata of a model; `version` is the one that the client named, if it did."""
    every = [loaded] if version else all_versions(runtime, loaded.name)
    return {
        "name": loaded.name,
        "versions": [one.version for one in every],
        "platform": _platform(loaded),
        "inputs": [_tensor(loaded, spec) for spec in loaded.signature.inputs],
        "outputs": [_tensor(loaded, spec) for spec in loaded.signature.outputs],
    }


def all_versions(runtime: Runtime, name: str) -> list[LoadedModel]:
    """Lowest first."""
    return sorted((m for m in runtime.models() if m.name == name), key=lambda m: int(m.version))


def overview(loaded: LoadedModel) -> Json:
    """One line of our own list of models: what the start page and `wherry models` show."""
    reason = loaded.not_ready_reason()
    config = loaded.config
    return {
        "name": loaded.name,
        "version": loaded.version,
        "state": "UNAVAILABLE" if reason else "READY",
        "reason": without_paths(reason),
        "description": config.description,
        "max_batch_size": config.max_batch_size,
        "streams": loaded.signature.streams,
        "inputs": [
            {**_tensor(loaded, spec), "optional": spec.optional, "form": spec.form.value}
            for spec in loaded.signature.inputs
        ],
        "outputs": [
            {**_tensor(loaded, spec), "form": spec.form.value} for spec in loaded.signature.outputs
        ],
        "examples": [
            {name: _example(value) for name, value in example.items()}
            for example in config.examples
        ],
    }


def _example(value: Any) -> Any:
    """An example's value as JSON that may be sent as it is; of a long file only its size."""
    if not isinstance(value, bytes):
        return value
    if len(value) > MAX_EXAMPLE_BYTES:
        return f"({len(value)} bytes)"
    return {"b64": b64encode(value).decode()}


def unloaded(name: str, reason: str) -> Json:
    """`overview` of a model that is not there (yet): little is known of it."""
    return {
        "name": name,
        "version": "",
        "state": "LOADING" if reason == "loading" else "UNAVAILABLE",
        "reason": without_paths(reason),
        "inputs": [],
        "outputs": [],
        "examples": [],
    }


def model_config(loaded: LoadedModel) -> Json:
    """Triton's ModelConfig as JSON, its defaults filled in, and our own settings beside it."""
    triton = _triton(loaded)
    if triton is not None:
        devices = {instance.device for instance in loaded.runner.instances}
        gpus = sorted(device.index for device in devices if device.kind == "cuda")
        # Nothing of our own beside it: clients change a member and send it back to load.
        told: Json = _plain(to_json(triton, gpus=gpus))
        return told
    described = filled(triton_config(loaded.config, loaded.signature))
    return {**described, "wherry": _own_settings(loaded)}


def _plain(value: Any) -> Any:
    """JSON as protobuf's printer writes it: a whole number is one, whatever its field holds."""
    if isinstance(value, dict):
        return {name: _plain(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_plain(member) for member in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def statistics(loaded: LoadedModel) -> Json:
    """One member of `model_stats`: a consistent snapshot, all fields always there."""
    counted = loaded.statistics
    with counted.lock:
        return {
            "name": loaded.name,
            "version": loaded.version,
            "last_inference": int(counted.last_inference_at * 1000),
            "inference_count": counted.inference_count,
            "execution_count": counted.execution_count,
            "inference_stats": _inference_stats(counted),
            "response_stats": {
                str(place): {
                    "compute_infer": _duration(at.came),
                    "compute_output": {"count": at.came.count, "ns": 0},
                    "success": _duration(at.came),
                    "fail": _duration(at.fail),
                    "empty_response": _duration(at.empty_response),
                    "cancel": _duration(at.cancel),
                }
                for place, at in enumerate(counted.response_places)
            },
            "batch_stats": [
                {"batch_size": size, **_compute(batch)}
                for size, batch in sorted(counted.batch_sizes.items())
            ],
            "memory_usage": _memory_usage(loaded),
        }


def model_stats(runtime: Runtime, name: str = "", version: str | None = None) -> Json:
    """The statistics of one version, of all versions of one model, or of all models.
    InvalidRequest, as Triton says it, if there is no such model."""
    if not name:
        asked = sorted(runtime.models(), key=lambda m: (m.name, int(m.version)))
    else:
        try:
            asked = [runtime.model(name, version)]
        except ModelNotFound:
            missing = f"requested model '{name}' is not available"
            if all_versions(runtime, name):
                missing = f"requested model version is not available for model '{name}'"
            raise InvalidRequest(missing) from None
        if version is None:
            asked = all_versions(runtime, name)
    return {"model_stats": [statistics(loaded) for loaded in asked]}


def _triton(loaded: LoadedModel) -> TritonConfig | None:
    """The configuration of a model that comes from a repository."""
    return loaded.model.triton if isinstance(loaded.model, RepositoryModel) else None


def _platform(loaded: LoadedModel) -> str:
    triton = _triton(loaded)
    return "python" if triton is None else platform_of(triton) or triton.backend


def _tensor(loaded: LoadedModel, spec: TensorSpec) -> Json:
    shape = wire_shape(spec, loaded.config.max_batch_size > 0)
    about = {"name": spec.name, "datatype": spec.datatype.name, "shape": shape}
    return about if spec.media is None else {**about, "parameters": _content(spec.media)}


def _content(media: MediaSpec) -> Json:
    """What the bytes of a tensor are: of an input and of an output alike."""
    return {
        "content": media.kind,
        "accepts": list(media.accepts),
        "media_type": media.media_type,
    }


def _own_settings(loaded: LoadedModel) -> Json:
    """The settings that Triton's ModelConfig has no field for; times in seconds."""
    config = loaded.config
    return {
        "version": config.version,
        "description": config.description,
        "isolation": config.isolation,
        "devices": [group.device for group in config.instances],
        "request_timeout": config.request_timeout,
        "execution_timeout": config.execution_timeout,
        "stall_timeout": config.stall_timeout,
        "unload_timeout": config.unload_timeout,
        "isolate_errors": config.isolate_errors,
        "run_again": config.run_again,
        "run_in_caller": config.run_in_caller,
        "crash_budget": config.crash_budget,
        "crash_window": config.crash_window,
        "max_restart_delay": config.max_restart_delay,
        "max_unread_responses": config.max_unread_responses,
        "pipeline": loaded.is_pipeline,
        "inputs": {spec.name: spec.form.value for spec in loaded.signature.inputs},
        "outputs": {spec.name: spec.form.value for spec in loaded.signature.outputs},
    }


def _inference_stats(counted: ModelStatistics) -> Json:
    return {
        "success": _duration(counted.success),
        "fail": _duration(counted.fail),
        "queue": _duration(counted.queue),
        **_compute(counted.compute),
        "cache_hit": _duration(counted.cache_hit),
        "cache_miss": _duration(counted.cache_miss),
    }


def _memory_usage(loaded: LoadedModel) -> list[Json]:
    """The memory of instances that are processes; that of threads is not known."""
    sizes = [instance.rss_bytes for instance in loaded.runner.instances]
    held = sum(size for size in sizes if size)
    return [{"type": "CPU", "id": 0, "byte_size": held}] if held else []


def _compute(computed: Compute) -> Json:
    return {
        "compute_input": {"count": computed.count, "ns": computed.input_ns},
        "compute_infer": {"count": computed.count, "ns": computed.infer_ns},
        "compute_output": {"count": computed.count, "ns": computed.output_ns},
    }


def _duration(duration: Duration) -> Json:
    return {"count": duration.count, "ns": duration.ns}
