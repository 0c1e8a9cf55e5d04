"""How do threads and event loops reach a model, and does everything end when the runtime does?"""

import asyncio
import contextlib
import dataclasses
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest

import wherry
from tests.fakes import TIMEOUT, Gate, gated, threads, until
from wherry.core.models.model import Device
from wherry.core.models.settings import Isolation
from wherry.core.runtime.lifecycle import Lifecycle
from wherry.core.runtime.loaded_model import LoadedModel
from wherry.core.runtime.loop_port import LoopPort
from wherry.core.runtime.registry import Registry
from wherry.core.runtime.runtime import Runtime
from wherry.core.values.datatypes import BF16, FP16, FP32, INT64
from wherry.core.values.errors import (
    BadModelOutput,
    Cancelled,
    ConfigError,
    DeadlineExceeded,
    InvalidRequest,
    LoadFailed,
    ModelFailed,
    ModelNotFound,
    ModelNotReady,
    QueueFull,
    Unsupported,
    WherryError,
)
from wherry.core.values.reply import Reply
from wherry.core.values.request import Columns


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One instance is one instance, also on a machine with GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def gate() -> Gate:
    return Gate()


@wherry.model(max_batch_size=8)
def shout(text: list[str]) -> list[str]:
    return [t.upper() for t in text]


@wherry.model(max_batch_size=8)
def add(a: list[int], b: list[int]) -> list[int]:
    return [x + y for x, y in zip(a, b, strict=True)]


@wherry.model(max_batch_size=8)
def count(n: list[int]) -> Iterator[list[int]]:
    for i in range(max(n)):
        yield [i for _ in n]


@wherry.model
async def later(text: list[str]) -> list[str]:
    await asyncio.sleep(0)
    return [t[::-1] for t in text]


@wherry.model(max_batch_size=4)
def picky(n: list[int]) -> list[int]:
    for value in n:
        if value < 0:
            raise ValueError(f"{value} is negative")
    return [value * 2 for value in n]


# Calls


def test_infer_takes_inputs_by_position_or_name() -> None:
    with Runtime(shout, add) as rt:
        assert rt.infer("shout", "a") == "A"
        assert rt.infer("shout", text="a") == "A"
        assert rt.infer("add", 1, b=2) == 3
        assert shout.infer("b") == "B"
        assert add.infer(3, 4) == 7


def test_a_call_through_the_queue_means_what_an_inline_call_means() -> None:
    with Runtime(picky) as rt:
        for how in ({}, {"timeout": TIMEOUT}, {"priority": 1}):
            assert rt.infer("picky", 3, **how) == 6
            with pytest.raises(ModelFailed, match="-1 is negative"):
                rt.infer("picky", -1, **how)
            with pytest.raises(InvalidRequest, match="input 'n' must be INT64 data"):
                rt.infer("picky", "x", **how)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda rt: rt.infer("none", 1), ModelNotFound, "'none' is not found"),
        (lambda rt: rt.infer("add", 1), InvalidRequest, "input 'b' is missing"),
        (lambda rt: rt.infer("add", 1, 2, 3), InvalidRequest, "has 2 inputs, not 3"),
        (lambda rt: rt.infer("add", 1, b=2, c=3), InvalidRequest, "no input 'c'"),
        (lambda rt: rt.infer("count", 3), Unsupported, "use stream"),
        (lambda rt: next(rt.stream("shout", "a")), Unsupported, "use infer"),
        (lambda rt: rt.infer("shout", "a", priority=99), InvalidRequest, "priority 99"),
        (lambda rt: rt.infer("shout", "a", priority=-1), InvalidRequest, "priority -1"),
        (lambda rt: rt.infer("shout", "a", timeout=-1.0), InvalidRequest, "timeout"),
        (lambda rt: rt.infer("shout", "a", timeout=float("nan")), InvalidRequest, "timeout"),
        (lambda rt: rt.infer("shout", "a", timeout="1"), InvalidRequest, "timeout '1'"),
        (lambda rt: rt.infer("shout", "a", priority="1"), InvalidRequest, "priority '1'"),
        (lambda rt: rt.infer_batch("shout", text=[]), InvalidRequest, "at least one row"),
        (lambda rt: rt.infer_batch("shout", text="abc"), InvalidRequest, "must be a column"),
        (lambda rt: rt.infer_batch("shout", text=5), InvalidRequest, "must be a column"),
        (lambda rt: rt.infer_batch("shout", text=["a"], c=["b"]), InvalidRequest, "no input 'c'"),
        (lambda rt: rt.infer_batch("add", a=[1], b=[1, 2]), InvalidRequest, "others have 1"),
        (lambda rt: rt.infer_batch("add", a=[1]), InvalidRequest, "input 'b' is missing"),
        (lambda rt: rt.infer_batch("shout", text=["a", 5]), InvalidRequest, "must be a str"),
    ],
)
def test_a_wrong_call_is_told_what_is_wrong(
    call: Callable[[Runtime], Any], error: type[WherryError], match: str
) -> None:
    with Runtime(shout, add, count) as rt, pytest.raises(error, match=match):
        call(rt)


