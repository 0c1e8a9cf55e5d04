"""Which of Triton's metrics does a server expose? The words of its `--metrics-config`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wherry.values.errors import ConfigError

_SWITCHES: Final = ("counter_latencies", "summary_latencies", "histogram_latencies")
_QUANTILES: Final = "summary_quantiles"
_TRUTH: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """What is exposed besides the counts of requests."""

    #: The sums of durations.
    counter_latencies: bool = True
    #: The quantiles of the last minute.
    summary_latencies: bool = False
    #: The time to a request's first response.
    histogram_latencies: bool = False
    quantiles: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99, 0.999)
    #: Triton's metrics only, as its dashboards expect them.
    only_triton: bool = False
    #: The form in which every answer tells how busy the server is; "": none does unasked.
    load_report: str = ""

    @classmethod
    def of(
        cls, words: Sequence[str], *, only_triton: bool = False, load_report: str = ""
    ) -> MetricsConfig:
        """Read words such as summary_latencies=true and summary_quantiles=0.5:0.05,0.9:0.01.

        ConfigError names the word that makes no sense.
        """
        values: dict[str, bool] = {}
        quantiles = cls.quantiles_of("0.5,0.9,0.95,0.99,0.999")
        for word in words:
            name, equals, value = word.partition("=")
            if name == _QUANTILES and equals:
                quantiles = cls.quantiles_of(value)
            elif name not in _SWITCHES or not equals:
                known = ", ".join((*_SWITCHES, _QUANTILES))
                raise ConfigError(f"metrics_config {word!r}: what there is to set: {known}")
            elif value.lower() not in _TRUTH:
                raise ConfigError(f"metrics_config {word!r}: the value must be true or false")
            else:
                values[name] = _TRUTH[value.lower()]
        return cls(**values, quantiles=quantiles, only_triton=only_triton, load_report=load_report)

    @staticmethod
    def quantiles_of(text: str) -> tuple[float, ...]:
        """The quantiles of 0.5:0.05,0.9:0.01; the errors that Triton allows do not matter here."""
        try:
            found = tuple(float(one.partition(":")[0]) for one in text.split(","))
        except ValueError:
            found = ()
        if not found or not all(0 <= one <= 1 for one in found) or len(found) > MOST_QUANTILES:
            raise ConfigError(
                f"metrics_config '{_QUANTILES}={text}': up to {MOST_QUANTILES} numbers from 0 to 1,"
                " as in 0.5:0.05,0.99:0.001"
            )
        return found


MOST_QUANTILES: Final = 32
