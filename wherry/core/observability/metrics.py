"""Which metrics does a server expose to Prometheus, and under which names?

Every metric is declared here. The counters are in `statistics.py` and are read at each scrape.
Triton's metrics, with its units, are exposed besides our own for existing dashboards.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from wherry.core.observability.custom_metrics import CustomFamily, Kind, merged
from wherry.core.observability.families import LABELS, Loaded, ModelValues, custom_metric, family
from wherry.core.observability.fronts import FrontsSource, LoopStall, front_metrics, of_all_loops
from wherry.core.observability.machine import Machine, Use, gpus
from wherry.core.observability.triton_metrics import (
    CacheNumbers,
    cache_metrics,
    gpu_metrics,
    machine_metrics,
    picker_metrics,
    triton_metrics,
)
from wherry.core.values.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger("wherry")

#: The label of an instance. Not `instance`: in Prometheus that is the server.
INSTANCE: Final = "model_instance"
PLAIN_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
#: Counters of Triton and of models may lack the suffix `_total` that OpenMetrics requires: they are
#: untyped there.
_UNTYPED: Final = re.compile(rb"^(# TYPE ([\w:]+)) untyped$", re.MULTILINE)
#: A whole value is written without a point, as in Triton's text, for scripts that read it.
_WHOLE: Final = re.compile(rb"^([^#\n].* -?\d+)\.0$", re.MULTILINE)
#: Triton's quantiles of the last minute, which Prometheus computes from histograms, and its coarse
#: histogram of first responses: wherry's own histograms are always there.
_NOT_HERE: Final = ("summary_latencies", "summary_quantiles", "histogram_latencies")
_TRUTH: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """What is exposed besides the counts of requests, by tritonserver's --metrics-config."""

    #: The sums of durations.
    counter_latencies: bool = True
    #: Triton's metrics only, as its dashboards expect them.
    only_triton: bool = False
    #: The format of the load report in every answer; "": only answers to clients that request it.
    load_report: str = ""

    @classmethod
    def of(
        cls, words: Sequence[str], *, only_triton: bool = False, load_report: str = ""
    ) -> MetricsConfig:
        """Read words such as counter_latencies=false.

        ConfigError names an invalid word; a word of Triton's that changes nothing here is logged
        as a warning.
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


class Cache(Protocol):
    def statistics(self) -> CacheNumbers: ...


class MeasuredRuntime(Protocol):
    @property
    def cache(self) -> Cache | None: ...
    def models(self) -> Sequence[Loaded]: ...


class AdmissionCounts(Protocol):
    in_flight: int
    refused: int

    @property
    def held_bytes(self) -> int: ...


class Metrics:
    """A server's metrics. prometheus_client is imported at the first scrape."""

    def __init__(
        self,
        source: MeasuredRuntime,
        admission: AdmissionCounts,
        version: str,
        loop_stall: LoopStall | None = None,
        config: MetricsConfig | None = None,
    ) -> None:
        self._source = source
        self._config = config or MetricsConfig()
        self._loop_stall = loop_stall or LoopStall()
        self._admission = admission
        self._version = version
        self._machine = Machine()
        #: The fronts of this server, if it has some.
        self.fronts: FrontsSource | None = None
        self._registry: Any = None

    def scrape(self, *, openmetrics: bool) -> tuple[bytes, str]:
        """The metrics as text, and its content type. Takes milliseconds and reads files: not for an
        event loop.

        Includes the metrics that the program itself registered with prometheus_client.
        """
        from prometheus_client import REGISTRY, CollectorRegistry, exposition
        from prometheus_client.openmetrics import exposition as openmetrics_exposition

        if self._registry is None:
            self._registry = CollectorRegistry()
            self._registry.register(self)
            self._registry.register(REGISTRY)
        if openmetrics:
            text = openmetrics_exposition.generate_latest(self._registry)  # type: ignore[no-untyped-call]
            return text, openmetrics_exposition.CONTENT_TYPE_LATEST
        text = exposition.generate_latest(self._registry)
        counters = {
            one.name.encode() for one in self._custom_families() if one.kind is Kind.COUNTER
        }

        def typed(line: re.Match[bytes]) -> bytes:
            name = line[2]
            return line[1] + b" counter" if name.startswith(b"nv_") or name in counters else line[0]

        return _WHOLE.sub(rb"\1", _UNTYPED.sub(typed, text)), PLAIN_TEXT

    def describe(self) -> Iterable[Metric]:
        """Return no names: prometheus_client then does not call `collect` to register this."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics now, for prometheus_client."""
        use = self._machine.use()
        models = [ModelValues(loaded) for loaded in self._source.models()]
        if not self._config.only_triton:
            yield from self._of_the_server(use)
            yield from own_metrics(models)
            yield from picker_metrics(models)
        yield from self._of_triton(models, use)
        yield from map(custom_metric, self._custom_families())

    def _of_triton(self, models: Sequence[ModelValues], use: Use) -> Iterator[Metric]:
        config = self._config
        yield from triton_metrics(models, latencies=config.counter_latencies)
        cache = self._source.cache
        yield from cache_metrics(None if cache is None else cache.statistics())
        yield from machine_metrics(use)
        yield from gpu_metrics(gpus())

    def _of_the_server(self, use: Use) -> Iterator[Metric]:
        from prometheus_client.core import InfoMetricFamily

        admission = self._admission
        loops = of_all_loops(admission.refused, self._loop_stall, self.fronts)
        yield InfoMetricFamily("wherry", "The server.", value={"version": self._version})
        for kind, name, help, value in (
            ("Gauge", "wherry_requests_in_flight", "Requests accepted and not answered yet.",
             admission.in_flight),
            ("Counter", "wherry_requests_refused",
             "Requests refused because max_in_flight or max_queue_bytes was reached.",
             loops.refused),
            ("Gauge", "wherry_request_bytes",
             "Bytes held by waiting and running requests; at least 64 KiB each.",
             admission.held_bytes),
            ("Histogram", "wherry_loop_stall_seconds",
             "How late the event loop woke up, which delays everything that arrives.",
             loops.stalls),
            ("Gauge", "wherry_loop_stall_longest_seconds",
             "The longest of these in the last one to two minutes.", loops.longest_stall),
            ("Gauge", "wherry_memory_limit_bytes", "Memory that this process and its children may"
             " use.", use.limit_bytes),
            ("Gauge", "wherry_memory_used_bytes", "How much of that is used, by all that share it.",
             use.limit_used_bytes),
        ):  # fmt: skip
            yield family(kind, name, help, [((), value)])
        if self.fronts is not None:
            yield from front_metrics(self.fronts)

    def _custom_families(self) -> list[CustomFamily]:
        stores = (loaded.model.custom_metrics for loaded in self._source.models())
        return merged(store for store in stores if store is not None)