@pytest.mark.parametrize("timeout", [1e9, 1e10, 1e300, float("inf")])
def test_a_timeout_in_the_far_future_leaves_other_deadlines_alone(
    gate: Gate, timeout: float
) -> None:
    with Runtime(shout, gated(gate)) as rt:
        assert rt.infer("shout", "a", timeout=timeout) == "A"
        with pytest.raises(DeadlineExceeded):
            rt.infer("gated", "held", timeout=0.01)
        gate.open()


def test_a_timeout_ends_a_call_whose_model_does_not_answer(gate: Gate) -> None:
    with Runtime(gated(gate, request_timeout=0.01)) as rt:
        with pytest.raises(DeadlineExceeded, match="not finished within"):
            rt.infer("gated", "a")
        gate.open(2)
        assert rt.infer("gated", "b", timeout=TIMEOUT) == "B"


def test_many_rows_of_one_caller_are_split_and_joined_in_order() -> None:
    with Runtime(picky) as rt:
        assert list(rt.infer_batch("picky", n=range(10))["output"]) == [2 * n for n in range(10)]
        sizes = rt.model("picky").statistics.batch_sizes
        assert sum(size * b.count for size, b in sizes.items()) == 10
        assert max(sizes) == 4


def test_the_first_part_that_fails_is_the_outcome_and_the_rest_is_spared(gate: Gate) -> None:
    with Runtime(gated(gate, max_batch_size=2)) as rt:

        def call(_: int) -> None:
            with pytest.raises(ModelFailed, match="a bad row"):
                rt.infer_batch("gated", text=["bad", "x", "c", "d", "e", "f"])

        with threads(1, call):
            gate.started()
            gate.open(1)
        gate.open(10)
        assert rt.drain(TIMEOUT)
    assert len(gate.batches) <= 2  # the second may have left before the first had failed


def test_outputs_of_parts_that_cannot_be_joined_are_an_error() -> None:
    @wherry.model(max_batch_size=2)
    def padded(n: list[int]) -> Annotated[np.ndarray, FP32[-1]]:
        return np.zeros((len(n), max(n)), np.float32)

    with Runtime(padded) as rt:
        with pytest.raises(BadModelOutput, match="differ in shape"):
            rt.infer_batch("padded", n=[1, 2, 3, 4])
        assert rt.infer("padded", 3).shape == (3,)


def test_map_gives_results_in_order_with_many_in_flight() -> None:
    with Runtime(picky, add) as rt:
        assert list(rt.map("picky", range(100))) == [2 * n for n in range(100)]
        assert list(rt.map("add", ({"a": n, "b": 1} for n in range(5)))) == [1, 2, 3, 4, 5]
        assert list(picky.map([])) == []


@pytest.mark.parametrize("size", [1, 2, 7])
def test_map_never_fills_a_small_queue_by_itself(size: int) -> None:
    @wherry.model(max_queue_size=size)
    def slow(n: list[int]) -> list[int]:
        return n

    with Runtime(slow) as rt:
        assert list(rt.map("slow", range(50))) == list(range(50))


def test_map_takes_rows_only_as_results_are_asked_for_and_cancels_what_is_left(gate: Gate) -> None:
    taken: list[int] = []

    def rows() -> Iterator[str]:
        for n in range(1000):
            taken.append(n)
            yield str(n)

    with Runtime(gated(gate, max_batch_size=1)) as rt:
        results = rt.map("gated", rows())
        gate.open(1)
        assert next(results) == "0"
        assert len(taken) == 16
        results.close()  # type: ignore[attr-defined] # it is a generator
        gate.open(1)
        assert rt.drain(TIMEOUT)
        assert rt.model("gated").statistics.failures["CANCELED"] == 15


def test_map_raises_an_error_in_its_place() -> None:
    with Runtime(picky) as rt:
        results = rt.map("picky", [1, 2, -3, 4])
        assert [next(results), next(results)] == [2, 4]
        with pytest.raises(ModelFailed, match="-3 is negative"):
            next(results)


def test_a_stream_gives_its_responses_as_they_come(gate: Gate) -> None:
    @wherry.model
    def held(text: list[str]) -> Iterator[list[str]]:
        for n in range(3):
            gate.hold([n])
            yield [f"{t}{n}" for t in text]

    with Runtime(held) as rt:
        stream = rt.stream("held", "a")
        for n in range(3):
            gate.open()
            assert next(stream) == f"a{n}"
        assert list(stream) == []


def test_closing_a_stream_stops_the_model(gate: Gate) -> None:
    closed = threading.Event()

    @wherry.model
    def endless(text: list[str]) -> Iterator[list[str]]:
        try:
            while True:
                yield text
        finally:
            closed.set()

    with Runtime(endless) as rt:
        stream = rt.stream("endless", "a")
        assert next(stream) == "a"
        stream.close()  # type: ignore[attr-defined] # it is a generator
        assert closed.wait(TIMEOUT)
        assert rt.model("endless").statistics.failures == {"CANCELED": 1}


