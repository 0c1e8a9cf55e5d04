from __future__ import annotations

from wherry.core.observability.tracing import KEPT, MOST_CHILDREN, CallTraces, Span


def test_a_tree_has_milliseconds_from_its_own_start() -> None:
    root = Span("chain", 1, started=10.0, seconds=0.5)
    root.add(Span("slow", 2, started=10.1, seconds=0.25, queue_seconds=0.05, error="ModelFailed"))

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
                "start_ms": 100.0,
                "total_ms": 250.0,
                "queue_ms": 50.0,
                "error": "ModelFailed",
            }
        ],
    }


def test_calls_without_end_do_not_fill_the_memory_and_are_still_counted() -> None:
    root = Span("chain", 1, started=0.0)
    for _ in range(MOST_CHILDREN + 3):
        root.add(Span("stage", 1, started=0.0))

    tree = root.tree()
    assert len(tree["calls"]) == MOST_CHILDREN
    assert tree["calls_left_out"] == 3


def test_stages_are_summed_over_all_requests_and_whole_trees_kept_of_a_few() -> None:
    traces = CallTraces()
    for number in range(KEPT + 2):
        root = Span("chain", 1, started=float(number), seconds=1.0)
        inner = Span("inner", 3, started=0.0, seconds=0.2, queue_seconds=0.1)
        inner.add(Span("innermost", 1, started=0.0, seconds=0.1, error="x" * (number == 0)))
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