class Own(NamedTuple):
    """A metric of every model. With a `label` the value is a dict by the label's value."""

    kind: str
    name: str
    help: str
    value: Callable[[ModelValues], Any]
    label: str = ""


#: In base units, with bounded labels.
OWN: Final = (
    Own("Counter", "wherry_requests", "Requests answered, by outcome.",
        lambda v: {
            "success": v.counted.totals.requests, **{r.lower(): n for r, n in v.failures.items()}},
        "outcome"),
    Own("Counter", "wherry_rejected",
        "Requests refused with a full queue or past their deadline.",
        lambda v: v.failures["REJECTED"]),
    Own("Counter", "wherry_rejected_predicted_late",
        "Of those rejected, requests predicted to miss their deadline or max_queue_wait.",
        lambda v: v.counted.totals.predicted_late),
    Own("Counter", "wherry_stream_responses", "Responses sent by streaming requests.",
        lambda v: v.counted.totals.responses),
    Own("Histogram", "wherry_request_seconds",
        "From a request's arrival to its answer, if it succeeded.",
        lambda v: v.counted.request_seconds),
    Own("Histogram", "wherry_queue_seconds", "Time requests waited for an instance.",
        lambda v: v.counted.queue_seconds),
    Own("Counter", "wherry_compute_seconds",
        "Time instances spent in batches: gathering inputs, in the model, sorting outputs.",
        lambda v: v.busy_seconds, "phase"),
    Own("Histogram", "wherry_batch_size", "Rows in each execution of the model.",
        lambda v: v.batch_sizes),
    Own("Counter", "wherry_batch_cut", "Batches by the reason why they started.",
        lambda v: v.cuts, "reason"),
    Own("Counter", "wherry_batch_held_seconds",
        "How long an instance stayed free while a batch waited on purpose, by reason.",
        lambda v: v.learnt.get("held_seconds", {}), "for"),
    Own("Gauge", "wherry_queue_depth", "Requests waiting for an instance.", lambda v: v.queued),
    Own("Gauge", "wherry_batches_running", "Running batches (pipelines: requests).",
        lambda v: len(v.loaded.runner.running())),
    Own("Counter", "wherry_worker_restarts", "Instances restarted after they died.",
        lambda v: v.counted.totals.worker_restarts),
    Own("Counter", "wherry_worker_deaths",
        "Instances that died, hung or could not be loaded again, by cause.",
        lambda v: v.counted.totals.worker_deaths, "cause"),
    Own("Counter", "wherry_poisoned_requests",
        "Requests refused because they kill their workers.", lambda v: v.counted.totals.poisoned),
    Own("Gauge", "wherry_model_next_try_seconds",
        "Time until a model without instances is retried; 0 if it has some.",
        lambda v: v.loaded.runner.next_try() or 0.0),
    Own("Gauge", "wherry_worker_rss_bytes", "Resident memory of an instance's process.",
        lambda v: v.rss_bytes, INSTANCE),
    Own("Gauge", "wherry_model_ready", "1 if a new request would make progress.",
        lambda v: float(not v.loaded.not_ready_reason())),
    Own("Gauge", "wherry_model_awake",
        "1 if its instances are loaded or loading; 0 of a model that sleeps until it is called.",
        lambda v: float(v.residence.get("state") != "asleep")),
    Own("Gauge", "wherry_model_footprint_bytes",
        "Memory a model takes of a device with a budget, as far as known.",
        lambda v: _of_device(v, v.residence.get("footprint_bytes")), "device"),
    Own("Counter", "wherry_model_wakes", "Loads of a sleeping model, by device.",
        lambda v: _of_device(v, v.residence.get("wakes")), "device"),
    Own("Counter", "wherry_model_waking_seconds", "Seconds in these loads.",
        lambda v: _of_device(v, v.residence.get("waking_seconds")), "device"),
    Own("Gauge", "wherry_full_batch_row_seconds",
        "Time of all instances per row in full batches; 0 for models in steps.",
        lambda v: 0.0 if v.load.joins else v.load.row_seconds),
    Own("Gauge", "wherry_slots_used_ratio",
        "Share of slots in use of a model that works in steps; 0 for others.",
        lambda v: v.load.busy_share if v.load.joins else 0.0),
)  # fmt: skip

