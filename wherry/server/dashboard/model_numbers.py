"""Which numbers of one model does the dashboard show?

The keys are in docs/reference/http.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from wherry.core.api import LoadedModel, RateWindow, Reading, Readings, reading, significant, summed
from wherry.server.calls.client_text import text_for_clients, without_paths
from wherry.server.calls.json_text import encode_json
from wherry.server.v2.batching import beliefs

Json = dict[str, Any]

#: Errors that are told of each model.
MOST_ERRORS: Final = 16

#: Seconds from one explanation of the batcher to the next: it is half of the work.
EXPLAIN_EVERY: Final = 2.5

#: Of what the batcher explains, what is told as it is.
_EXPLAINED: Final = (
    "policy", "max_batch_rows", "fixed_seconds", "row_seconds", "predicted_wait_seconds",
    "held_seconds",
)  # fmt: skip


class ModelNumbers:
    """The numbers of one loaded version, read again and again. In the loop."""

    def __init__(self, loaded: LoadedModel, clock: Callable[[], float]) -> None:
        self.loaded = loaded
        self._clock = clock
        self._readings = Readings()
        self._readings.begin(loaded.made_at)
        self._kind = _kind(loaded)
        self._text = b""
        self._explained: Json = {}
        self._explain_at = 0.0
        self._seen: tuple[object, ...] = ()

    def read(self, resident: Mapping[str, int], unix: float) -> bytes:
        """The numbers now as JSON: the same as before if nothing has changed. `resident` are bytes
        of memory by instance, `unix` is the Unix time of 0 on the runtime's clock."""
        loaded = self.loaded
        runner = loaded.runner
        gauges: Mapping[str, Mapping[str, float]] = getattr(runner, "gauges", dict)()
        counted = loaded.statistics
        latest = reading(counted, summed(gauges.values()))
        window = self._readings.add(self._clock(), latest)
        running = runner.running()
        reason = loaded.not_ready_reason()
        seconds = round(window.seconds, 0 if window.seconds >= 1 else 2)
        seen = (
            reason, runner.queued_requests, running, resident, seconds,
            [instance.name for instance in runner.instances],
        )  # fmt: skip
        if self._text and self._readings.quiet and seen == self._seen:
            return self._text
        self._seen = seen
        explained = {
            "name": loaded.name,
            "version": loaded.version,
            "state": "UNAVAILABLE" if reason else "READY",
            "reason": without_paths(reason),
            "kind": self._kind,
            "streams": loaded.signature.streams,
            "max_batch_size": loaded.config.max_batch_size,
            "window_seconds": seconds,
            **_rates(window),
            "queued_requests": runner.queued_requests,
            "running_batches": len(running),
            "running_rows": sum(rows for _, rows, _ in running),
            **self._counted(latest),
            "batching": self._batching(window),
            "instances": self._instances(running, resident, unix),
            "next_try_seconds": getattr(runner, "next_try", lambda: None)(),
            "generation": _generation(window, len(gauges)) if self._kind == "steps" else None,
        }
        self._text = encode_json(explained)
        return self._text

    def _counted(self, latest: Reading) -> Json:
        counted = self.loaded.runner.statistics
        with counted.lock:
            failures, errors = dict(counted.failures), counted.failures.last(MOST_ERRORS)
            cuts = dict(counted.cut_reasons)
            totals = {
                "requests": latest.requests,
                "rows": latest.rows,
                "batches": latest.batches,
                "responses": latest.responses,
                "failures": failures,
                "predicted_late": counted.predicted_late,
                "poisoned": counted.poisoned,
                "cache_hits": counted.cache_hit.count,
                "cache_misses": counted.cache_miss.count,
                "worker_restarts": counted.worker_restarts,
                "worker_deaths": dict(counted.worker_deaths),
            }
        return {
            "totals": totals,
            "batch_sizes": sorted((rows, one[0]) for rows, one in latest.batch_sizes.items()),
            "cut_reasons": cuts,
            "errors": [
                {
                    "at": one.at,
                    "kind": one.kind.__name__,
                    "message": text_for_clients(one.kind, one.text),
                    "count": one.times,
                }
                for one in errors
            ],
        }

    def _batching(self, window: RateWindow) -> Json:
        if self._kind != "batches":
            return {}
        if self._clock() < self._explain_at:
            return self._explained
        self._explain_at = self._clock() + EXPLAIN_EVERY
        explained = self.loaded.runner.explain()
        curve = [
            [one["rows"], significant(one["seconds"]), significant(one["error_seconds"])]
            for one in explained.get("curve", ())
        ]
        self._explained = {
            **{key: explained[key] for key in _EXPLAINED if key in explained},
            "curve": curve,
            "observed": window.observed(),
            "in_words": list(beliefs(explained)),
        }
        return self._explained

    def _instances(
        self, running: list[tuple[str, int, float]], resident: Mapping[str, int], unix: float
    ) -> list[Json]:
        rows: Counter[str] = Counter()
        since: dict[str, float] = {}
        for name, count, began in running:
            rows[name] += count
            since[name] = min(began, since.get(name, began))
        explained = []
        for instance in self.loaded.runner.instances:
            reason = instance.not_ready_reason()
            began_at = since.get(instance.name)
            state = "idle" if began_at is None else "running"
            explained.append(
                {
                    "name": instance.name,
                    "state": "not ready" if reason else state,
                    "reason": without_paths(reason),
                    "device": str(instance.device),
                    "pid": instance.pid,
                    "resident_bytes": resident.get(instance.name),
                    "running_rows": rows[instance.name],
                    "running_since": None if began_at is None else unix + began_at,
                }
            )
        return explained


def _kind(loaded: LoadedModel) -> str:
    """What runs its requests: batches, steps or a pipeline."""
    if loaded.is_pipeline:
        return "pipeline"
    return "batches" if "decisions" in loaded.runner.explain() else "steps"


def _rates(window: RateWindow) -> Json:
    return {
        "requests_per_second": window.per_second("requests"),
        "rows_per_second": window.per_second("rows"),
        "batches_per_second": window.per_second("batches"),
        "failures_per_second": window.per_second("failed"),
        "responses_per_second": window.per_second("responses"),
        "request_seconds": window.times("request_seconds"),
        "queue_seconds": window.times("queue_seconds"),
    }


def _generation(window: RateWindow, instances: int) -> Json | None:
    """What a language model tells of itself; of another model that works in steps what there is."""
    gauges = window.now.gauges
    looked_up = window.gauge("prefix_cache_queries_total")
    usage = gauges.get("kv_cache_usage")
    return {
        "running": int(gauges.get("running", 0)),
        "waiting": int(gauges.get("waiting", 0)),
        "tokens_per_second": window.gauge_per_second("generation_tokens_total"),
        "prompt_tokens_per_second": window.gauge_per_second("prompt_tokens_total"),
        "first_response_seconds": window.times("first_response_seconds"),
        "next_response_seconds": window.times("next_response_seconds"),
        "kv_cache_usage": None if usage is None else significant(usage / max(1, instances)),
        "kv_blocks": gauges.get("kv_blocks"),
        "kv_blocks_used": gauges.get("kv_blocks_used"),
        "prefix_hit_share": (
            significant(window.gauge("prefix_cache_hits_total") / looked_up) if looked_up else None
        ),
        "preemptions": int(gauges.get("preemptions_total", 0)),
    }
