"""core/observability/otel/triton_mode.py: the words of --metrics-config."""

from __future__ import annotations

import pytest

from wherry.core.observability.otel.triton_mode import MetricsConfig, environment_of
from wherry.core.values.errors import ConfigError

WANTED = ["mode=opentelemetry", "level=TIMESTAMPS"]


def test_another_mode_sets_nothing() -> None:
    assert environment_of(["triton,file=t", "level=TIMESTAMPS", "mode=triton"]) == {}


@pytest.mark.parametrize("level", [[], ["level=OFF"], ["level=False"], ["level=on", "level=off"]])
def test_nothing_is_traced_without_a_level_as_in_triton(level: list[str]) -> None:
    assert environment_of(["mode=opentelemetry", *level]) == {}


def test_its_settings_become_the_variables_of_the_sdk() -> None:
    words = [
        "opentelemetry,url=collector:4318/v1/traces",
        "opentelemetry,resource=service.name=a",
        "opentelemetry,resource=b=c",
        "opentelemetry,bsp_max_queue_size=9",
        "rate=4",
    ]
    assert environment_of([*WANTED, *words]) == {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces",
        "OTEL_RESOURCE_ATTRIBUTES": "service.name=a,b=c",
        "OTEL_BSP_MAX_QUEUE_SIZE": "9",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
    }


def test_what_is_not_said_is_as_tritonserver_has_it() -> None:
    found = environment_of(WANTED)
    assert found["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == "http://localhost:4318/v1/traces"
    assert found["OTEL_TRACES_SAMPLER_ARG"] == "0.001"


def test_with_rate_0_only_requests_with_a_context_are_traced() -> None:
    assert environment_of([*WANTED, "rate=0"])["OTEL_TRACES_SAMPLER"] == "parentbased_always_off"


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("opentelemetry,port=1", "the settings are url, bsp_max_queue_size"),
        ("rate=often", "a whole number from 0 up"),
    ],
)
def test_a_setting_that_there_is_not_is_refused(word: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        environment_of([*WANTED, word])


def test_words_are_read_as_triton_does() -> None:
    read = MetricsConfig.of(["counter_latencies=false", "histogram_latencies=TRUE"])
    assert (read.counter_latencies, read.histogram_latencies) == (False, True)
    assert MetricsConfig.of([]) == MetricsConfig()
    assert MetricsConfig.of([], only_triton=True).only_triton


def test_summaries_of_triton_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    words = ["summary_latencies=true", "summary_quantiles=0.5:0.05,0.99:0.001"]
    assert MetricsConfig.of(words) == MetricsConfig()
    assert caplog.text.count("metrics_config has no effect") == 2


@pytest.mark.parametrize(
    "word", ["counter_latencies", "latencies=true", "counter_latencies=1", "counter_latencies="]
)
def test_a_word_that_is_none_is_named(word: str) -> None:
    with pytest.raises(ConfigError, match="metrics_config"):
        MetricsConfig.of([word])