#: Metrics of StepModels; those of language models have vLLM's meanings.
OF_STEPS: Final = (
    Own("Histogram", "wherry_first_response_seconds",
        "From a request's arrival to its first response, of models that work in steps.",
        lambda v: v.counted.first_response_seconds),
    Own("Histogram", "wherry_next_response_seconds",
        "From one response to the next, of models that work in steps.",
        lambda v: v.counted.next_response_seconds),
)  # fmt: skip


def _learnt(name: str, key: str, help: str) -> Own:
    """A value that batchers have learnt; 0 until then. Pipelines have none."""
    return Own("Gauge", name, help, lambda v: v.learnt[key] or 0.0 if key in v.learnt else None)


#: Their keys are names in `GET /v2/models/NAME/batching`.
LEARNT: Final = (
    _learnt("wherry_max_batch_rows", "max_batch_rows",
            "Maximum rows per batch: max_batch_size, or fewer after running out of memory."),
    _learnt("wherry_batch_fixed_seconds", "fixed_seconds",
            "Learnt time of a batch that does not depend on its size."),
    _learnt("wherry_batch_row_seconds", "row_seconds",
            "Learnt time that each row adds to its batch."),
    _learnt("wherry_returning_ratio", "returning_share",
            "Learnt share of callers that send again right after an answer."),
    _learnt("wherry_predicted_wait_seconds", "predicted_wait_seconds",
            "Predicted wait in the queue of a request that arrives now."),
)  # fmt: skip


def _generation(name: str, key: str, help: str) -> Own:
    """What a language model reports of each instance, by its key in gauges()."""

    def of_instances(values: ModelValues) -> dict[str, float | None]:
        return {instance: measured.get(key) for instance, measured in values.gauges.items()}

    kind = "Counter" if key.endswith("_total") else "Gauge"
    return Own(kind, name, help, of_instances, INSTANCE)


GENERATION: Final = (
    _generation("wherry_llm_requests_running", "running", "Sequences that run."),
    _generation("wherry_llm_requests_waiting", "waiting", "Sequences that wait."),
    _generation("wherry_llm_kv_cache_usage_ratio", "kv_cache_usage",
                "Share of the KV cache's blocks in use."),
    _generation("wherry_llm_prompt_tokens", "prompt_tokens_total",
                "Prompt tokens computed (prefill)."),
    _generation("wherry_llm_generation_tokens", "generation_tokens_total", "Tokens generated."),
    _generation("wherry_llm_prefix_cache_queries", "prefix_cache_queries_total",
                "Prompt tokens looked up in the prefix cache."),
    _generation("wherry_llm_prefix_cache_hits", "prefix_cache_hits_total",
                "Of these, tokens found there."),
    _generation("wherry_llm_preemptions", "preemptions_total",
                "Sequences preempted because the KV cache was full."),
    _generation("wherry_llm_steps", "steps_total", "Steps of the engine."),
    _generation("wherry_llm_step_seconds", "step_seconds_total", "Seconds in steps."),
    _generation("wherry_llm_model_seconds", "model_seconds_total",
                "Of these, in the model itself."),
)  # fmt: skip


def _of_device(values: ModelValues, number: float | None) -> dict[str, float]:
    return {} if number is None else {values.residence["device"]: number}


def own_metrics(models: Sequence[ModelValues]) -> Iterator[Metric]:
    yield from (_of_models(models, own) for own in (*OWN, *LEARNT, *OF_STEPS, *GENERATION))


def _of_models(models: Sequence[ModelValues], own: Own) -> Metric:
    if not own.label:
        samples = [(values.labels, own.value(values)) for values in models]
        return family(own.kind, own.name, own.help, samples, LABELS)
    labelled = [
        ([*values.labels, which], number)
        for values in models
        for which, number in own.value(values).items()
    ]
    return family(own.kind, own.name, own.help, labelled, (*LABELS, own.label))