def test_a_lone_slow_reader_holds_its_stream_back_and_loses_nothing() -> None:
    @wherry.model(max_unread_responses=1)
    def many(n: list[int]) -> Iterator[list[int]]:
        for i in range(n[0]):
            yield [i]

    with Runtime(many) as rt:
        assert list(rt.stream("many", 200)) == list(range(200))


def test_a_stream_with_several_outputs_may_have_some_of_them() -> None:
    class Both(NamedTuple):
        a: list[str]
        b: list[int]

    def sometimes(text: list[str]) -> Any:
        yield Both(text, [None])  # type: ignore[list-item] # no b this time
        yield Both(text, [2])

    sometimes.__annotations__["return"] = Iterator[Both]
    with Runtime(wherry.model(sometimes)) as rt:
        assert list(rt.stream("sometimes", "x")) == [{"a": "x", "b": None}, {"a": "x", "b": 2}]


# asyncio


def test_ainfer_and_astream_work_from_several_event_loops_at_once() -> None:
    with Runtime(shout, later, count) as rt:

        async def main(number: int) -> None:
            rows = [f"{number}-{n}" for n in range(40)]
            assert await asyncio.gather(*(rt.ainfer("shout", r) for r in rows)) == [
                r.upper() for r in rows
            ]
            assert await later.ainfer("abc") == "cba"
            assert [n async for n in rt.astream("count", 3)] == [0, 1, 2]

        with threads(4, lambda number: asyncio.run(main(number))):
            pass


@pytest.mark.usefixtures("_threads_switch_often")
def test_every_event_loop_keeps_its_own_way_into_the_runtime() -> None:
    together = threading.Barrier(4)
    runtimes = [Runtime() for _ in range(30)]

    async def ports() -> list[LoopPort]:
        found = []
        for runtime in runtimes:
            together.wait(TIMEOUT)
            found.append(runtime.port())
        return found

    def work(number: int) -> None:
        with asyncio.Runner() as runner:
            first = runner.run(ports())
            assert runner.run(ports()) == first

    with threads(4, work):
        pass


def test_requests_of_one_turn_of_the_loop_share_a_batch(gate: Gate) -> None:
    gate.open(10)
    with Runtime(gated(gate)) as rt:

        async def main() -> None:
            answers = await asyncio.gather(*(rt.ainfer("gated", t) for t in "abc"))
            assert answers == ["A", "B", "C"]

        asyncio.run(main())
    assert gate.batches == [["a", "b", "c"]]


def test_a_bug_that_loses_requests_of_a_turn_ends_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> None:
        raise KeyError("our own mistake")

    with Runtime(shout, add) as rt:
        monkeypatch.setattr(rt.model("shout").runner, "submit", broken)

        async def main() -> None:
            calls = rt.ainfer("shout", "a"), rt.ainfer("add", 1, 2)
            answers: list[object] = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(answers[0], WherryError)
            assert answers[1] == 3

        asyncio.run(main())
    assert "our own mistake" in caplog.text


def test_errors_reach_an_awaiting_caller() -> None:
    with Runtime(picky, count) as rt:

        async def main() -> None:
            results = await asyncio.gather(
                *(rt.ainfer("picky", n) for n in (1, -1, 2)), return_exceptions=True
            )
            assert isinstance(results[1], ModelFailed)
            assert (results[0], results[2]) == (2, 4)
            with pytest.raises(ModelNotFound):
                await rt.ainfer("none", 1)
            with pytest.raises(Unsupported):
                await rt.ainfer("count", 1)
            with pytest.raises(InvalidRequest):
                await rt.ainfer("picky", "x")

        asyncio.run(main())


def test_cancelling_a_task_cancels_its_request_and_not_its_neighbours(gate: Gate) -> None:
    with Runtime(gated(gate)) as rt:

        async def main() -> None:
            tasks = [asyncio.ensure_future(rt.ainfer("gated", t)) for t in "abc"]
            await asyncio.get_running_loop().run_in_executor(None, gate.started)
            tasks[1].cancel()
            await asyncio.wait([tasks[1]])
            gate.open()
            assert [await tasks[0], await tasks[2]] == ["A", "C"]
            assert tasks[1].cancelled()

        asyncio.run(main())
        statistics = rt.model("gated").statistics
        assert (statistics.success.count, statistics.failures) == (2, {"CANCELED": 1})


def test_a_task_that_is_cancelled_before_its_first_step_sends_nothing(gate: Gate) -> None:
    with Runtime(gated(gate)) as rt:

        async def main() -> None:
            task = asyncio.ensure_future(rt.ainfer("gated", "a"))
            task.cancel()
            await asyncio.wait([task])

        asyncio.run(main())
        assert rt.drain(TIMEOUT)
    assert gate.batches == []


