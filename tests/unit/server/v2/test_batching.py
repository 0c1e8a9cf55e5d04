"""Why are a model's batches as they are? In words."""

import threading
from typing import Any

import pytest

import wherry
from tests.fakes import Gate, gated
from tests.sequence_models import Adder
from wherry.core.observability.numbers import CUT_REASONS
from wherry.core.runtime.runtime import Runtime
from wherry.core.scheduler.decisions import Decision
from wherry.core.values.quantities import duration
from wherry.core.values.request import SequenceStep
from wherry.server.cli.explain import COLUMNS, lines
from wherry.server.v2.batching import LEFT, batching, beliefs, summary

BACK = [[0.0003, 0.5], [0.0006, 0.95], [0.002, 1.0]]
PLAN = {
    "rows": 16.0,
    "wait_seconds": 0.0012,
    "apart_seconds": 0.0,
    "answer_seconds": 0.0088,
    "answer_seconds_at_once": 0.0226,
}


def decision(reason: str = "idle", rows: int = 1, at: float = 0.0, **more: Any) -> Decision:
    return Decision(at, rows, 0, at, reason, 0, **more)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({}, []),
        ({"callers": {}, "plan": {}, "next_trial_rows": None}, []),
        (
            {"callers": {"returning": 16.2, "returned_within_seconds": BACK}, "plan": PLAN},
            [
                "Callers of 16 rows send again within 0.6 ms of an answer; a batch waits up to"
                " 1.2 ms for 16 rows: 1738 rows/s instead of 701, answers in 8.8 ms instead of"
                " 22.6 ms."
            ],
        ),
        (
            {"plan": {**PLAN, "wait_seconds": 0.0, "apart_seconds": 0.004, "why": "load 40 %"}},
            [
                "A free instance takes what is queued, about 16 rows, batches start 4 ms apart:"
                " answers in 8.8 ms instead of 22.6 ms (load 40 %)."
            ],
        ),
        (
            {"plan": {**PLAN, "answer_seconds_at_once": 0.0088}},
            ["A batch waits up to 1.2 ms for 16 rows: answers in 8.8 ms."],
        ),
        ({"plan": {"why": "new"}}, ["A free instance takes what is queued (new)."]),
        (
            {"callers": {"returning": 0.2, "strangers_per_second": 120.0}, "next_trial_rows": 24},
            [
                "Open load: 120 requests/s from clients that do not wait for each answer.",
                "A batch of 24 rows will be tried soon, as its time is not known well.",
            ],
        ),
    ],
)
def test_what_is_believed_is_said_in_sentences(told: dict[str, Any], said: list[str]) -> None:
    assert list(beliefs(told)) == said


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (
            {"sizes": "cost", "similar_sizes_together": True},
            ["Rows of similar cost share batches."],
        ),
        (
            {"sizes": "length", "similar_sizes_together": True},
            [
                "Rows of similar length share batches: batches were seen to take as long as their"
                " longest row makes them."
            ],
        ),
        ({"sizes": "length", "similar_sizes_together": False}, []),
    ],
)
def test_it_is_said_when_rows_of_similar_size_share_batches(
    sizes: dict[str, Any], said: list[str]
) -> None:
    assert list(beliefs({"row_sizes": sizes})) == said


def test_the_last_batches_are_summed_up_by_why_they_left() -> None:
    held = {"held_for": "callers", "held_count": 3}
    last = [decision("full", 16, n / 100, seconds=0.02, expected_seconds=0.01) for n in range(3)]
    last += [decision("waited", 4, 1.0 + n, held_seconds=0.1 + n, **held) for n in range(2)]
    last += [decision("idle", 1, 4.0), decision("new", 1, 5.0, held_seconds=0.2, held_for="why")]
    assert list(summary(last)) == [
        "The last 7 batches (8.29 rows on average, 11.4 rows/s): 3 left full; 2 left after 600 ms"
        " on average for callers that send again; 1 left as an instance was free; 1 left new, held"
        " 200 ms for why.",
        "They took 20 ms on average, 100 % more than predicted.",
    ]
    assert list(summary([decision()])) == [
        "The last batch (1 row on average): 1 left as an instance was free."
    ]


