"""Which metrics does tritonserver's --metrics-config mean?"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wherry.core.values.errors import ConfigError

log = logging.getLogger("wherry")

#: Triton's quantiles of the last minute, which a Prometheus makes of histograms, and a coarse one
#: of first responses: wherry's own histograms are always there.
_NOT_HERE: Final = ("summary_latencies", "summary_quantiles", "histogram_latencies")
_TRUTH: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """What is exposed besides the counts of requests."""

    #: The sums of durations.
    counter_latencies: bool = True
    #: Triton's metrics only, as its dashboards expect them.
    only_triton: bool = False
    #: The form in which every answer tells how busy the server is; "": none does unasked.
    load_report: str = ""

    @classmethod
    def of(
        cls, words: Sequence[str], *, only_triton: bool = False, load_report: str = ""
    ) -> MetricsConfig:
        """Read words such as counter_latencies=false.

        ConfigError names the word that makes no sense; one of Triton's that changes nothing here
        is warned of.
        """
        latencies = True
        for word in words:
            name, equals, value = word.partition("=")
            if name in _NOT_HERE:
                log.warning("metrics_config has no effect", extra={"word": word})
            elif name != "counter_latencies" or not equals:
                raise ConfigError(f"metrics_config {word!r}: the setting is counter_latencies")
            elif value.lower() not in _TRUTH:
                raise ConfigError(f"metrics_config {word!r}: the value must be true or false")
            else:
                latencies = _TRUTH[value.lower()]
        return cls(counter_latencies=latencies, only_triton=only_triton, load_report=load_report)