def test_a_request_that_is_cancelled_in_the_turn_it_was_made_never_runs(gate: Gate) -> None:
    """A frontend may lose its client before the end of the turn; the wait counts from the start."""
    with Runtime(gated(gate)) as rt:
        loaded = rt.model("gated")

        async def main() -> None:
            for rows in (["a"], ["b"] * 20):  # one of them would be split
                request = loaded.request({"text": rows}, len(rows), Reply(lambda _: None))
                rt.port().submit(loaded, request)
                assert loaded.cancel(request)
            await asyncio.sleep(0)

        asyncio.run(main())
        assert rt.drain(TIMEOUT)
        assert loaded.statistics.failures == {"CANCELED": 2}
        assert loaded.statistics.fail.ns < 60e9
    assert gate.batches == []


def test_closing_an_asynchronous_stream_stops_the_model() -> None:
    closed = threading.Event()

    @wherry.model
    async def endless(text: list[str]) -> AsyncIterator[list[str]]:
        try:
            while True:
                await asyncio.sleep(0)
                yield text
        finally:
            closed.set()

    with Runtime(endless) as rt:

        async def main() -> None:
            stream = rt.astream("endless", "a")
            async for text in stream:
                assert text == "a"
                break
            await stream.aclose()  # type: ignore[attr-defined] # it is a generator

        asyncio.run(main())
        assert closed.wait(TIMEOUT)


def test_an_event_loop_that_has_ended_is_forgotten() -> None:
    with Runtime(shout) as rt:
        loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

        async def main() -> None:
            loops.append(weakref.ref(asyncio.get_running_loop()))
            await rt.ainfer("shout", "a")

        for _ in range(5):
            asyncio.run(main())
        gc.collect()
        assert sum(loop() is not None for loop in loops) <= 1


def test_an_answer_for_a_loop_that_has_ended_harms_nobody(gate: Gate) -> None:
    with Runtime(gated(gate)) as rt:

        async def leave() -> None:
            task = asyncio.ensure_future(rt.ainfer("gated", "a"))
            await asyncio.get_running_loop().run_in_executor(None, gate.started)
            task.add_done_callback(lambda _: None)

        asyncio.run(leave())
        gate.open(2)
        assert rt.infer("gated", "b") == "B"


def test_a_callback_that_raises_does_not_keep_an_outcome_from_the_others() -> None:
    told: list[int] = []
    errors: list[dict[str, Any]] = []

    def callback(n: int) -> None:
        if n == 0:
            raise RuntimeError("a bug of ours")
        told.append(n)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: errors.append(context))
        port = LoopPort(loop)
        for n in range(3):
            port.call(callback, n)
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert told == [1, 2]
    assert len(errors) == 1


@pytest.mark.usefixtures("_threads_switch_often")
def test_no_outcome_is_lost_when_many_threads_wake_one_loop() -> None:
    told: list[int] = []
    each, callers = 500, 8

    async def main() -> None:
        loop = asyncio.get_running_loop()
        port = LoopPort(loop)
        done = loop.create_future()

        def callback(n: int) -> None:
            told.append(n)
            if len(told) == each * callers:
                done.set_result(None)

        def call(number: int) -> None:
            for _ in range(each):
                port.call(callback, number)

        def all_of_them() -> None:
            with threads(callers, call):
                pass

        await loop.run_in_executor(None, all_of_them)
        await asyncio.wait_for(done, TIMEOUT)

    asyncio.run(main())
    assert sorted(told) == sorted(list(range(callers)) * each)


# What comes in and goes out


@dataclasses.dataclass
class Person:
    name: str
    age: int = 7


def test_rows_may_be_dicts_and_dataclasses() -> None:
    @wherry.model(max_batch_size=4)
    def birthday(person: list[Person]) -> list[dict[str, Any]]:
        return [{"name": p.name, "age": p.age + 1} for p in person]

    with Runtime(birthday) as rt:
        assert rt.infer("birthday", {"name": "Ada"}) == {"name": "Ada", "age": 8}
        assert list(rt.map("birthday", [{"person": {"name": "B"}}, {"name": "C", "age": 1}])) == [
            {"name": "B", "age": 8},
            {"name": "C", "age": 2},
        ]
        with pytest.raises(InvalidRequest, match="input 'person'"):
            rt.infer("birthday", {"name": 5})


@dataclasses.dataclass(frozen=True, slots=True)
class Scored:
    label: str
    score: float


class Labelled(NamedTuple):
    label: str
    score: float


def scored(text: str) -> Scored:
    return Scored(text, 0.5)


def labelled(text: str) -> Labelled:
    return Labelled(text, 0.5)


def paired(text: str) -> tuple[str, float]:
    return text, 0.5


def all_scored(text: str) -> list[Scored]:
    return [Scored(text, 0.5)]


@pytest.mark.parametrize("function", [scored, labelled, paired, all_scored])
def test_a_caller_has_the_object_that_the_code_returns_for_its_row(function: Any) -> None:
    name, direct = function.__name__, function("a")
    with Runtime(wherry.model(function)) as rt:
        answers = [
            rt.infer(name, "a"),
            *rt.map(name, ["a"]),
            asyncio.run(rt.ainfer(name, "a")),
        ]

    assert answers == [direct] * 3
    assert {type(answer) for answer in answers} == {type(direct)}


