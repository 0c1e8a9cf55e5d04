from __future__ import annotations

import gc
import weakref

import numpy as np

from wherry.core.observability.tracing import KEPT, MOST_CALLS, CallTraces, Trace
from wherry.core.values.reply import Reply
from wherry.core.values.request import InferRequest, InferResponse


def test_a_tree_has_milliseconds_from_its_own_start() -> None:
    root = Trace("chain", 1, started=10.0, ended=10.5)
    slow = Trace("slow", 2, started=10.125, ended=10.375, error="ModelFailed")
    slow.queued_at, slow.ran_at = 10.125, 10.1875
    root.add(slow)

    assert root.tree() == {
        "model": "chain",
        "rows": 1,
        "start_ms": 0.0,
        "total_ms": 500.0,
        "queue_ms": 0.0,
        "calls": [
            {
                "model": "slow",
                "rows": 2,
                "start_ms": 125.0,
                "total_ms": 250.0,
                "queue_ms": 62.5,
                "error": "ModelFailed",
            }
        ],
    }


def test_calls_without_end_do_not_fill_the_memory_and_are_still_counted() -> None:
    root = Trace("chain", 1, started=0.0)
    for _ in range(MOST_CALLS + 3):
        root.add(Trace("stage", 1, started=0.0))

    tree = root.tree()
    assert len(tree["calls"]) == MOST_CALLS
    assert tree["calls_left_out"] == 3


def test_stages_are_summed_over_all_requests_and_whole_trees_kept_of_a_few() -> None:
    traces = CallTraces()
    for number in range(KEPT + 2):
        root = Trace("chain", 1, started=float(number), ended=number + 1.0)
        inner = Trace("inner", 3, started=0.0, ended=0.2, ran_at=0.1)
        inner.add(Trace("innermost", 1, started=0.0, ended=0.1, error="x" * (number == 0)))
        root.add(inner)
        traces.ended(root)

    assert traces.stages() == [
        {
            "model": "inner",
            "calls": KEPT + 2,
            "failed": 0,
            "rows": 3 * (KEPT + 2),
            "mean_total_ms": 200.0,
            "mean_queue_ms": 100.0,
        },
        {
            "model": "innermost",
            "calls": KEPT + 2,
            "failed": 1,
            "rows": KEPT + 2,
            "mean_total_ms": 100.0,
            "mean_queue_ms": 0.0,
        },
    ]
    assert len(traces.latest()) == KEPT


def test_a_traced_request_is_freed_once_it_is_answered() -> None:
    inputs = np.zeros(1)
    request = InferRequest({"x": inputs}, 1, Reply(lambda _: None))
    Trace("m", 1, started=0.0).follow(request, lambda: 1.0)
    request.reply.settle(InferResponse({}, 1))
    seen = weakref.ref(inputs)
    gc.disable()
    try:
        del inputs, request
        assert seen() is None
    finally:
        gc.enable()
