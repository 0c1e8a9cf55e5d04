"""Which of Triton's metrics are exposed, under its names and in its units, and which does the
endpoint picker of a Kubernetes Gateway read of a language model?

The picker's are under vLLM's names. It takes one sample of each, so they have no label for the
model or the instance: each is for the whole server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from wherry.core.observability.families import ModelValues, bare, family, gauge
from wherry.core.observability.machine import GpuUse, Use

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class CacheNumbers(Protocol):
    lookups: int
    hits: int
    misses: int
    evictions: int
    entries: int
    lookup_ns: int
    insertion_ns: int
    used_bytes: int
    max_bytes: int


#: Triton's metrics in its units (microseconds, summed over requests). Untyped here.
TRITON: Final[Sequence[tuple[str, str, Callable[[ModelValues], float]]]] = (
    ("nv_inference_request_success", "Number of successful inference requests.",
     lambda v: v.counted.totals.requests),
    ("nv_inference_request_failure", "Number of failed inference requests.", lambda v: 0),
    ("nv_inference_count", "Number of inferences performed (rows).",
     lambda v: v.counted.totals.rows),
    ("nv_inference_exec_count", "Number of model executions performed (batches).",
     lambda v: v.counted.totals.batches),
    ("nv_inference_request_duration_us", "Cumulative inference request duration in microseconds.",
     lambda v: v.counted.request_ns // 1000),
    ("nv_inference_queue_duration_us", "Cumulative inference queuing duration in microseconds.",
     lambda v: round(v.counted.queue_seconds.total * 1e9) // 1000),
    ("nv_inference_compute_input_duration_us",
     "Cumulative compute input duration in microseconds.",
     lambda v: v.counted.compute_ns[0] // 1000),
    ("nv_inference_compute_infer_duration_us",
     "Cumulative compute infer duration in microseconds.",
     lambda v: v.counted.compute_ns[1] // 1000),
    ("nv_inference_compute_output_duration_us",
     "Cumulative compute output duration in microseconds.",
     lambda v: v.counted.compute_ns[2] // 1000),
    ("nv_inference_pending_request_count", "Number of requests that wait for execution.",
     lambda v: v.queued),
    ("nv_model_load_time", "Model load time in seconds.", lambda v: v.loaded.load_seconds),
    ("nv_model_load_duration_secs", "Model load time in seconds.", lambda v: v.loaded.load_seconds),
    ("nv_cache_num_hits_per_model", "Number of response cache hits per model.",
     lambda v: v.counted.totals.cache_hits),
    ("nv_cache_hit_duration_per_model",
     "Cumulative response cache hit duration per model in microseconds.",
     lambda v: v.counted.cache_ns[0] // 1000),
    ("nv_cache_num_misses_per_model", "Number of response cache misses per model.",
     lambda v: v.counted.totals.cache_misses),
    ("nv_cache_miss_duration_per_model",
     "Cumulative response cache miss duration per model in microseconds.",
     lambda v: v.counted.cache_ns[1] // 1000),
)  # fmt: skip
TRITON_GAUGES: Final = (
    "nv_inference_pending_request_count", "nv_model_load_time", "nv_model_load_duration_secs",
)  # fmt: skip


def triton_metrics(models: Sequence[ModelValues], *, latencies: bool = True) -> Iterator[Metric]:
    """Triton's metrics of all models; without `latencies` only those that sum no durations. The
    response cache's are exposed for models that use it; a metric without a model is left out."""
    for name, documentation, value in TRITON:
        if not latencies and "_duration_" in name and name not in TRITON_GAUGES:
            continue
        family = bare(name, documentation, "gauge" if name in TRITON_GAUGES else "unknown")
        for values in models:
            labels = values.triton_labels
            if name == "nv_inference_request_failure":
                for reason, count in values.failures.items():
                    family.add_sample(name, {**labels, "reason": reason}, count)
            elif values.loaded.cache is not None or not name.startswith("nv_cache_"):
                family.add_sample(name, labels, value(values))
        if family.samples:
            yield family