def test_each_item_of_a_stream_is_the_object_that_the_code_yields() -> None:
    def scores(text: str) -> Iterator[Scored]:
        yield Scored(text, 0.5)

    with Runtime(wherry.model(scores)) as rt:
        assert list(rt.stream("scores", "a")) == [Scored("a", 0.5)]


@pytest.mark.parametrize("datatype", [FP16, BF16], ids=str)
def test_half_precision_rows_round_trip(datatype: Any) -> None:
    def half(x: Any) -> Any:
        assert x.dtype == datatype.dtype
        return x * 2

    half.__annotations__ = dict.fromkeys(("x", "return"), Annotated[np.ndarray, datatype[2]])
    with Runtime(wherry.model(max_batch_size=4)(half)) as rt:
        assert rt.infer("half", [0.5, 1.5]).tolist() == [1.0, 3.0]
        assert rt.infer("half", np.array([0.5, 1.5])).dtype == datatype.dtype


def test_requests_that_lack_an_optional_input_never_share_a_batch_with_those_that_have_it(
    gate: Gate,
) -> None:
    seen: list[tuple[list[str], list[int] | None]] = []

    @wherry.model(max_batch_size=8, run_in_caller=False)
    def optional(a: list[str], b: list[int] | None = None) -> list[str]:
        gate.hold(a)
        seen.append((a, b))
        return a

    with Runtime(optional) as rt:

        async def main() -> None:
            given: list[dict[str, Any]] = [{"b": n} if n % 2 else {} for n in range(6)]
            calls = [rt.ainfer("optional", str(n), **given[n]) for n in range(6)]
            gate.open(3)
            assert await asyncio.gather(*calls) == list("012345")

        asyncio.run(main())
    assert seen == [(["0", "2", "4"], None), (["1", "3", "5"], [1, 3, 5])]


def test_the_order_in_which_inputs_are_named_makes_no_difference_to_batching() -> None:
    @wherry.model(max_batch_size=8)
    def optional(a: list[str], b: list[int] | None = None) -> list[str]:
        return a

    with Runtime(optional) as rt:
        loaded = rt.model("optional")
        inputs: list[Columns] = [{"a": ["x"], "b": [1]}, {"b": [1], "a": ["x"]}, {"a": ["x"]}]
        both, turned, one = (
            loaded.request(columns, 1, Reply(lambda _: None)).shape_key for columns in inputs
        )
        assert both == turned != one


def test_rows_of_different_shapes_never_share_a_batch_unless_the_model_takes_lists() -> None:
    sizes: list[int] = []

    @wherry.model(max_batch_size=8, run_in_caller=False)
    def one_array(x: Annotated[np.ndarray, INT64[-1]]) -> list[int]:
        sizes.append(len(x))
        return [int(n) for n in x.sum(axis=1)]

    @wherry.model(max_batch_size=8, run_in_caller=False)
    def a_list(x: Annotated[list[np.ndarray], INT64[-1]]) -> list[int]:
        sizes.append(len(x))
        return [int(row.sum()) for row in x]

    with Runtime(one_array, a_list) as rt:

        async def ask(model: str) -> None:
            calls = (rt.ainfer(model, [1] * (1 + n % 2)) for n in range(4))
            assert await asyncio.gather(*calls) == [1, 2, 1, 2]

        asyncio.run(ask("one_array"))
        assert sizes == [2, 2]
        asyncio.run(ask("a_list"))
        assert sizes == [2, 2, 4]
        with pytest.raises(InvalidRequest, match="'x' differ in shape"):
            rt.infer_batch("one_array", x=[[1], [1, 2]])
        assert list(rt.infer_batch("a_list", x=[[1], [1, 2]])["output"]) == [1, 3]


# Life


class Loaded(wherry.Model):
    """A model that knows whether it is loaded."""

    max_batch_size = 4

    def __init__(self, answer: str = "yes") -> None:
        self.answer = answer
        self.loaded = False

    def load(self, device: Device) -> None:
        assert not self.loaded, "loaded twice"
        self.loaded = True

    def execute(self, text: list[str]) -> list[str]:
        assert self.loaded, "used after unload"
        return [self.answer] * len(text)

    def unload(self) -> None:
        assert self.loaded, "unloaded twice"
        self.loaded = False


def test_a_model_is_loaded_used_and_unloaded() -> None:
    model = Loaded()
    with Runtime(model) as rt:
        assert model.loaded
        assert rt.infer("loaded", "?") == "yes"
    assert not model.loaded
    with pytest.raises(ModelNotReady, match="is not loaded"):
        model.infer("?")


def test_a_class_may_be_given_instead_of_an_object() -> None:
    with Runtime(Loaded) as rt:  # type: ignore[arg-type] # allowed at run time
        assert rt.infer("loaded", "?") == "yes"


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"is not a model: decorate a function with @wherry\.m"):
        Runtime(lambda x: x).start()  # type: ignore[arg-type] # the mistake


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two models are called 'loaded'"):
        Runtime(Loaded(), Loaded()).start()


