"""Which buckets does a configuration give the histograms of its model?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wherry.triton.repository.problems import Path, Problem
from wherry.triton.repository.triton_config import TritonConfig, TritonMetricsMetricControl

#: The one family whose buckets can be set.
FIRST_RESPONSE: Final = "nv_inference_first_response_histogram_ms"


def buckets(config: TritonConfig) -> dict[str, list[float]]:
    """Return the buckets by family."""
    return {
        one.metric_identifier.family: one.histogram_options.buckets
        for one in _controls(config)
        if one.metric_identifier is not None and one.histogram_options is not None
    }


def problems(config: TritonConfig) -> Iterator[Problem]:
    for index, one in enumerate(_controls(config)):
        path: Path = ("model_metrics", "metric_control", index)
        if one.metric_identifier is None or not one.metric_identifier.family:
            yield Problem((*path, "metric_identifier"), "it needs a family")
        bounds = one.histogram_options.buckets if one.histogram_options is not None else []
        if not bounds:
            yield Problem((*path, "histogram_options"), "it needs buckets")
        elif sorted(set(bounds)) != bounds:
            yield Problem((*path, "histogram_options", "buckets"), "each must be above the last")


def without_effect(config: TritonConfig) -> Iterator[tuple[str, str]]:
    for family in buckets(config).keys() - {FIRST_RESPONSE}:
        yield f"model_metrics of {family!r}", f"the only such histogram is {FIRST_RESPONSE}"


def _controls(config: TritonConfig) -> list[TritonMetricsMetricControl]:
    return config.model_metrics.metric_control if config.model_metrics is not None else []
