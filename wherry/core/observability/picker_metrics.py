"""Which metrics does the endpoint picker of a Kubernetes Gateway read of a language model?

Under vLLM's names and those of Triton's TensorRT-LLM backend. The picker takes one sample of each,
so they have no label for the model or the instance: they are those of the whole server.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from wherry.core.observability.model_values import ModelValues
from wherry.core.observability.triton_metrics import gauge

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def picker_metrics(models: Sequence[ModelValues], *, vllm: bool = True) -> Iterator[Metric]:
    """None where there is no language model; without `vllm` Triton's only."""
    models = [values for values in models if values.generates]
    if not models:
        return
    gauges_of_all = [gauges for values in models for gauges in values.gauges.values()]
    running = sum(one.get("running", 0.0) for one in gauges_of_all)
    waiting = sum(one.get("waiting", 0.0) for one in gauges_of_all) + sum(v.queued for v in models)
    fullest = max(one.get("kv_cache_usage", 0.0) for one in gauges_of_all)
    blocks, used = (
        sum(one.get(key, 0.0) for one in gauges_of_all) for key in ("kv_blocks", "kv_blocks_used")
    )
    block_size = max(one.get("kv_block_size", 0.0) for one in gauges_of_all)
    if vllm:
        yield gauge("vllm:num_requests_waiting", "Requests that wait.", waiting)
        yield gauge("vllm:num_requests_running", "Requests that run.", running)
        yield gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", fullest)
        if blocks:
            size = {"block_size": f"{block_size:g}", "num_gpu_blocks": f"{blocks:g}"}
            yield _labelled("vllm:cache_config_info", "The KV cache.", [(size, 1.0)])
        if names := sorted({name for values in models for name in values.variants()}):
            adapters = {
                "max_lora": str(len(names)),
                "running_lora_adapters": ",".join(names),
                "waiting_lora_adapters": "",
            }
            yield _labelled("vllm:lora_requests_info", "Adapters.", [(adapters, time.time())])
    yield _by_type(
        "nv_trt_llm_request_metrics",
        "Requests of language models.",
        "request_type",
        {"waiting": waiting, "scheduled": running, "active": waiting + running},
    )
    cache = {"fraction": fullest}
    if blocks:
        cache |= {"used": used, "free": blocks - used, "max": blocks, "tokens_per": block_size}
    yield _by_type(
        "nv_trt_llm_kv_cache_block_metrics", "The KV cache's blocks.", "kv_cache_block_type", cache
    )


def _by_type(name: str, documentation: str, label: str, values: dict[str, float]) -> Metric:
    samples = [({label: kind}, value) for kind, value in values.items()]
    return _labelled(name, documentation, samples)


def _labelled(
    name: str, documentation: str, samples: Sequence[tuple[dict[str, str], float]]
) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, documentation, labels=list(samples[0][0]))
    for labels, value in samples:
        family.add_metric(list(labels.values()), value)
    return family