def test_a_model_that_cannot_be_loaded_takes_the_others_down_with_it() -> None:
    class Broken(Loaded):
        def load(self, device: Device) -> None:
            raise OSError("no weights")

    good = Loaded()
    with pytest.raises(LoadFailed, match="'broken' could not be loaded: OSError: no weights"):
        Runtime(good, Broken()).start()
    assert not good.loaded


def test_a_second_instance_whose_constructor_fails_is_a_failed_load() -> None:
    made: list[int] = []

    class Once(Loaded):
        instances = 2

        def __init__(self) -> None:
            super().__init__()
            made.append(1)
            if len(made) > 1:
                raise TypeError("only one of me")

    with pytest.raises(LoadFailed, match="only one of me"):
        Runtime(Once()).start()


def test_overrides_are_settings_by_model_name() -> None:
    with Runtime(shout, overrides={"shout": {"max_batch_size": 2}}) as rt:
        assert rt.model("shout").config.max_batch_size == 2


def test_models_come_and_go_while_others_serve() -> None:
    with Runtime(shout) as rt:
        rt.load(add)
        assert rt.infer("add", 1, 2) == 3
        rt.unload("add")
        with pytest.raises(ModelNotFound):
            rt.infer("add", 1, 2)
        with pytest.raises(ModelNotFound):
            rt.unload("add")
        assert rt.infer("shout", "a") == "A"
        rt.load(add, name="plus")
        assert rt.infer("plus", 1, 2) == 3


def test_without_a_version_the_highest_one_answers() -> None:
    with Runtime() as rt:
        for version in ("2", "10", "9"):
            rt.load(Loaded(f"v{version}"), version=version)
        assert rt.infer("loaded", "?") == "v10"
        assert rt.model("loaded", "9").version == "9"
        rt.unload("loaded", "10")
        assert rt.infer("loaded", "?") == "v9"
        with pytest.raises(ModelNotFound, match="'loaded' version 10"):
            rt.model("loaded", "10")
        rt.unload("loaded")
        with pytest.raises(ModelNotFound):
            rt.model("loaded")


def test_the_same_object_can_be_loaded_again_in_place_of_itself() -> None:
    model = Loaded()
    with Runtime(model) as rt:
        for _ in range(3):
            rt.load(model)
            assert rt.infer("loaded", "?") == "yes"
            assert model.infer("?") == "yes"
    assert not model.loaded


def test_one_model_in_two_runtimes_is_two_copies() -> None:
    model = Loaded()
    with Runtime(model) as first:
        with Runtime(model) as second:
            assert second.infer("loaded", "?") == "yes"
        assert first.infer("loaded", "?") == "yes"
    with Runtime(model) as third:
        assert third.infer("loaded", "?") == "yes"


def test_several_instances_are_several_copies() -> None:
    class Seen(Loaded):
        instances = 3
        objects: list[int] = []  # noqa: RUF012 - shared on purpose

        def load(self, device: Device) -> None:
            super().load(device)
            self.objects.append(id(self))

    with Runtime(Seen()):
        assert len(set(Seen.objects)) == 3


@pytest.mark.usefixtures("_threads_switch_often")
def test_a_reload_leaves_no_gap() -> None:
    stop = threading.Event()
    answers: list[set[str]] = [set() for _ in range(4)]
    with Runtime(Loaded("0")) as rt:

        def ask(number: int) -> None:
            while not stop.is_set():
                answers[number].add(rt.infer("loaded", "?", priority=number % 2))

        async def aask(number: int) -> None:
            while not stop.is_set():
                answers[number].update(
                    await asyncio.gather(*(rt.ainfer("loaded", "?") for _ in range(4)))
                )

        def work(number: int) -> None:
            if number < 2:
                ask(number)
            else:
                asyncio.run(aask(number))

        with threads(4, work):
            for n in range(1, 15):
                rt.load(Loaded(str(n)))
            stop.set()
        assert rt.infer("loaded", "?") == "14"


class Threshold(wherry.Model):
    name = "threshold"
    scale = 1
    instances = 2

    def __init__(self) -> None:
        self.least = 1
        self.words: list[str] = []
        self.both = threading.Barrier(2)

    def execute(self, x: int) -> str:
        self.both.wait(TIMEOUT)
        return f"{self.least} {self.scale} {self.words}"


class AloneThreshold(Threshold):
    name = "alone_threshold"
    instances = 1

    def execute(self, x: int) -> str:
        return f"{self.least} {self.scale} {self.words}"


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_each_instance_has_what_the_program_has_set_on_its_model(
    monkeypatch: pytest.MonkeyPatch, isolation: Isolation
) -> None:
    monkeypatch.setattr(AloneThreshold, "scale", 9)
    model = AloneThreshold()
    model.least = 100
    model.words.append("a")
    with Runtime(model, isolation=isolation) as rt:
        assert rt.infer("alone_threshold", 0) == "100 9 ['a']"


