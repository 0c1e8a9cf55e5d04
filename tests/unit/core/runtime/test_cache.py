"""Was the same asked before, and what was the answer?"""

import random
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from tests.fakes import Call, Gate, gated, threads
from tests.properties import seeds
from wherry import ConfigError, ModelFailed, Runtime
from wherry.core.runtime.cache import ENTRY_BYTES, ResponseCache
from wherry.core.values.reply import Reply
from wherry.core.values.request import InferRequest, InferResponse

MIB = 2**20


def question(inputs: Any, **how: Any) -> InferRequest:
    return InferRequest(inputs, 1, Reply(lambda _: None), **how)


def answer(text: str = "x", size: int = 1) -> InferResponse:
    return InferResponse({"y": np.zeros(size, np.uint8), "text": [text]})


@dataclass
class Row:
    a: int


DIFFERENT: list[Any] = [
    {"x": ["a"]},
    {"x": [b"a"]},
    {"x": ["ab"]},
    {"x": ["a", "b"]},
    {"y": ["a"]},
    {"x": ["a"], "y": ["a"]},
    {"x": [1]},
    {"x": [1.0]},
    {"x": [True]},
    {"x": [None]},
    {"x": ["1"]},
    {"x": [{"k": 1}]},
    {"x": [{"k": "1"}]},
    {"x": [{"k": 1, "l": 2}]},
    {"x": [{"l": 2, "k": 1}]},
    {"x": [[1, 2]]},
    {"x": [[1], [2]]},
    {"x": [Row(1)]},
    {"x": [Row(2)]},
    {"x": np.zeros((1, 2), np.float32)},
    {"x": np.zeros((1, 2), np.int32)},
    {"x": np.zeros((2, 1), np.float32)},
    {"x": np.ones((1, 2), np.float32)},
    {"x": np.zeros((1, 0), np.float32)},
    {"x": [np.zeros(2, np.float32)]},
    {"x": [np.array(0.0, np.float32)]},
    {"x": [["a", "b"]]},
    {"x": [["ab"]]},
]


def test_different_questions_have_different_answers_and_equal_ones_the_same() -> None:
    cache = ResponseCache(MIB).of("m", "1")
    keys = [cache.look_up(question(inputs))[0] for inputs in DIFFERENT]
    assert None not in keys
    assert len(set(keys)) == len(DIFFERENT)
    backwards = np.arange(6, dtype=np.int64)[::-1]
    same: list[Any] = [{"x": backwards, "y": [1]}, {"y": [1], "x": backwards.copy()}]
    assert len({cache.look_up(question(inputs))[0] for inputs in same}) == 1


def test_parameters_wanted_outputs_and_models_tell_questions_apart() -> None:
    cache = ResponseCache(MIB)
    one, two = cache.of("m", "1"), cache.of("m", "1")
    ways: list[dict[str, Any]] = [
        {},
        {"parameters": {"t": 1}},
        {"parameters": {"t": True}},
        {"requested_outputs": ["y"]},
        {"requested_outputs": []},
    ]
    keys = [one.look_up(question({"x": ["a"]}, **how))[0] for how in ways]
    keys.append(two.look_up(question({"x": ["a"]}))[0])
    assert len(set(keys)) == 6
    ids = [one.look_up(question({"x": ["a"]}, id=id))[0] for id in ("", "7")]
    assert ids[0] == ids[1] == keys[0]


def test_what_nothing_tells_apart_is_never_remembered() -> None:
    key, known = ResponseCache(MIB).of("m", "1").look_up(question({"x": [object()]}))
    assert (key, known) == (None, None)


def test_answers_that_were_longest_not_asked_for_go_first() -> None:
    cache = ResponseCache(3 * (ENTRY_BYTES + 1200))
    for name in (b"a", b"b", b"c"):
        cache.insert(name, answer(size=1000))
    assert cache.look_up(b"a") is not None
    cache.insert(b"d", answer(size=1000))
    assert [cache.look_up(name) is not None for name in (b"a", b"b", b"c", b"d")] == [
        True,
        False,
        True,
        True,
    ]
    counted = cache.statistics()
    assert (counted.hits, counted.misses, counted.lookups) == (4, 1, 5)
    assert (counted.entries, counted.evictions) == (3, 1)


def test_an_answer_that_is_larger_than_the_cache_leaves_it_as_it_was() -> None:
    cache = ResponseCache(10_000)
    cache.insert(b"a", answer())
    cache.insert(b"b", answer(size=20_000))
    assert cache.look_up(b"b") is None
    assert cache.look_up(b"a") is not None


@pytest.mark.parametrize("seed", seeds(10))
def test_it_never_holds_more_than_it_may(seed: int) -> None:
    chance = random.Random(seed)
    cache = ResponseCache(20_000)
    for _ in range(500):
        cache.insert(bytes([chance.randrange(40)]), answer(size=chance.randrange(6000)))
        counted = cache.statistics()
        assert counted.used_bytes <= counted.max_bytes
        held = sum(size for size, _ in cache._answers.values())
        assert (counted.used_bytes, counted.entries) == (held, len(cache._answers))