#: Triton's metrics of each GPU.
GPU: Final[Sequence[tuple[str, str, Callable[[GpuUse], float | None]]]] = (
    ("nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", lambda g: g.utilization),
    ("nv_gpu_memory_total_bytes", "GPU total memory, in bytes", lambda g: g.memory_total_bytes),
    ("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", lambda g: g.memory_used_bytes),
    ("nv_gpu_power_usage", "GPU power usage in watts", lambda g: g.power_watts),
    ("nv_gpu_power_limit", "GPU power management limit in watts", lambda g: g.power_limit_watts),
    ("nv_energy_consumption", "GPU energy consumption in joules since the driver was loaded",
     lambda g: g.energy_joules),
)  # fmt: skip


def gpu_metrics(used: Iterable[GpuUse]) -> Iterator[Metric]:
    """The metrics of the GPUs; unknown values are left out."""
    found = list(used)
    for name, documentation, value in GPU:
        kind = "Unknown" if "energy" in name else "Gauge"
        samples = [((gpu.uuid,), value(gpu)) for gpu in found]
        yield family(kind, name, documentation, samples, ("gpu_uuid",))


#: Triton's gauges of the response cache.
CACHE: Final[Sequence[tuple[str, str, Callable[[CacheNumbers], float]]]] = (
    ("num_lookups", "Number of response cache lookups.", lambda c: c.lookups),
    ("num_hits", "Number of response cache hits.", lambda c: c.hits),
    ("num_misses", "Number of response cache misses.", lambda c: c.misses),
    ("num_evictions", "Number of answers that made room.", lambda c: c.evictions),
    ("num_entries", "Number of answers in the cache.", lambda c: c.entries),
    ("lookup_duration", "Cumulative lookup duration in us.", lambda c: c.lookup_ns // 1000),
    ("insertion_duration", "Cumulative insertion duration in us.",
     lambda c: c.insertion_ns // 1000),
    ("util", "Bytes in use [0.0 - 1.0].", lambda c: c.used_bytes / max(1, c.max_bytes)),
)  # fmt: skip


def cache_metrics(counted: CacheNumbers | None) -> Iterator[Metric]:
    """The cache's gauges; 0 without a cache."""
    for name, documentation, value in CACHE:
        yield gauge(f"nv_cache_{name}", documentation, 0 if counted is None else value(counted))


def machine_metrics(use: Use) -> Iterator[Metric]:
    yield gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0].", use.cpu_utilization)
    yield gauge(
        "nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes.", use.memory_total_bytes
    )
    yield gauge(
        "nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes.", use.memory_used_bytes
    )


def picker_metrics(models: Sequence[ModelValues]) -> Iterator[Metric]:
    """None where there is no language model."""
    models = [values for values in models if values.generates]
    if not models:
        return
    gauges_of_all = [gauges for values in models for gauges in values.gauges.values()]

    def whole(key: str) -> float:
        return float(sum(one.get(key, 0.0) for one in gauges_of_all))

    waiting = whole("waiting") + sum(values.queued for values in models)
    yield gauge("vllm:num_requests_waiting", "Requests that wait.", waiting)
    yield gauge("vllm:num_requests_running", "Requests that run.", whole("running"))
    fullest = max(one.get("kv_cache_usage", 0.0) for one in gauges_of_all)
    yield gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", fullest)
    if blocks := whole("kv_blocks"):
        size = max(one.get("kv_block_size", 0.0) for one in gauges_of_all)
        about = {"block_size": f"{size:g}", "num_gpu_blocks": f"{blocks:g}"}
        sample = [*about.values()], 1.0
        yield family("Gauge", "vllm:cache_config_info", "The KV cache.", [sample], [*about])
    if names := sorted({name for values in models for name in values.loaded.model.variants()}):
        about = {
            "max_lora": str(len(names)),
            "running_lora_adapters": ",".join(names),
            "waiting_lora_adapters": "",
        }
        sample = [*about.values()], time.time()
        yield family("Gauge", "vllm:lora_requests_info", "Adapters.", [sample], [*about])