def test_the_second_instance_in_a_thread_is_as_the_first() -> None:
    model = Threshold()
    model.least = 100
    model.words.append("a")
    model.both = threading.Barrier(2)  # that of both instances: each call waits for the other
    with Runtime(model) as rt:
        assert list(rt.map("threshold", [0, 0])) == ["100 1 ['a']"] * 2


class Numbered(wherry.Model):
    """Says its version, over and over."""

    name = "numbered"

    def __init__(self, said: str) -> None:
        self.said = said

    def execute(self, text: str) -> Iterator[str]:
        yield from (f"{text}{self.said}", "end")


async def gathered(responses: AsyncIterator[Any]) -> list[Any]:
    return [response async for response in responses]


@pytest.mark.parametrize("version", ["1", 1, np.int64(1)])
def test_every_call_takes_a_version_and_without_one_the_highest(version: Any) -> None:
    with Runtime(Loaded("1")) as rt:
        rt.load(Loaded("2"), version="2")
        for given, said in (({"version": version}, "1"), ({}, "2")):
            assert rt.infer("loaded", "?", **given) == said
            assert rt.infer("loaded", text="?", timeout=TIMEOUT, **given) == said
            assert rt.infer_batch("loaded", text=["?", "!"], **given)["output"] == [said] * 2
            assert list(rt.map("loaded", ["?", {"text": "!"}], **given)) == [said] * 2
            assert asyncio.run(rt.ainfer("loaded", "?", **given)) == said
        with pytest.raises(ModelNotFound, match="version 3"):
            rt.infer("loaded", "?", version=3)
    with Runtime(Numbered("1")) as rt:
        rt.load(Numbered("10"), version="10")
        for given, said in (({"version": version}, "1"), ({}, "10")):
            assert list(rt.stream("numbered", "v", **given)) == [f"v{said}", "end"]
            assert asyncio.run(gathered(rt.astream("numbered", "v", **given))) == [
                f"v{said}",
                "end",
            ]


def test_a_model_object_calls_the_version_that_is_asked_for() -> None:
    model = Loaded("1")
    with Runtime(model) as rt:
        rt.load(Loaded("2"), version="2")
        assert [model.infer("?", version=1), model.infer("?")] == ["1", "2"]
        assert list(model.map(["?"], version="1")) == ["1"]


@pytest.mark.parametrize("version", [True, 1.0, [1], np.zeros(2), b"1"])
def test_what_is_no_version_says_where_an_input_of_that_name_goes(version: Any) -> None:
    with Runtime(shout) as rt, pytest.raises(InvalidRequest, match="by position"):
        rt.infer("shout", "a", version=version)


def test_a_model_that_gets_ready_while_it_is_looked_up_is_not_unknown() -> None:
    may_load = threading.Event()

    class Slow(Loaded):
        def load(self, device: Device) -> None:
            assert may_load.wait(TIMEOUT)
            super().load(device)

    class Late(Lifecycle[LoadedModel]):
        """After the look without the lock the load comes to its end."""

        def get(self, name: str, version: str | None = None) -> LoadedModel | None:
            found = super().get(name, version)
            may_load.set()
            loading.join()
            return found

    with Runtime() as rt:
        rt.registry = Registry(rt, time.monotonic, Late())
        loading = threading.Thread(target=rt.load, args=[Slow()])
        loading.start()
        until(lambda: rt.names() == {"slow"})
        assert rt.model("slow").name == "slow"


@pytest.mark.usefixtures("_threads_switch_often")
def test_loops_that_begin_at_once_have_a_way_each_and_keep_it() -> None:
    with Runtime() as rt:
        together = threading.Barrier(6)

        async def main() -> None:
            together.wait(TIMEOUT)
            port = rt.port()
            together.wait(TIMEOUT)
            assert rt.port() is port
            together.wait(TIMEOUT)

        def loops(_: int) -> None:
            for _ in range(30):
                asyncio.run(main())

        with threads(6, loops):
            pass


@pytest.mark.usefixtures("_threads_switch_often")
def test_versions_may_come_and_go_under_load() -> None:
    stop = threading.Event()
    with Runtime(Loaded("1")) as rt:

        def ask(_: int) -> None:
            while not stop.is_set():
                with contextlib.suppress(ModelNotReady):  # 2 was chosen, and then unloaded
                    assert rt.infer("loaded", "?") in ("1", "2")

        with threads(4, ask):
            for _ in range(20):
                rt.load(Loaded("2"), version="2")
                rt.unload("loaded", "2")
            stop.set()


def test_unload_waits_for_what_runs_and_then_fails_it(gate: Gate) -> None:
    with Runtime(gated(gate, max_batch_size=1)) as rt:
        errors: list[Exception] = []

        def ask(_: int) -> None:
            try:
                assert rt.infer("gated", "a") == "A"
            except (ModelNotReady, ModelNotFound) as error:  # too late, or a little later
                errors.append(error)

        with threads(2, ask):
            gate.started()
            with threads(1, lambda _: rt.unload("gated", drain_timeout=0.0)):
                gate.open(2)
        assert len(errors) <= 1


