"""What does a model look like from outside: its metadata, configuration and statistics?

Plain values in the shapes that the V2 protocol and Triton's ModelConfig prescribe, for any
frontend to encode.
"""

from __future__ import annotations

from typing import Any

from wherry.frontends.client_text import without_paths
from wherry.frontends.v2.tensors import wire_shape
from wherry.models.config import InstanceGroup, ModelConfig, SequenceBatching, SequenceControl
from wherry.observability.statistics import SECONDS_BUCKETS, Compute, Duration, ModelStatistics
from wherry.repository.json_form import to_json
from wherry.repository.triton_config import TritonConfig
from wherry.runtime.loaded_model import LoadedModel
from wherry.runtime.runtime import Runtime
from wherry.values.datatypes import BYTES, TensorSpec

Json = dict[str, Any]


def metadata(loaded: LoadedModel, versions: list[str]) -> Json:
    return {
        "name": loaded.name,
        "versions": versions,
        "platform": _platform(loaded),
        "inputs": [_tensor(loaded, spec) for spec in loaded.signature.inputs],
        "outputs": [_tensor(loaded, spec) for spec in loaded.signature.outputs],
    }


def versions_of(runtime: Runtime, name: str) -> list[str]:
    return [loaded.version for loaded in all_versions(runtime, name)]


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
        "examples": [dict(example) for example in config.examples],
    }


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
        return to_json(triton, gpus=gpus)
    config, signature = loaded.config, loaded.signature
    described: Json = {
        "name": config.name,
        "platform": "",
        "backend": "python",
        "runtime": "",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": config.max_batch_size,
        "input": [
            {
                "name": spec.name,
                "data_type": _data_type(spec),
                "format": "FORMAT_NONE",
                **_dims(spec),
                "is_shape_tensor": False,
                "allow_ragged_batch": False,
                "optional": spec.optional,
                "is_non_linear_format_io": False,
            }
            for spec in signature.inputs
        ],
        "output": [
            {
                "name": spec.name,
                "data_type": _data_type(spec),
                **_dims(spec),
                "label_filename": "",
                "is_shape_tensor": False,
                "is_non_linear_format_io": False,
            }
            for spec in signature.outputs
        ],
        "batch_input": [],
        "batch_output": [],
        "optimization": {
            "priority": "PRIORITY_DEFAULT",
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
            "gather_kernel_buffer_threshold": 0,
            "eager_batching": False,
        },
        "instance_group": [
            _instance_group(config.name, number, group)
            for number, group in enumerate(config.instances)
        ],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
        "model_transaction_policy": {"decoupled": signature.streams},
        "wherry": _own_settings(loaded),
    }
    if config.response_cache:
        described["response_cache"] = {"enable": True}
    if config.sequence is not None:
        described["sequence_batching"] = _sequence_batching(config, config.sequence)
    elif config.max_batch_size > 1:
        described["dynamic_batching"] = _dynamic_batching(loaded)
    return described


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


def batching(loaded: LoadedModel) -> Json:
    """Why batches are as they are: what the batcher has learnt, and what it did."""
    counted = loaded.statistics
    with counted.lock:
        done = {
            "batches_cut_by_reason": dict(sorted(counted.cut_reasons.items())),
            "executions_by_batch_size": {
                str(size): batch.count for size, batch in sorted(counted.batch_sizes.items())
            },
            "requests_by_wait": [
                [seconds, count]
                for seconds, count in zip(
                    SECONDS_BUCKETS, counted.queue_seconds.counts, strict=False
                )
                if count
            ],
            "rejected_predicted_late": counted.predicted_late,
        }
    return {
        "name": loaded.name,
        "version": loaded.version,
        "max_batch_size": loaded.config.max_batch_size,
        "queued_requests": loaded.runner.queued_requests,
        **loaded.runner.explain(),
        **done,
    }


def _triton(loaded: LoadedModel) -> TritonConfig | None:
    """The configuration of a model that comes from a repository."""
    found: TritonConfig | None = getattr(loaded.model, "triton", None)
    return found


