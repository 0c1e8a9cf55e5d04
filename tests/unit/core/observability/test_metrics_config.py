"""core/observability/metrics.py: the words of --metrics-config."""

from __future__ import annotations

import pytest

from wherry.core.observability.metrics import MetricsConfig
from wherry.core.values.errors import ConfigError


def test_words_are_read_as_triton_does() -> None:
    read = MetricsConfig.of(["counter_latencies=FALSE"])
    assert not read.counter_latencies
    assert MetricsConfig.of([]) == MetricsConfig()
    assert MetricsConfig.of([], only_triton=True).only_triton


def test_summaries_of_triton_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    words = ["summary_latencies=true", "summary_quantiles=0.5:0.05", "histogram_latencies=true"]
    assert MetricsConfig.of(words) == MetricsConfig()
    assert caplog.text.count("metrics_config has no effect") == 3


@pytest.mark.parametrize(
    "word", ["counter_latencies", "latencies=true", "counter_latencies=1", "counter_latencies="]
)
def test_a_word_that_is_none_is_named(word: str) -> None:
    with pytest.raises(ConfigError, match="metrics_config"):
        MetricsConfig.of([word])