def test_nothing_is_left_after_a_runtime_that_was_used_in_every_way(gate: Gate) -> None:
    """The autouse fixture looks for threads and descriptors."""

    @wherry.pipeline
    async def twice(text: str) -> str:
        return str(await shout.ainfer(await shout.ainfer(text)))

    gate.open(100)
    with Runtime(shout, later, count, twice, gated(gate)) as rt:
        rt.infer("shout", "a", timeout=TIMEOUT)
        asyncio.run(rt.ainfer("later", "a"))
        list(rt.stream("count", 2))
        assert rt.infer("twice", "a") == "A"
        rt.infer("gated", "a")


def test_a_closed_runtime_says_so() -> None:
    rt = Runtime(shout).start()
    rt.close()
    rt.close()
    with pytest.raises(ModelNotFound):
        rt.infer("shout", "a")
    with pytest.raises(ModelNotReady, match="the runtime is closed"):
        rt.load(shout)


def is_closed(runtime: Runtime) -> bool:
    with runtime.registry.locked() as life:
        return life.closed


def test_close_while_a_model_loads_ends_both() -> None:
    loading, may_load = threading.Event(), threading.Event()

    class Slow(Loaded):
        def load(self, device: Device) -> None:
            loading.set()
            assert may_load.wait(TIMEOUT)
            super().load(device)

    rt = Runtime()
    model = Slow()

    def load(_: int) -> None:
        with pytest.raises(ModelNotReady):
            rt.load(model)

    with threads(1, load):
        assert loading.wait(TIMEOUT)
        with threads(1, lambda _: rt.close()):
            until(lambda: is_closed(rt))
            may_load.set()
    assert not model.loaded


def test_an_interrupted_call_is_cancelled_and_the_model_serves_on() -> None:
    """Ctrl-C while the call waits for its answer, or while the model runs in the caller."""

    @wherry.model
    def moody(text: list[str]) -> list[str]:
        if text == ["interrupt"]:
            raise KeyboardInterrupt
        return text

    with Runtime(moody) as rt:
        with pytest.raises(KeyboardInterrupt):
            rt.infer("moody", "interrupt")
        assert rt.infer("moody", "a") == "a"


def test_a_full_queue_refuses_in_process_callers_too(gate: Gate) -> None:
    with (
        Runtime(gated(gate, max_batch_size=1, max_queue_size=1)) as rt,
        threads(1, lambda _: rt.infer("gated", "a")),
    ):
        gate.started()

        async def main() -> None:
            waiting = asyncio.ensure_future(rt.ainfer("gated", "b"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            with pytest.raises(QueueFull):
                await rt.ainfer("gated", "c")
            gate.open(2)
            assert await waiting == "B"

        asyncio.run(main())


def test_a_cancelled_outcome_is_an_error_of_its_own(gate: Gate) -> None:
    with Runtime(gated(gate)) as rt:
        loaded = rt.model("gated")
        outcomes: list[object] = []
        request = loaded.request(
            {"text": ["x"] * 20}, 20, Reply(lambda reply: outcomes.append(reply.outcome))
        )
        loaded.submit([request])
        gate.started()
        assert loaded.cancel(request)
        assert not loaded.cancel(request)
        gate.open(10)
        assert rt.drain(TIMEOUT)
        assert len(outcomes) == 1
        assert isinstance(outcomes[0], Cancelled)
    assert len(gate.batches) == 1  # the parts that waited did not run


def test_an_array_without_dimensions_is_one_in_the_model_too() -> None:
    seen: list[Any] = []

    @wherry.model(max_batch_size=0)
    def same(x: Annotated[np.ndarray, FP32[()]]) -> Annotated[np.ndarray, FP32[()]]:
        seen.append(x)
        return x

    with Runtime(same) as runtime:
        assert runtime.infer("same", x=3) == 3.0
    assert isinstance(seen[0], np.ndarray)
    assert seen[0].shape == ()


AT_THE_END = """
import builtins
import wherry

@wherry.model
def shout(text: str) -> str:
    return text.upper()

@wherry.model
def count(n: int) -> Iterator[int]:
    yield from range(n)

class Last:
    def __init__(self):
        self.runtime = wherry.Runtime(shout, count).start()

    def __del__(self, print=print, RuntimeError=RuntimeError):
        for call in (lambda: self.runtime.infer("shout", "a", timeout=60),
                     lambda: next(self.runtime.map("shout", ["a"])),
                     lambda: next(self.runtime.stream("count", 1))):
            try:
                call()
            except RuntimeError as error:
                print(error)

builtins.last = Last()  # which goes last
"""


def test_a_call_at_the_end_of_the_interpreter_is_an_error_and_no_wait() -> None:
    code = "from collections.abc import Iterator" + AT_THE_END
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.count("the interpreter is exiting: model") == 3