def _platform(loaded: LoadedModel) -> str:
    triton = _triton(loaded)
    return "python" if triton is None else triton.platform or triton.backend


def _tensor(loaded: LoadedModel, spec: TensorSpec) -> Json:
    shape = wire_shape(spec, loaded.config.max_batch_size > 0)
    return {"name": spec.name, "datatype": spec.datatype.name, "shape": shape}


def _data_type(spec: TensorSpec) -> str:
    return "TYPE_STRING" if spec.datatype is BYTES else f"TYPE_{spec.datatype.name}"


def _dims(spec: TensorSpec) -> Json:
    """Triton has no tensor without dimensions: a row of one element is [1], reshaped to []."""
    if spec.shape:
        return {"dims": list(spec.shape)}
    return {"dims": [1], "reshape": {"shape": []}}


def _instance_group(model: str, number: int, group: InstanceGroup) -> Json:
    kind, _, index = group.device.partition(":")
    kinds = {"cpu": "KIND_CPU", "cuda": "KIND_GPU", "auto": "KIND_AUTO"}
    return {
        "name": f"{model}_{number}",
        "kind": kinds[kind],
        "count": group.count,
        "gpus": [int(index)] if index else [],
        "secondary_devices": [],
        "profile": [],
        "passive": False,
        "host_policy": "",
    }


def _dynamic_batching(loaded: LoadedModel) -> Json:
    config = loaded.config
    return {
        "preferred_batch_size": list(config.preferred_batch_sizes),
        "max_queue_delay_microseconds": round((config.max_queue_delay or 0) * 1e6),
        "preserve_ordering": config.preserve_ordering,
        "priority_levels": config.priority_levels,
        "default_priority_level": config.default_priority,
        "default_queue_policy": {
            "timeout_action": "REJECT",
            "default_timeout_microseconds": round((config.request_timeout or 0) * 1e6),
            "allow_timeout_override": True,
            "max_queue_size": config.max_queue_size or 0,
        },
        "priority_queue_policy": {},
    }


def _sequence_batching(config: ModelConfig, batching: SequenceBatching) -> Json:
    delay = round((config.max_queue_delay or 0) * 1e6)
    direct = {
        "max_queue_delay_microseconds": delay,
        "minimum_slot_utilization": batching.minimum_slot_utilization,
    }
    oldest = {
        "max_candidate_sequences": batching.max_candidate_sequences or config.max_batch_size,
        "preferred_batch_size": list(config.preferred_batch_sizes),
        "max_queue_delay_microseconds": delay,
        "preserve_ordering": config.preserve_ordering,
    }
    return {
        "max_sequence_idle_microseconds": round(batching.max_sequence_idle * 1e6),
        "control_input": [
            {"name": control.name, "control": [_control(control)]} for control in batching.controls
        ],
        "state": [
            {
                "input_name": state.input,
                "output_name": state.output,
                "data_type": _triton_type(state.datatype),
                "dims": list(state.shape),
                "initial_state": [],
            }
            for state in batching.states
        ],
        "iterative_sequence": batching.iterative,
        batching.strategy: direct if batching.strategy == "direct" else oldest,
    }


def _control(control: SequenceControl) -> Json:
    if control.kind == "id":
        kind = "CONTROL_SEQUENCE_CORRID"
        return {"kind": kind, "data_type": _triton_type(control.datatype or "UINT64")}
    values = [control.false, control.true]
    return {"kind": f"CONTROL_SEQUENCE_{control.kind.upper()}", "fp32_false_true": values}


def _triton_type(datatype: str) -> str:
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def _own_settings(loaded: LoadedModel) -> Json:
    """What Triton's ModelConfig has no field for; times in seconds."""
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
    """What the instances hold that are processes of their own; of threads it is not known."""
    sizes = [getattr(instance, "rss_bytes", None) for instance in loaded.runner.instances]
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