def test_every_reason_of_every_policy_has_its_words() -> None:
    assert set(LEFT) == set(CUT_REASONS)


def test_a_batch_is_told_with_its_place_times_and_reason() -> None:
    gate = Gate()
    with Runtime(gated(gate, max_queue_delay=0, max_batch_size=2)) as runtime:
        loaded = runtime.model("gated")
        assert batching(loaded)["last_batches"] == []
        assert batching(loaded)["in_words"] == [
            "A free instance takes what is queued.",
            "Nothing has run yet.",
        ]
        call = threading.Thread(target=runtime.infer, args=("gated", "a"))
        call.start()
        gate.started()
        (told,) = batching(loaded)["last_batches"]
        gate.open()
        call.join()
        assert told.pop("left_seconds_ago") >= 0
        assert told.pop("longest_wait_seconds") >= 0
        assert told == {
            "rows": 1, "rows_left_queued": 0, "reason": "idle", "held_seconds": 0.0,
            "held_for": "", "held_count": 0, "why": "as an instance was free", "instance": 0,
            "runs": True, "seconds": None, "expected_seconds": None,
        }  # fmt: skip


def test_seconds_of_holding_are_counted_by_what_for() -> None:
    gate = Gate()
    gate.open()
    with Runtime(gated(gate, max_queue_delay=0.0005, max_batch_size=2)) as runtime:
        runtime.infer("gated", "a")
        told = batching(runtime.model("gated"))
    (held,) = told["last_batches"]
    assert told["held_seconds"] == {"callers": 0.0, "turn": 0.0, "delay": held["held_seconds"]}
    assert held["held_seconds"] > 0
    assert held["why"] == f"by max_queue_delay, held {duration(held['held_seconds'])}"


class Ones(wherry.StepModel):
    max_batch_size = 2

    def start(self, n: int) -> int:
        return n

    def step(self, active: list[int]) -> list[wherry.Step[int]]:
        return [wherry.Step([1], done=True) for _ in active]


@wherry.pipeline
async def through(text: str) -> str:
    return text


def test_models_that_form_no_batches_have_none_to_show() -> None:
    with Runtime(Ones(), through) as runtime:
        assert list(runtime.stream("ones", 1)) == [1]
        runtime.infer("through", "a")
        for name in ("ones", "through"):
            told = batching(runtime.model(name))
            assert {"last_batches", "in_words", "decisions"}.isdisjoint(told)
            assert max(map(len, lines(told))) <= COLUMNS
            steps = "0 requests are in its steps, of at most 2 in an instance."
            assert (steps in lines(told)) == (name == "ones")


def test_steps_of_sequences_are_told_as_batches() -> None:
    with Runtime(Adder()) as runtime:
        for n, step in ((1, SequenceStep("a", start=True)), (2, SequenceStep("a", end=True))):
            runtime.infer("adder", n, sequence_step=step)
        told = batching(runtime.model("adder"))
    assert [one["rows"] for one in told["last_batches"]] == [1, 1]
    assert told["in_words"][0] == "A free instance takes what is queued."


def test_it_is_told_while_many_threads_call() -> None:
    @wherry.model(max_batch_size=4, run_in_caller=False)
    def echo(text: list[str]) -> list[str]:
        return text

    with Runtime(echo) as runtime:
        loaded = runtime.model("echo")

        def call() -> None:
            for n in range(50):
                runtime.infer("echo", str(n))

        callers = [threading.Thread(target=call) for _ in range(8)]
        for caller in callers:
            caller.start()
        while any(caller.is_alive() for caller in callers):
            told = batching(loaded)
            assert all(one["seconds"] is None or not one["runs"] for one in told["last_batches"])
            assert lines(told)
        for caller in callers:
            caller.join()
        assert not any(one["runs"] for one in batching(loaded)["last_batches"])
