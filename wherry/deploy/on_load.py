"""How many replicas does Ray Serve need, and which one would answer first?

Pure, and light to import: Ray Serve's controller and proxies import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wherry.core.api import LoadReport

#: The utilisation to aim at: the share of their instances that full batches would need.
BUSY: Final = 0.7
#: Requests for a good answer of a replica that only fails.
MOST_TRIES: Final = 100


def autoscaling_stats(load: LoadReport) -> dict[str, float]:
    """What a replica reports to `replicas_needed`."""
    return {"utilisation": load.utilisation}


def routing_stats(load: LoadReport) -> dict[str, float]:
    """What a replica reports to `answer_seconds`: seconds until a good answer, or a replica that
    fails fast would get all requests."""
    answered = load.requests_per_second + load.errors_per_second
    tries = answered / max(load.requests_per_second, answered / MOST_TRIES) if answered else 1.0
    return {
        "answer_seconds": load.answer_seconds * tries,
        "one_seconds": load.one_seconds * tries,
        "row_seconds": load.row_seconds * tries,
        "rows": load.queued_rows + load.running_rows,
    }


def replicas_needed(context: Any) -> tuple[float, dict[str, Any]]:
    """Ray Serve's policy of autoscaling: as many replicas as would be BUSY.

    The number of requests also grows with their duration and with small batches, so it counts only
    where replicas are busier than BUSY: one decision is then enough for a burst.
    """
    metrics = (context.aggregated_metrics or {}).get("utilisation", {})
    if not metrics:
        return context.target_num_replicas, {}
    busy = sum(metrics.values()) / len(metrics)
    needed = context.current_num_replicas * busy / BUSY
    if busy > BUSY:
        full = context.config.get_target_ongoing_requests()
        needed = max(needed, context.total_num_requests / full)
    # Ray Serve rounds up: 3 x 0.7 / 0.7 is a little more than 3.
    return max(round(needed, 6), 1 if context.total_num_requests else 0), {}


def answer_seconds(metrics: Mapping[str, float], requests: int) -> float:
    """Seconds until a replica with these metrics and this number of requests answers one more."""
    since = requests - metrics.get("rows", 0)
    predicted = metrics.get("answer_seconds", 0.0) + since * metrics.get("row_seconds", 0.0)
    return max(predicted, metrics.get("one_seconds", 0.0))
