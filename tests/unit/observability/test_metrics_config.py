"""observability/metrics_config.py: the words of --metrics-config."""

from __future__ import annotations

import pytest

from wherry.observability.metrics_config import MetricsConfig
from wherry.values.errors import ConfigError


def test_words_are_read_as_triton_does() -> None:
    words = [
        "counter_latencies=false",
        "summary_latencies=TRUE",
        "summary_quantiles=0.5:0.05,0.99:0.001",
    ]
    read = MetricsConfig.of(words)
    assert (read.counter_latencies, read.summary_latencies, read.histogram_latencies) == (
        False,
        True,
        False,
    )
    assert read.quantiles == (0.5, 0.99)
    assert MetricsConfig.of([]) == MetricsConfig()
    assert MetricsConfig.of([], only_triton=True).only_triton


@pytest.mark.parametrize(
    "word",
    [
        "summary_latencies", "latencies=true", "summary_latencies=1", "summary_quantiles=",
        "summary_quantiles=2:0.1", "summary_quantiles=a",
        "summary_quantiles=" + ",".join(["0.5"] * 33),
    ],
)  # fmt: skip
def test_a_word_that_is_none_is_named(word: str) -> None:
    with pytest.raises(ConfigError, match="metrics_config"):
        MetricsConfig.of([word])
