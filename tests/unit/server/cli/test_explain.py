"""Why are batches as they are? As lines for a terminal."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wherry
from tests.fakes import Gate, gated
from tests.properties import examples
from wherry.core.observability.numbers import CUT_REASONS
from wherry.core.runtime.runtime import Runtime
from wherry.server.cli import main
from wherry.server.cli.explain import COLUMNS, REASONS, WIDTH, lines
from wherry.server.v2.batching import batching


def batch(ago: float, **more: Any) -> dict[str, Any]:
    return {
        "left_seconds_ago": ago, "rows": 16, "rows_left_queued": 0,
        "longest_wait_seconds": 0.0015, "runs": False, "seconds": 0.021,
        "expected_seconds": 0.02, "instance": 0, **more,
    }  # fmt: skip


TOLD: dict[str, Any] = {
    "name": "bert",
    "version": "3",
    "policy": "self-tuning",
    "max_batch_size": 32,
    "max_batch_rows": 16,
    "queued_requests": 4,
    "predicted_wait_seconds": 0.25,
    "rejected_predicted_late": 7,
    "curve": [
        {"rows": 1, "seconds": 0.005, "error_seconds": 0.0, "age_batches": 511},
        {"rows": 2, "seconds": 0.006, "error_seconds": 0.0003, "age_batches": 1},
        {"rows": 16, "seconds": 0.02, "error_seconds": 0.002, "age_batches": 0},
    ],
    "fixed_seconds": 0.004,
    "row_seconds": 0.001,
    "callers": {"returned_within_seconds": [[0.0003, 0.4], [0.0005, 0.8], [0.0008, 0.8]]},
    "executions_by_batch_size": {"1": 10, "16": 30},
    "batches_cut_by_reason": {"full": 30, "idle": 10, "part": 0},
    "requests_by_wait": [[0.0005, 490]],
    "in_words": ["Callers of 16 rows send again within 0.5 ms of an answer."],
    "last_batches": [
        batch(3.0, why="as an instance was free", seconds=None),
        batch(0.25, why="full, held 0.31 ms for 12 callers", rows_left_queued=3),
        batch(0.0001, why="after 1.5 ms for 1 caller", runs=True, seconds=None),
    ],
}


def test_what_was_learnt_is_drawn_as_bars_in_proportion() -> None:
    out = lines(TOLD)
    assert out[:7] == [
        "model bert version 3: self-tuning batching, max_batch_size 32, 4 requests",
        "waiting",
        "Callers of 16 rows send again within 0.5 ms of an answer.",
        "A batch takes about 4 ms whatever its size, and 1 ms a row.",
        "There was not enough memory for more than 16 rows.",
        "A request that arrives now will wait about 250 ms.",
        "7 requests were rejected: predicted late.",
    ]
    lengths = {line.split("█")[0].split()[0]: line.count("█") for line in out[::-1] if "█" in line}
    assert lengths["16"] == round(WIDTH * 20 / 22), "the axis has room for the error"
    assert lengths["full"] == WIDTH
    assert lengths["idle"] == round(WIDTH / 3)
    assert lengths["0.5"] == WIDTH
    assert lengths["<="] == WIDTH
    assert "0.8" not in lengths, "nobody came back later"
    assert REASONS["part"] in " ".join(" ".join(out).split())
    sizes = [line.partition("█")[2].strip("█ ") for line in out if " rows " in line and "█" in line]
    assert sizes[:2] == ["±0.3 ms, 1 batch ago", "±2 ms, the last batch"]


def test_the_last_batches_are_a_table_in_80_columns() -> None:
    out = lines(TOLD)
    assert max(map(len, out)) <= COLUMNS
    assert out[-5:] == [
        "the last 3 batches, the latest first, in ms",
        "   ago rows queued waited took predicted  left",
        "0.1 ms   16      0    1.5 runs        20  after 1.5 ms for 1 caller",
        "250 ms   16      3    1.5   21        20  full, held 0.31 ms for 12 callers",
        "   3 s   16      0    1.5    -        20  as an instance was free",
    ]
    several = [batch(0.1, why="full, held 1.31 ms for 255 callers", instance=n) for n in range(40)]
    out = lines({**TOLD, "last_batches": several})
    assert max(map(len, out)) <= COLUMNS
    assert "the last 16 batches, the latest first, in ms" in out
    assert "(instance 39)" in " ".join(out[-32:])


def test_every_reason_of_every_policy_has_its_words() -> None:
    assert set(REASONS) == set(CUT_REASONS)


LARGE = st.floats(0, 1e15)
COUNT = st.integers(0, 10**15)
NAME = st.text(max_size=300)
BATCH = st.fixed_dictionaries(
    {
        "left_seconds_ago": LARGE, "rows": COUNT, "rows_left_queued": COUNT,
        "longest_wait_seconds": LARGE, "runs": st.booleans(), "seconds": LARGE | st.none(),
        "expected_seconds": LARGE | st.none(), "instance": COUNT, "why": NAME,
    }
)  # fmt: skip
SIZE = st.fixed_dictionaries(
    {"rows": COUNT, "seconds": LARGE, "error_seconds": LARGE, "age_batches": COUNT}
)


@examples(1)
@given(
    st.fixed_dictionaries(
        {
            "name": NAME, "version": NAME, "policy": NAME, "max_batch_size": COUNT,
            "queued_requests": COUNT, "in_words": st.lists(NAME, max_size=3),
            "executions_by_batch_size": st.dictionaries(COUNT.map(str), COUNT, max_size=3),
            "batches_cut_by_reason": st.dictionaries(NAME, COUNT, max_size=3),
        },
        optional={
            "curve": st.lists(SIZE, max_size=40), "last_batches": st.lists(BATCH, max_size=20),
            "callers": st.fixed_dictionaries(
                {"returned_within_seconds": st.lists(st.tuples(LARGE, LARGE), max_size=40)}
            ),
        },
    )
)  # fmt: skip
def test_whatever_is_told_fits_a_terminal(told: dict[str, Any]) -> None:
    assert all(len(line) <= COLUMNS for line in lines(told))


@pytest.mark.parametrize("calls", [0, 40])
@pytest.mark.parametrize("settings", [{}, {"max_queue_delay": 0.001}, {"max_batch_size": 1}])
def test_whatever_a_server_tells_can_be_shown(settings: dict[str, Any], calls: int) -> None:
    gate = Gate()
    gate.open(1000)
    with Runtime(gated(gate, **settings)) as runtime:
        assert len(list(runtime.map("gated", ["x"] * calls))) == calls
        told = batching(runtime.model("gated"))
        waited = sum(count for _, count in told["requests_by_wait"])
        assert waited == calls
        assert sum(one["rows"] for one in told["last_batches"]) == calls
        shown = "\n".join(lines(told))
        assert ("why they left" in shown) == (calls > 0)


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    @wherry.model(max_batch_size=8)
    def echo(text: list[str]) -> list[str]:
        return text

    with wherry.Server(echo, port=0) as server:
        assert main(["explain", "echo", "--url", server.url]) == 0
        assert "model echo version 1: self-tuning" in capsys.readouterr().out
        assert main(["explain", "nobody", "--url", server.url]) != 0


def test_of_a_pipeline_the_calls_of_its_latest_request_are_a_tree() -> None:
    call = {"rows": 1, "queue_ms": 1.0}
    told: dict[str, Any] = {
        "name": "chain",
        "version": "1",
        "stages": [
            {
                "model": "stage", "calls": 2, "failed": 1, "rows": 2, "mean_total_ms": 4.0,
                "mean_queue_ms": 1.0,
            }
        ],
        "latest": [
            {
                **call, "model": "chain", "start_ms": 0.0, "total_ms": 9.0, "error": "ModelFailed",
                "calls": [{**call, "model": "stage", "start_ms": 2.0, "total_ms": 4.0}],
                "calls_left_out": 1,
            }
        ],
    }  # fmt: skip
    assert lines(told) == [
        "pipeline chain version 1: the calls of its latest request",
        "  chain: from 0 ms, took 9 ms, 1 ms of it waiting, ModelFailed",
        "    stage: from 2 ms, took 4 ms, 1 ms of it waiting",
        "    and 1 more",
        "",
        "what its requests called, mean time of a call",
        f"       stage         4 ms {'█' * WIDTH}  2 calls, 1 ms waiting, 1",
        "             failed",
    ]