def test_whoever_gets_an_answer_may_change_it() -> None:
    cache = ResponseCache(MIB)
    given = InferResponse({"y": np.zeros(3), "json": [{"k": [1]}]})
    cache.insert(b"a", given)
    for _ in range(2):
        given.outputs["y"][0] = 7.0
        given.outputs["json"][0]["k"].append(2)
        found = cache.look_up(b"a")
        assert found is not None
        assert found.outputs["y"][0] == 0.0
        assert found.outputs["json"] == [{"k": [1]}]
        given = found


# In a runtime


def test_the_second_caller_is_answered_without_the_model() -> None:
    gate = Gate()
    gate.open(1)
    model = gated(gate, response_cache=True)
    with Runtime(model, cache_bytes=MIB) as runtime:
        assert [runtime.infer("gated", "a") for _ in range(3)] == ["A"] * 3
        counted = runtime.model("gated").statistics
        assert (counted.cache_hit.count, counted.cache_miss.count) == (2, 1)
        assert counted.success.count == 3
        assert (counted.inference_count, counted.execution_count) == (1, 1)
        assert runtime.cache is not None
        assert runtime.cache.statistics().entries == 1
    assert gate.batches == [["a"]]


def test_a_batch_of_rows_that_is_split_is_remembered_as_a_whole() -> None:
    calls: list[int] = []

    @wherry.model(max_batch_size=2, response_cache=True)
    def double(x: list[int]) -> list[int]:
        calls.append(len(x))
        return [2 * v for v in x]

    with Runtime(double, cache_bytes=MIB) as runtime:
        for _ in range(2):
            answered = runtime.infer_batch("double", x=[1, 2, 3])
            assert list(answered["output"]) == [2, 4, 6]
    assert sum(calls) == 3


def test_errors_are_not_remembered() -> None:
    gate = Gate()
    gate.open(2)
    with Runtime(gated(gate, response_cache=True), cache_bytes=MIB) as runtime:
        for _ in range(2):
            with pytest.raises(ModelFailed):
                runtime.infer("gated", "bad")
    assert gate.batches == [["bad"], ["bad"]]


def test_without_a_cache_or_without_the_setting_the_model_runs_each_time() -> None:
    for size, wanted in ((0, True), (MIB, False)):
        gate = Gate()
        gate.open(2)
        with Runtime(gated(gate, response_cache=wanted), cache_bytes=size) as runtime:
            assert [runtime.infer("gated", "a") for _ in range(2)] == ["A", "A"]
        assert len(gate.batches) == 2


def test_a_model_that_is_loaded_again_answers_by_itself_and_what_was_there_is_gone() -> None:
    gate = Gate()
    gate.open(2)
    model = gated(gate, response_cache=True)
    with Runtime(model, cache_bytes=MIB) as runtime:
        runtime.infer("gated", "a")
        runtime.load(model)
        assert runtime.cache is not None
        assert runtime.cache.statistics().entries == 0
        runtime.infer("gated", "a")
    assert len(gate.batches) == 2


def test_a_caller_that_has_left_is_not_answered_from_the_cache_either() -> None:
    gate = Gate()
    gate.open(1)
    with Runtime(gated(gate, response_cache=True), cache_bytes=MIB) as runtime:
        runtime.infer("gated", "a")
        call = Call("a")
        call.request.reply.settle(ValueError("left"))
        runtime.model("gated").submit([call.request])
        assert len(call.outcomes) == 1


def test_many_threads_get_their_own_answers() -> None:
    @wherry.model(max_batch_size=8, response_cache=True)
    def square(
        x: Annotated[np.ndarray, wherry.INT64[1]],
    ) -> Annotated[np.ndarray, wherry.INT64[1]]:
        return np.array([[v * v for v in row] for row in x])

    with Runtime(square, cache_bytes=40 * 700) as runtime:

        def ask(number: int) -> None:
            chance = random.Random(number)
            for _ in range(200):
                n = chance.randrange(60)
                assert runtime.infer("square", [n])[0] == n * n

        with threads(6, ask):
            pass
        counted = runtime.model("square").statistics
        assert counted.cache_hit.count + counted.cache_miss.count == 1200
        assert counted.cache_hit.count


def test_streams_sequences_and_pipelines_cannot_have_it() -> None:
    from collections.abc import Iterator

    @wherry.model(response_cache=True)
    def counting(n: list[int]) -> Iterator[list[int]]:
        yield n

    @wherry.model(response_cache=True, sequence=wherry.SequenceBatching())
    def stepping(n: list[int]) -> list[int]:
        return n

    @wherry.pipeline(response_cache=True)
    async def chain(n: int) -> int:
        return n

    for model, why in ((counting, "streams"), (stepping, "sequences"), (chain, "pipeline")):
        with pytest.raises(ConfigError, match=why):
            Runtime(model).start()
