"""Costs of rows, refusals at the door, and the batcher's explanation of itself."""

import gc
import threading
from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from tests.fakes import Call, Gate, gated, until
from wherry.core.models.config import ModelConfig
from wherry.core.models.settings import Isolation
from wherry.core.runtime.loaded_model import InputRows
from wherry.core.values.reply import Reply

Vector = Annotated[np.ndarray, wherry.FP32[2]]
Vectors = Annotated[list[np.ndarray], wherry.FP32[-1]]


def test_a_cost_that_raises_is_the_models_failure_and_names_it() -> None:
    def broken(text: str) -> float:
        raise ZeroDivisionError("no idea")

    @wherry.model(max_batch_size=4, cost=broken)
    def echo(text: list[str]) -> list[str]:
        return text

    with (
        wherry.Runtime(echo) as runtime,
        pytest.raises(wherry.ModelFailed, match=r"'echo': cost\(\) failed: ZeroDivisionError"),
    ):
        runtime.infer("echo", "a", timeout=10)


def test_a_class_may_have_a_cost_method() -> None:
    class Weighed(wherry.Model):
        max_batch_size = 4

        def cost(self, text: str, weight: int) -> float:
            return len(text) * weight

        def execute(self, text: list[str], weight: list[int]) -> list[str]:
            return text

    with wherry.Runtime(Weighed()) as runtime:
        loaded = runtime.model("weighed")
        columns = loaded.row_columns(("abc", 5), {})
        request = loaded.request(columns, 1, Reply(lambda _: None))
        assert request.cost == 15.0
        assert runtime.infer("weighed", "abc", 5) == "abc"


@wherry.model(max_batch_size=8)
def memory_for_three(text: list[str]) -> list[str]:
    if len(text) > 3:
        raise MemoryError(f"no room for {len(text)} rows")
    return text


def explained(model: Any, calls: int) -> dict[str, Any]:
    with wherry.Runtime(model) as runtime:
        list(runtime.map(model.name, [str(n) for n in range(calls)]))
        return runtime.model(model.name).runner.explain()


def test_the_batcher_says_what_it_has_learnt() -> None:
    @wherry.model(max_batch_size=8)
    def echo(text: list[str]) -> list[str]:
        return text

    told = explained(echo, 100)
    assert told["policy"] == "self-tuning"
    assert told["curve"]
    assert all(point["seconds"] > 0 for point in told["curve"])
    assert told["predicted_wait_seconds"] == 0.0


def test_whoever_sets_a_delay_gets_it_and_is_told_so() -> None:
    @wherry.model(max_batch_size=8, max_queue_delay=0.002, preferred_batch_sizes=(2, 4))
    def echo(text: list[str]) -> list[str]:
        return text

    told = explained(echo, 10)
    assert told["policy"] == "fixed"
    assert told["max_batch_rows"] == 8
    assert told["max_queue_delay_seconds"] == 0.002
    assert told["preferred_batch_sizes"] == [2, 4]


def test_a_request_that_could_not_start_in_time_is_refused_at_the_door() -> None:
    gate = Gate()

    @wherry.model(max_batch_size=2)
    def slow(text: list[str]) -> list[str]:
        gate.hold(text)
        return text

    with wherry.Runtime(slow) as runtime:
        dispatcher = runtime.model("slow").runner
        dispatcher._batches._scheduler.curve.learn(1, 1.0)  # type: ignore[attr-defined] # a slow past
        running = threading.Thread(target=runtime.infer, args=("slow", "a"), kwargs={"timeout": 60})
        running.start()
        gate.started()
        with pytest.raises(wherry.Overloaded, match="too long for its timeout") as refused:
            runtime.infer("slow", "b", timeout=1.0)
        assert refused.value.retry_after is not None
        assert refused.value.retry_after > 0.1
        assert refused.value.http_status == 429
        gate.open()
        running.join()


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_batch_that_finds_no_memory_runs_in_halves_and_the_safe_size_is_remembered(
    isolation: Isolation,
) -> None:
    model = memory_for_three
    with wherry.Runtime(model, isolation=isolation) as runtime:
        first = runtime.infer_batch("memory_for_three", text=list("abcdefgh"))
        assert first == {"output": list("abcdefgh")}
        told = runtime.model("memory_for_three").runner.explain()
        again = runtime.infer_batch("memory_for_three", text=list("stuvwxyz"))
        assert again == {"output": list("stuvwxyz")}
    assert told["max_batch_rows"] == 2


