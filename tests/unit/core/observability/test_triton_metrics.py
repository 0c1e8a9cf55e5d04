"""What the endpoint picker of a Kubernetes Gateway reads of a language model.

The picker takes the first sample of a family whose labels fit, so there is one for the server.
"""

from collections.abc import Mapping, Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

import wherry
from tests.fakes import until
from wherry.core.models.config import InstanceGroup
from wherry.core.models.settings import Isolation
from wherry.core.observability.metrics import Metrics, MetricsConfig
from wherry.server.calls.admission import Admission


class Engine(wherry.StepModel):
    """A language model with two sequences in it."""

    max_batch_size = 4
    instances = (InstanceGroup(count=2),)
    adapters: tuple[str, ...] = ()

    def start(self, text: str) -> list[str]:
        return list(text)

    def step(self, active: list[list[str]]) -> list[wherry.Step[str]]:
        return [wherry.Step(row, done=True) for row in active]

    def gauges(self) -> Mapping[str, float]:
        return {
            "running": 2.0, "waiting": 1.0, "kv_cache_usage": 0.25, "kv_blocks": 8.0,
            "kv_blocks_used": 2.0, "kv_block_size": 16.0,
        }  # fmt: skip

    def variants(self) -> Sequence[str]:
        return self.adapters


class Adapted(Engine):
    adapters = ("b", "a")


class AdaptedToo(Engine):
    adapters = ("c",)


@wherry.model
def shout(text: str) -> str:
    return text.upper()


def read(runtime: wherry.Runtime, *, triton: bool = False) -> dict[tuple[str, ...], float]:
    """Each sample by its name and the values of its labels."""
    metrics = Metrics(runtime, Admission(), "1", config=MetricsConfig(only_triton=triton))
    text = metrics.scrape(openmetrics=False)[0].decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("vllm:")
    }


def of_engines(
    runtime: wherry.Runtime, running: float, *, triton: bool = False
) -> dict[tuple[str, ...], float]:
    """Once all instances have told."""
    until(lambda: read(runtime).get(("vllm:num_requests_running",)) == running)
    return read(runtime, triton=triton)


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_all_instances_are_one_series_from_the_start(isolation: Isolation) -> None:
    with wherry.Runtime(Engine(), isolation=isolation) as runtime:
        found = of_engines(runtime, 4.0)
    assert found == {
        ("vllm:num_requests_waiting",): 2.0,
        ("vllm:num_requests_running",): 4.0,
        ("vllm:kv_cache_usage_perc",): 0.25,
        ("vllm:cache_config_info", "16", "16"): 1.0,
    }


def test_adapters_are_told_of_all_models_together() -> None:
    with wherry.Runtime(Adapted(), AdaptedToo(), shout) as runtime:
        found = of_engines(runtime, 8.0)
    (labels,) = [key[1:] for key in found if key[0] == "vllm:lora_requests_info"]
    assert labels == ("3", "a,b,c", "")


def test_a_server_without_a_language_model_has_none_of_them() -> None:
    with wherry.Runtime(shout) as runtime:
        assert read(runtime) == {}


def test_with_tritons_metrics_alone_they_are_left_out() -> None:
    with wherry.Runtime(Engine()) as runtime:
        assert of_engines(runtime, 4.0, triton=True) == {}
