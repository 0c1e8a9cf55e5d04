"""What does the benchmark of fresh starts conclude from two looks at a model's batches?"""

from typing import Any

from benchmarks.full_batches.__main__ import in_short, keep_the_worst, measured
from benchmarks.full_batches.ways import Phase


def look(at: float, **batches: int) -> tuple[float, dict[str, Any]]:
    sizes = {size.removeprefix("of_"): count for size, count in batches.items()}
    return at, {"executions_by_batch_size": sizes}


def test_only_batches_between_the_two_looks_count() -> None:
    first, last = look(10.0, of_1=50, of_32=20), look(10.5, of_1=50, of_32=60)
    figures = measured(Phase(64, 2), first, last)
    assert figures["batches_by_size"] == {32: 40}
    assert figures["rate"] == 2560.0
    assert figures["full"] == 1.0


def test_the_best_batch_of_few_callers_has_all_of_them() -> None:
    figures = measured(Phase(4, 2), look(0.0), look(1.0, of_4=60, of_2=40))
    assert figures["full"] == 0.6
    assert figures["filled"] == 3.2 / 4
    assert figures["of_ideal"] == round(320 / (4 / 0.0058), 4)


def test_a_model_that_ran_nothing_is_a_bad_run_and_not_an_error() -> None:
    figures = measured(Phase(4, 2), look(0.0, of_4=60), look(1.0, of_4=60))
    assert (figures["filled"], figures["rate"]) == (0.0, 0.0)


def record(run: int, filled: float, of_ideal: float) -> dict[str, Any]:
    return {
        "what": "http, 4 callers",
        "run": run,
        "filled": filled,
        "full": 0.8,
        "of_ideal": of_ideal,
        "rate": 690 * of_ideal,
        "foreign": 0.0,
        "learnt": {"last_batches": []},
        "batches_by_size": {},
        "batches_by_size_before": {},
    }


def test_a_line_counts_the_runs_with_batches_that_are_too_small() -> None:
    (line,) = in_short([record(1, 1.0, 0.9), record(2, 0.89, 0.7), record(3, 0.9, 0.8)])
    assert (line["runs"], line["bad"]) == (3, 1)
    assert (line["filled %"], line["least %"]) == (90.0, 89.0)
    assert (line["of ideal %"], line["least rows/s"]) == (80.0, 483)


def test_what_was_learnt_is_kept_of_bad_runs_and_of_the_slowest() -> None:
    records = [record(1, 1.0, 0.9), record(2, 0.5, 0.8), record(3, 1.0, 0.7)]
    keep_the_worst(records)
    assert ["learnt" in one for one in records] == [False, True, True]
    assert ["last_batches" in one["learnt"] for one in records[1:]] == [True, False]
