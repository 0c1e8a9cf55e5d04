"""Which OTEL_ variables does tritonserver's --trace-config mean in its mode of OpenTelemetry,
and which metrics its --metrics-config?

--trace-config mode=opentelemetry --trace-config opentelemetry,url=http://HOST:4318/v1/traces
--trace-config level=TIMESTAMPS   --trace-config rate=100
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wherry.core.values.errors import ConfigError, InvalidRequest

#: Where tritonserver sends spans if it is not told.
DEFAULT_URL: Final = "http://localhost:4318/v1/traces"
#: How many requests there are for each one that tritonserver traces if it is not told.
DEFAULT_RATE: Final = 1000

_VARIABLES: Final = {
    "url": "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "bsp_max_queue_size": "OTEL_BSP_MAX_QUEUE_SIZE",
    "bsp_schedule_delay": "OTEL_BSP_SCHEDULE_DELAY",
    "bsp_max_export_batch_size": "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
}

#: What the command line may call a level, in small letters.
_LEVELS: Final = {
    **dict.fromkeys(("off", "false"), "OFF"),
    **dict.fromkeys(("timestamps", "on", "true", "min", "max"), "TIMESTAMPS"),
    "tensors": "TENSORS",
}


def level_of(word: str) -> str:
    """Return OFF, TIMESTAMPS or TENSORS for a word of the command line, in any letter case.

    InvalidRequest for another word.
    """
    level = _LEVELS.get(word.lower())
    if level is None:
        raise InvalidRequest("trace_level must be one of OFF, TIMESTAMPS, TENSORS")
    return level


def is_configured(options: Sequence[str]) -> bool:
    """Whether the mode is OpenTelemetry's: the last one that is said counts."""
    modes = [word.partition("=")[2].lower() for word in options if word.startswith("mode=")]
    return bool(modes) and modes[-1] == "opentelemetry"


def environment_of(options: Sequence[str]) -> dict[str, str]:
    """The variables; none in another mode. ConfigError for a setting that there is not."""
    if not is_configured(options):
        return {}
    found = {"url": DEFAULT_URL, "rate": str(DEFAULT_RATE)}
    levels = []
    resource: list[str] = []
    for word in options:
        mode, comma, rest = word.partition(",")
        key, _, value = (rest if comma else word).partition("=")
        if comma and mode == "opentelemetry":
            if key != "resource" and key not in _VARIABLES:
                known = ", ".join([*_VARIABLES, "resource"])
                raise ConfigError(f"trace_config {word!r}: the settings are {known}")
            if key == "resource":
                resource.append(value)
            found[key] = value
        elif not comma and key == "level":
            levels.append(value.lower())
        elif not comma:
            found[key] = value
    if not levels or any(_LEVELS.get(level) == "OFF" for level in levels):
        return {}
    names = {name: found[key] for key, name in _VARIABLES.items() if key in found}
    if resource:
        names["OTEL_RESOURCE_ATTRIBUTES"] = ",".join(resource)
    if "://" not in names[_VARIABLES["url"]]:
        names[_VARIABLES["url"]] = "http://" + names[_VARIABLES["url"]]
    return {"OTEL_TRACES_EXPORTER": "otlp", **_sampler(found["rate"]), **names}


def _sampler(rate: str) -> dict[str, str]:
    """The sampler that traces one request in `rate`; with 0 only those whose caller traces them."""
    if not rate.isdecimal():
        raise ConfigError(f"trace_config 'rate={rate}': a whole number from 0 up")
    if rate == "0":
        return {"OTEL_TRACES_SAMPLER": "parentbased_always_off"}
    ratio = f"{1 / int(rate):.6g}"
    return {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": ratio}


log = logging.getLogger("wherry")

_SWITCHES: Final = ("counter_latencies", "histogram_latencies")
#: Triton's quantiles of the last minute: a Prometheus makes them of histograms.
_NOT_HERE: Final = ("summary_latencies", "summary_quantiles")
_TRUTH: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """What is exposed besides the counts of requests."""

    #: The sums of durations.
    counter_latencies: bool = True
    #: The time to a request's first response.
    histogram_latencies: bool = False
    #: Triton's metrics only, as its dashboards expect them.
    only_triton: bool = False
    #: The form in which every answer tells how busy the server is; "": none does unasked.
    load_report: str = ""

    @classmethod
    def of(
        cls, words: Sequence[str], *, only_triton: bool = False, load_report: str = ""
    ) -> MetricsConfig:
        """Read words such as histogram_latencies=true.

        ConfigError names the word that makes no sense; one of Triton's that changes nothing here
        is warned of.
        """
        values: dict[str, bool] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if name in _NOT_HERE:
                log.warning("metrics_config has no effect", extra={"word": word})
            elif name not in _SWITCHES or not equals:
                known = ", ".join(_SWITCHES)
                raise ConfigError(f"metrics_config {word!r}: the settings are {known}")
            elif value.lower() not in _TRUTH:
                raise ConfigError(f"metrics_config {word!r}: the value must be true or false")
            else:
                values[name] = _TRUTH[value.lower()]
        return cls(**values, only_triton=only_triton, load_report=load_report)