def test_a_models_own_bound_of_bytes_counts_what_waits_and_runs_and_local_callers_too() -> None:
    gate = Gate()
    model = gated(gate, max_batch_size=1, max_queue_bytes=3 * 2**20)
    text = "x" * 2**20
    with wherry.Runtime(model) as runtime:
        loaded = runtime.model("gated")
        calls = [Call(text) for _ in range(3)]
        loaded.submit([call.request for call in calls[:2]])
        gate.started()
        loaded.submit([calls[2].request])
        error = calls[2].error()
        assert isinstance(error, wherry.Overloaded)
        assert "model 'gated'" in str(error)
        assert "max_queue_bytes" in str(error)
        assert error.http_status == 503
        assert loaded.statistics.failures["REJECTED"] == 1
        gate.open(3)
        for call in calls[:2]:
            call.rows()
        calls.clear()
        del call
        gc.collect()  # a test's call and its request know each other
        assert runtime.infer("gated", text, timeout=60.0) == text.upper()


# Requests that are split


def counted(runtime: wherry.Runtime, name: str = "gated") -> dict[str, int]:
    statistics = runtime.model(name).statistics
    return {
        "requests": statistics.success.count,
        "failed": statistics.fail.count,
        "latencies": statistics.request_seconds.duration.count,
        "queued": statistics.queue.count,
        "computed": statistics.compute.count,
        "rows": statistics.inference_count,
        "batches": statistics.execution_count,
    }


def test_a_request_that_is_split_counts_once_its_rows_all_and_each_batch() -> None:
    @wherry.model(max_batch_size=4, name="gated")
    def echo(text: list[str]) -> list[str]:
        return text

    with wherry.Runtime(echo) as runtime:
        runtime.infer_batch("gated", text=[*"abcdefghij"])
        assert counted(runtime) == {
            "requests": 1,
            "failed": 0,
            "latencies": 1,
            "queued": 1,
            "computed": 1,
            "rows": 10,
            "batches": 3,
        }
        statistics = runtime.model("gated").statistics
        in_batches = sum(batch.infer_ns for batch in statistics.batch_sizes.values())
        assert statistics.compute.infer_ns == pytest.approx(in_batches, abs=3)
        assert 0 < statistics.queue.ns <= statistics.success.ns


def test_a_split_request_that_fails_or_is_cancelled_counts_once_with_its_reason() -> None:
    gate = Gate()
    with wherry.Runtime(gated(gate, max_batch_size=2)) as runtime:
        loaded = runtime.model("gated")

        def call() -> Call:
            call = Call("a", "bad", "c", "d", "e", "f")
            loaded.submit([call.request])
            gate.started()
            return call

        cancelled = call()
        assert loaded.cancel(cancelled.request)
        assert not loaded.cancel(cancelled.request)
        gate.open()
        failed = call()
        gate.open()
        assert isinstance(failed.wait(), wherry.ModelFailed)
        assert dict(loaded.statistics.failures) == {"CANCELED": 1, "BACKEND": 1}
        until(lambda: counted(runtime)["batches"] == 2)
        found = counted(runtime)
        assert (found["requests"], found["failed"], found["rows"]) == (0, 2, 0)


def test_the_parts_of_a_request_that_finds_no_room_count_once() -> None:
    gate = Gate()
    with wherry.Runtime(gated(gate, max_batch_size=2, max_queue_size=1)) as runtime:
        loaded = runtime.model("gated")
        running, waiting, refused = (Call(*"ab"), Call(*"cd"), Call(*"efghij"))
        loaded.submit([running.request])
        gate.started()
        loaded.submit([waiting.request])
        loaded.submit([refused.request])
        assert isinstance(refused.wait(), wherry.QueueFull)
        assert dict(loaded.statistics.failures) == {"REJECTED": 1}
        gate.open(2)
        running.wait()
        waiting.wait()


@pytest.mark.parametrize("is_here", [True, False])
def test_a_row_is_that_of_the_moment_at_which_its_call_began(*, is_here: bool) -> None:
    @wherry.model(max_batch_size=4)
    def three(a: Vector, b: Vectors, c: list[list[Any]]) -> list[int]:
        return [0] * len(a)

    signature = three.signature()
    rows = InputRows(signature, ModelConfig(name="three", max_batch_size=4), is_here=is_here)
    a, b, c = np.zeros(2, np.float32), np.zeros(3, np.float32), [[0]]
    kept = rows.kept((a, b, c), {})
    a[:], b[:], c[0] = 1, 1, [1]
    assert not kept["a"][0].any()
    assert not kept["b"][0].any()
    assert kept["c"] == [[[0]]]
