"""How does an async function that calls models run as a model of its own?"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import pytest

import wherry
from tests.fakes import TIMEOUT, Call, Gate, gated, no_new_threads, threads, until
from wherry.core.pipelines.pipeline import gather, in_order
from wherry.core.runtime.loaded_model import LoadedModel
from wherry.core.runtime.runtime import Runtime
from wherry.core.values.errors import (
    BadModelOutput,
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    ModelNotReady,
    Overloaded,
    QueueFull,
    WherryError,
)
from wherry.core.values.reply import Reply
from wherry.core.values.request import InferRequest, InferResponse
from wherry.testing import ManualClock


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One instance is one instance, also on a machine with GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def gate() -> Gate:
    return Gate()


@wherry.model(max_batch_size=32, max_queue_size=None)
def length(text: list[str]) -> list[int]:
    if "bad" in text:
        raise ValueError("a bad piece")
    return [len(t) for t in text]


@wherry.pipeline
async def total(text: str) -> int:
    """Split and join."""
    pieces = wherry.split_text(text, 10)
    return sum(await wherry.gather(length.ainfer(piece) for piece in pieces))


@wherry.pipeline
async def doubled(text: str) -> int:
    """A pipeline that calls a pipeline."""
    return 2 * int(await total.ainfer(text))


@wherry.pipeline
async def growing(text: str) -> AsyncIterator[int]:
    for n in range(1, len(text) + 1):
        yield int(await length.ainfer(text[:n]))


def pieces_of(gate: Gate, **settings: Any) -> wherry.Model:
    """A pipeline that cuts its text into letters, for the gated model."""

    @wherry.pipeline(**settings)
    async def letters(text: str) -> str:
        return "".join(await wherry.gather(wherry_gated.ainfer(t) for t in text))

    wherry_gated = gated(gate, max_batch_size=1)
    letters.gated = wherry_gated  # type: ignore[attr-defined] # for the test's runtime
    return letters


def test_a_text_is_split_and_its_parts_are_joined() -> None:
    with Runtime(length, total) as rt:
        text = "word " * 200
        assert rt.infer("total", text) == len(text)
        assert total.infer("short") == 5
        assert asyncio.run(rt.ainfer("total", text)) == len(text)
        assert list(rt.map("total", ["a", "bb", "ccc"])) == [1, 2, 3]
        assert list(rt.infer_batch("total", text=["a", "bb"])["output"]) == [1, 2]


@pytest.mark.slow
def test_the_models_of_a_pipeline_may_live_in_processes() -> None:
    with Runtime(length, total, overrides={"length": {"isolation": "process"}}) as rt:
        assert list(rt.map("total", ["x" * n for n in range(30)])) == list(range(30))
        with pytest.raises(ModelFailed, match="ValueError: a bad piece"):
            rt.infer("total", "bad")


def test_a_pipeline_that_is_loaded_has_its_thread() -> None:
    with Runtime(length) as rt:
        with no_new_threads(), pytest.raises(RuntimeError, match="new thread"):
            rt.load(total)
        rt.load(total)
        with no_new_threads():
            assert rt.infer("total", "a word") == 6


def test_the_pieces_of_all_callers_share_batches() -> None:
    with Runtime(length, total) as rt:

        async def main() -> None:
            await asyncio.gather(*(rt.ainfer("total", "word " * 20) for _ in range(20)))

        asyncio.run(main())
        statistics = rt.model("length").statistics
        assert statistics.inference_count == 200
        assert statistics.execution_count < 100


def test_a_pipeline_may_call_a_pipeline_and_be_called_from_threads() -> None:
    with Runtime(length, total, doubled) as rt:
        results: list[int] = []
        with threads(4, lambda n: results.append(rt.infer("doubled", "x" * n * 10))):
            pass
        assert sorted(results) == [0, 20, 40, 60]


def test_a_streaming_pipeline_sends_its_responses_and_is_closed() -> None:
    with Runtime(length, growing) as rt:
        assert list(rt.stream("growing", "abc")) == [1, 2, 3]
        assert rt.model("growing").statistics.responses == 3

        async def main() -> list[int]:
            return [n async for n in rt.astream("growing", "ab")]

        assert asyncio.run(main()) == [1, 2]


def test_closing_a_streaming_pipeline_runs_its_cleanup_at_once() -> None:
    closed = threading.Event()

    @wherry.pipeline
    async def endless(text: str) -> AsyncIterator[str]:
        try:
            while True:
                yield text
                await asyncio.sleep(0)
        finally:
            closed.set()

    with Runtime(endless) as rt:
        stream = rt.stream("endless", "a")
        assert next(stream) == "a"
        stream.close()  # type: ignore[attr-defined] # it is a generator
        assert closed.wait(TIMEOUT)


def test_an_error_in_one_branch_is_the_callers_outcome_and_spares_the_rest(gate: Gate) -> None:
    pipeline = pieces_of(gate)
    with Runtime(pipeline.gated, pipeline) as rt:  # type: ignore[attr-defined] # set above

        def call(_: int) -> None:
            with pytest.raises(InvalidRequest, match="must be a str"):
                rt.infer("mixed", "abc")

        @wherry.pipeline
        async def mixed(text: str) -> str:
            calls = [rt.ainfer("gated", t) for t in text]
            return "".join(await wherry.gather([*calls, rt.ainfer("gated", 5)]))

        rt.load(mixed)
        call(0)
        gate.open(10)
        assert rt.drain(TIMEOUT)
    assert len(gate.batches) <= 1


def test_a_models_error_keeps_its_class_through_the_pipeline() -> None:
    with Runtime(length, total) as rt:
        with pytest.raises(ModelFailed, match="model 'length' failed: ValueError: a bad piece"):
            rt.infer("total", "bad")
        assert rt.model("total").statistics.failures == {"BACKEND": 1}
        assert rt.infer("total", "good") == 4


class Own(Exception):
    """An error of the user's."""


@pytest.mark.parametrize(
    ("raised", "expected", "match"),
    [
        (Own("no"), ModelFailed, "model 'raises' failed: Own: no"),
        (InvalidRequest("say please"), InvalidRequest, "say please"),
        (TimeoutError("their own clock"), ModelFailed, "TimeoutError: their own clock"),
        (SystemExit(1), ModelFailed, "SystemExit"),
        (KeyboardInterrupt(), ModelFailed, "KeyboardInterrupt"),
        (asyncio.CancelledError(), ModelFailed, "CancelledError"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("rows", [1, 2])
def test_what_the_pipeline_raises_is_its_callers_outcome_and_it_serves_on(
    raised: BaseException, expected: type[WherryError], match: str, rows: int
) -> None:
    @wherry.pipeline
    async def raises(text: str) -> str:
        if text == "raise":
            raise raised
        return text

    with Runtime(raises) as rt:
        with pytest.raises(expected, match=match):
            rt.infer_batch("raises", text=["raise"] * rows)
        assert rt.infer("raises", "a") == "a"


def test_a_wrong_output_is_named() -> None:
    @wherry.pipeline
    async def wrong(text: str) -> str:
        return 5  # type: ignore[return-value] # the mistake

    with Runtime(wrong) as rt, pytest.raises(BadModelOutput, match="must hold str rows, not int"):
        rt.infer("wrong", "a")


def test_a_model_that_is_not_there_is_named() -> None:
    @wherry.pipeline
    async def lost(text: str) -> str:
        return str(await length.ainfer(text))

    with Runtime(lost) as rt, pytest.raises(ModelNotFound, match="'length'"):
        rt.infer("lost", "a")


def test_the_pieces_of_a_cancelled_request_stop(gate: Gate) -> None:
    pipeline = pieces_of(gate)
    with Runtime(pipeline.gated, pipeline) as rt:  # type: ignore[attr-defined] # set above

        async def main() -> None:
            task = asyncio.ensure_future(rt.ainfer("letters", "x" * 50))
            await asyncio.get_running_loop().run_in_executor(None, gate.started)
            task.cancel()
            await asyncio.wait([task])

        asyncio.run(main())
        pipe = rt.model("letters")
        assert pipe.runner.drain(TIMEOUT)  # its task and those of its pieces have ended
        gate.open(100)
        assert rt.drain(TIMEOUT)
        assert pipe.statistics.failures == {"CANCELED": 1}
        assert rt.model("gated").statistics.failures["CANCELED"] == 50
    assert len(gate.batches) == 1


def test_a_deadline_passes_down_to_the_pieces(gate: Gate) -> None:
    pipeline = pieces_of(gate)
    with Runtime(pipeline.gated, pipeline) as rt:  # type: ignore[attr-defined] # set above
        with pytest.raises(DeadlineExceeded, match="'letters': not finished within"):
            rt.infer("letters", "x" * 50, timeout=0.5)
        assert rt.model("letters").runner.drain(TIMEOUT)  # those of its pieces have ended, too
        gate.open(100)
        assert rt.drain(TIMEOUT)
    assert len(gate.batches) <= 1  # none, if the time was over before the first one began


def test_the_calls_of_a_pipeline_are_made_on_behalf_of_its_tenant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Runtime(length, total) as rt:
        seen: list[str] = []
        called, submit = rt.model("length"), LoadedModel.submit

        def watching(loaded: LoadedModel, requests: Sequence[InferRequest]) -> None:
            if loaded is called:
                seen.extend(request.tenant for request in requests)
            submit(loaded, requests)

        monkeypatch.setattr(LoadedModel, "submit", watching)

        async def main() -> None:
            outer = rt.model("total")
            columns = outer.row_columns(("two words",), {})
            await rt.answer(outer, columns, 1, tenant="them")
            await rt.ainfer("total", "one")

        asyncio.run(main())
    assert set(seen[:-1]) == {"them"}
    assert seen[-1] == ""


def test_no_more_requests_are_in_flight_than_the_queue_may_hold(gate: Gate) -> None:
    pipeline = pieces_of(gate, max_queue_size=2)
    with Runtime(pipeline.gated, pipeline) as rt:  # type: ignore[attr-defined] # set above

        async def main() -> None:
            tasks = [asyncio.ensure_future(rt.ainfer("letters", "x")) for _ in range(3)]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            assert isinstance(done.pop().exception(), QueueFull)
            gate.open(3)
            assert [await task for task in tasks[:2]] == ["X", "X"]

        asyncio.run(main())


def test_close_ends_the_pipelines_that_run_and_those_about_to_start(gate: Gate) -> None:
    pipeline = pieces_of(gate)
    rt = Runtime(pipeline.gated, pipeline).start()  # type: ignore[attr-defined] # set above

    def call(_: int) -> None:
        with pytest.raises((ModelNotReady, ModelNotFound)):
            rt.infer("letters", "xyz")

    closing = threading.Thread(target=rt.close)
    with threads(3, call):
        gate.started()
        closing.start()
    gate.open(10)  # only now: the callers do not wait for the piece that runs
    closing.join(TIMEOUT)
    assert not closing.is_alive()


def test_the_load_of_a_pipeline_is_the_requests_without_an_answer(gate: Gate) -> None:
    pipeline = pieces_of(gate)
    with Runtime(pipeline.gated, pipeline) as rt:  # type: ignore[attr-defined] # set above
        runner = rt.model("letters").runner
        with threads(1, lambda _: rt.infer("letters", "a")):
            gate.started()
            assert (runner.load().running_rows, runner.load().one_seconds) == (1, 0.0)
            gate.open()
        idle = runner.load()
        assert (idle.ready, idle.running_rows, idle.joins) == (True, 0, True)
        assert idle.one_seconds == idle.answer_seconds() > 0.0


def test_a_pipeline_drains(gate: Gate) -> None:
    pipeline = pieces_of(gate)
    with Runtime(pipeline.gated, pipeline) as rt:  # type: ignore[attr-defined] # set above
        answers: list[str] = []
        with threads(1, lambda _: answers.append(rt.infer("letters", "ab"))):
            gate.started()
            with threads(1, lambda _: answers.append(str(rt.drain(TIMEOUT)))):
                gate.open(2)
        assert sorted(answers) == ["AB", "True"]
        with pytest.raises(ModelNotReady, match="unloading"):
            rt.infer("letters", "c")


def test_a_pipeline_can_be_reloaded_while_it_serves() -> None:
    stop = threading.Event()
    with Runtime(length, total) as rt:

        def ask(_: int) -> None:
            while not stop.is_set():
                assert rt.infer("total", "word word word") == 14

        with threads(3, ask):
            for _ in range(10):
                rt.load(total)
            stop.set()


def test_a_pipeline_that_swallows_one_cancellation_is_answered_once() -> None:
    entered = threading.Event()

    @wherry.pipeline
    async def stubborn(text: str) -> str:
        entered.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return text

    with Runtime(stubborn) as rt:

        async def main() -> None:
            task = asyncio.ensure_future(rt.ainfer("stubborn", "a"))
            await asyncio.get_running_loop().run_in_executor(None, entered.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert rt.drain(TIMEOUT)
        statistics = rt.model("stubborn").statistics
        assert (statistics.success.count, statistics.fail.count) == (0, 1)


def test_a_pipeline_may_call_a_model_that_streams() -> None:
    @wherry.model
    def letters(text: list[str]) -> Iterator[list[str]]:
        for letter in text[0]:
            yield [letter]

    @wherry.pipeline
    async def spell(text: str) -> str:
        return "-".join([letter async for letter in letters.astream(text)])

    with Runtime(letters, spell) as rt:
        assert rt.infer("spell", "abc") == "a-b-c"


def test_a_caller_who_is_gone_is_cancelled() -> None:
    assert Cancelled("x").http_status == 499


def test_a_caller_with_an_answer_is_in_nobodys_way_any_more() -> None:
    """Its task may end a little later than its next request comes."""

    @wherry.pipeline(max_queue_size=1)
    async def one_at_a_time(text: str) -> str:
        return text

    with Runtime(one_at_a_time) as rt:
        loaded, again = rt.model("one_at_a_time"), Call("b")

        class Eager(Call):
            def _settled(self, reply: Reply[InferResponse]) -> None:
                loaded.submit([again.request])  # while its task is still about to end
                super()._settled(reply)

        first = Eager("a")
        loaded.submit([first.request])
        assert first.rows() == ["a"]
        assert again.rows() == ["b"]


def test_a_deadline_that_has_passed_already_is_one_and_no_overload() -> None:
    @wherry.pipeline
    async def never(text: str) -> str:
        raise AssertionError("nobody waits for it")

    with Runtime(never) as rt, pytest.raises(DeadlineExceeded, match="'never': not finished"):
        rt.infer("never", "a", timeout=0.0)


def test_a_deadline_that_a_models_call_sees_first_is_the_pipelines() -> None:
    @wherry.pipeline
    async def late(text: str) -> str:
        clock.advance(2.0)
        raise DeadlineExceeded("of a model that it called")

    clock = ManualClock(100.0)
    with Runtime(late, clock=clock) as rt:
        with pytest.raises(DeadlineExceeded, match="'late': not finished within"):
            rt.infer("late", "a", timeout=1.0)
        with pytest.raises(DeadlineExceeded, match="of a model that it called"):
            rt.infer("late", "a", timeout=10.0)


def test_a_pipelines_deadline_is_that_of_its_calls_unless_theirs_is_earlier() -> None:
    @wherry.model(max_batch_size=8)
    def stage(x: list[str]) -> list[str]:
        return x

    @wherry.pipeline
    async def chain(x: str) -> str:
        await stage.ainfer(x)
        await stage.ainfer(x, timeout=5)
        return x

    deadlines: list[float | None] = []
    with wherry.Runtime(stage, chain, clock=lambda: 100.0) as runtime:
        runner = runtime.model("stage").runner
        submit = runner.submit

        def seen(requests: Sequence[InferRequest]) -> None:
            deadlines.extend(request.deadline for request in requests)
            submit(requests)

        runner.submit = seen  # type: ignore[method-assign]
        runtime.infer("chain", "a", timeout=60)
        runtime.infer("chain", "a", timeout=2)
        runtime.infer("chain", "a")
    assert deadlines == [160.0, 105.0, 102.0, 102.0, None, 105.0]


def test_a_request_leaves_a_tree_of_times_behind() -> None:
    @wherry.model(max_batch_size=8)
    def stage(x: list[str]) -> list[str]:
        if "bad" in x:
            raise ValueError("bad")
        return x

    @wherry.pipeline
    async def inner(x: str) -> str:
        answer: str = await stage.ainfer(x)
        return answer

    @wherry.pipeline
    async def outer(x: str) -> str:
        return "".join(await wherry.gather(inner.ainfer(part) for part in x.split()))

    with wherry.Runtime(stage, inner, outer) as runtime:
        runtime.infer("outer", "a b")
        with pytest.raises(wherry.ModelFailed):
            runtime.infer("outer", "bad")
        explained = runtime.model("outer").runner.explain()

    calls = {stage["model"]: (stage["calls"], stage["failed"]) for stage in explained["stages"]}
    assert calls == {"inner": (3, 1), "stage": (3, 1)}
    failed, good = explained["latest"]
    assert [call["model"] for call in good["calls"]] == ["inner", "inner"]
    assert [call["calls"][0]["model"] for call in good["calls"]] == ["stage", "stage"]
    assert failed["error"] == failed["calls"][0]["error"] == "ModelFailed"


def test_who_has_the_answer_may_ask_for_its_times_at_once() -> None:
    @wherry.pipeline
    async def same(x: str) -> str:
        return x

    with wherry.Runtime(same) as runtime:
        loaded = runtime.model("same")
        known: SimpleQueue[int] = SimpleQueue()
        reply: Reply[InferResponse] = Reply(
            lambda _: known.put(len(loaded.runner.explain()["latest"]))
        )
        loaded.submit([loaded.request({"x": ["a"]}, 1, reply)])
        assert known.get(timeout=TIMEOUT) == 1


def test_what_would_take_too_long_beside_the_others_is_refused_at_the_door(gate: Gate) -> None:
    clock = ManualClock(100.0)
    pipeline = pieces_of(gate)
    with Runtime(pipeline.gated, pipeline, clock=clock) as rt:  # type: ignore[attr-defined] # set above

        async def main() -> None:
            first = asyncio.ensure_future(rt.ainfer("letters", "x"))
            await asyncio.to_thread(gate.started)
            clock.advance(2.0)
            gate.open(1)
            assert await first == "X"  # 2 s from begin to end

            others = [asyncio.ensure_future(rt.ainfer("letters", "x")) for _ in range(9)]
            await asyncio.to_thread(gate.started)
            with pytest.raises(
                Overloaded, match=r"would take about 20\.000 s, too long"
            ) as refused:
                await rt.ainfer("letters", "x", timeout=20.0)
            assert refused.value.retry_after == pytest.approx(4.0)
            patient = asyncio.ensure_future(rt.ainfer("letters", "x", timeout=25.0))
            careless = asyncio.ensure_future(rt.ainfer("letters", "x"))
            gate.open(20)
            assert [await task for task in (*others, patient, careless)] == ["X"] * 11

        asyncio.run(main())


def test_what_is_in_a_pipeline_is_given_up_once_it_turns_out_to_be_too_slow(gate: Gate) -> None:
    clock = ManualClock(100.0)
    pipeline = pieces_of(gate)
    with Runtime(pipeline.gated, pipeline, clock=clock) as rt:  # type: ignore[attr-defined] # set above

        async def main() -> None:
            asked = [asyncio.ensure_future(rt.ainfer("letters", "x")) for _ in range(100)]
            for call in asked[:2]:
                await asyncio.to_thread(gate.started)
                clock.advance(2.0)
                gate.open(1)
                assert await call == "X"
            for call in asked[20:]:
                assert isinstance(await refusal(call), Overloaded)
            gate.open(200)
            assert [await call for call in asked[2:12]] == ["X"] * 10

        async def refusal(call: asyncio.Future[Any]) -> BaseException | None:
            await asyncio.wait({call})
            return call.exception()

        asyncio.run(main())


def test_calls_of_a_pipeline_are_let_in_where_the_queue_is_full(gate: Gate) -> None:
    @wherry.model(max_batch_size=1, max_queue_size=1)
    def stage(x: list[str]) -> list[str]:
        return x

    @wherry.pipeline
    async def many(x: str) -> str:
        return "".join(await wherry.gather(stage.ainfer(letter) for letter in x))

    with Runtime(stage, many) as rt:
        assert rt.infer("many", "abcdefgh") == "abcdefgh"


# Calls that would wait for themselves


@wherry.pipeline
async def inner(text: str) -> int:
    return int(await length.ainfer(text))


@wherry.pipeline
async def inner_stream(text: str) -> AsyncIterator[str]:
    yield text


def by_infer(text: str) -> int:
    return int(inner.infer(text))


def by_map(text: str) -> int:
    return sum(inner.map([text]))


def by_stream(text: str) -> int:
    return len(list(inner_stream.stream(text)))


def two_deep(text: str) -> int:
    return int(inline.infer(text))


@wherry.model
def inline(text: str) -> int:
    """Runs in its caller's thread if that is a local one."""
    return int(inner.infer(text))


@pytest.mark.parametrize("wait", [by_infer, by_map, by_stream, two_deep])
@pytest.mark.parametrize("how", ["itself", "gathered", "called back"])
def test_a_pipeline_that_waits_for_a_pipeline_without_await_is_told_how(
    wait: Callable[[str], int], how: str
) -> None:
    @wherry.pipeline
    async def outer(text: str) -> int:
        if how == "called back":
            loop = asyncio.get_running_loop()
            done: asyncio.Future[int] = loop.create_future()

            def call_back() -> None:
                try:
                    done.set_result(wait(text))
                except (wherry.WherryError, RuntimeError) as error:
                    done.set_exception(error)

            loop.call_soon(call_back)
            return await done
        if how == "gathered":

            async def branch() -> int:
                return wait(text)

            return int(sum(await wherry.gather([branch(), branch()])))
        return wait(text)

    with wherry.Runtime(length, inner, inner_stream, inline, outer) as rt:
        with pytest.raises(wherry.ModelFailed, match="ainfer"):
            rt.infer("outer", "abc", timeout=TIMEOUT)
        assert rt.infer("inner", "abc") == 3


def test_a_pipeline_may_wait_for_a_plain_model_and_for_a_pipeline_in_another_thread() -> None:
    @wherry.pipeline
    async def outer(text: str) -> int:
        return int(length.infer(text)) + int(await asyncio.to_thread(inner.infer, text))

    with wherry.Runtime(length, inner, outer) as rt:
        assert rt.infer("outer", "abc") == 6


@wherry.pipeline
async def endless(text: str) -> str:
    return str(await endless.ainfer(text))


@wherry.pipeline
async def to(text: str) -> str:
    return str(await fro.ainfer(text))


@wherry.pipeline
async def fro(text: str) -> str:
    return str(await to.ainfer(text))


@wherry.pipeline
async def halved(text: str) -> str:
    return text if len(text) < 2 else str(await halved.ainfer(text[: len(text) // 2])) + "."


def test_pipelines_that_call_each_other_without_end_are_told() -> None:
    with Runtime(endless, to, fro, halved) as rt:
        for name in ("endless", "to"):
            with pytest.raises(ModelFailed, match="100 calls wait for each other"):
                rt.infer(name, "a")
        assert rt.infer("halved", "a" * 64) == "a......"


def test_a_deadline_is_kept_for_code_that_does_not_end_when_it_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wherry.core.pipelines.pipeline.END_SECONDS", 0.01)
    may_end = threading.Event()

    @wherry.pipeline
    async def deaf(text: str) -> str:
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.to_thread(may_end.wait, TIMEOUT)
        return text

    with Runtime(deaf) as rt:
        with pytest.raises(DeadlineExceeded, match="'deaf'"):
            rt.infer("deaf", "a", timeout=0.01)
        rt.close(0.01)  # nor does it keep the program
        may_end.set()
        until(lambda: not any(t.name == "wherry-pipelines" for t in threading.enumerate()))


def test_a_deadline_is_kept_for_code_that_blocks_the_loop() -> None:
    may_end = threading.Event()

    @wherry.pipeline
    async def blocking(text: str) -> str:
        assert may_end.wait(TIMEOUT)
        return text

    with Runtime(blocking) as rt:
        for _ in range(2):  # one in the loop, one that waits for it
            with pytest.raises(DeadlineExceeded, match="'blocking'"):
                rt.infer("blocking", "a", timeout=0.01)
        may_end.set()
        assert rt.infer("blocking", "a") == "a"


async def value(n: int) -> int:
    await asyncio.sleep(0)
    return n


class Waiting:
    """Calls that wait, and say how they ended."""

    def __init__(self) -> None:
        self.cancelled = 0

    async def call(self) -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return 0


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_results_come_in_the_order_of_the_calls() -> None:
    assert asyncio.run(gather(value(n) for n in range(20))) == list(range(20))
    assert asyncio.run(gather([])) == []


def test_the_first_error_is_raised_and_the_others_are_cancelled() -> None:
    waiting = Waiting()

    async def fail() -> int:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def main() -> None:
        with pytest.raises(ValueError, match="no"):
            await gather([waiting.call(), fail(), waiting.call()])
        assert waiting.cancelled == 2  # none of them runs on

    asyncio.run(main())


def test_cancelling_the_caller_cancels_all_calls() -> None:
    waiting = Waiting()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(gather([waiting.call() for _ in range(3)]))
            await turns()
            task.cancel()
        assert task.cancelled()

    asyncio.run(main())
    assert waiting.cancelled == 3


def test_calls_begun_before_the_iterable_raises_are_cancelled() -> None:
    waiting = Waiting()
    begun: list[asyncio.Task[int]] = []

    async def main() -> None:
        def calls() -> Iterator[Awaitable[int]]:
            begun.append(asyncio.ensure_future(waiting.call()))
            yield begun[0]
            raise ValueError("the text cannot be split")

        with pytest.raises(ValueError, match="cannot be split"):
            await gather(calls())
        assert begun[0].cancelled()

    asyncio.run(main())


def test_in_order_starts_all_and_gives_each_as_soon_as_those_before_it_are_there() -> None:
    async def main() -> None:
        first: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        seen: list[int] = []
        async with in_order([first, value(2), value(3)]) as results:
            await turns()
            assert not seen
            first.set_result(1)
            seen.extend([result async for result in results])
        assert seen == [1, 2, 3]

    asyncio.run(main())


def test_what_nobody_came_to_is_stopped_when_the_block_is_left() -> None:
    async def main() -> None:
        waiting = Waiting()
        async with in_order([value(1), waiting.call(), waiting.call()]) as results:
            assert await anext(results) == 1
            await turns()
        assert waiting.cancelled == 2

    asyncio.run(main())


def test_an_error_is_raised_in_its_place_and_later_ones_are_not_complained_about() -> None:
    async def bad(n: int) -> int:
        raise ValueError(n)

    async def main() -> None:
        async with in_order([value(1), bad(2), bad(3)]) as results:
            assert await anext(results) == 1
            await turns()
            with pytest.raises(ValueError, match="2"):
                await anext(results)

    asyncio.run(main())


@wherry.pipeline
async def leaving(how: str) -> str:
    if how == "exit in a task":
        await asyncio.gather(exits(), return_exceptions=True)
    if how == "stop":
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
    return how


async def exits() -> None:
    raise SystemExit(3)


def test_code_that_stops_the_loop_of_pipelines_stops_no_other_request() -> None:
    with Runtime(leaving) as runtime:
        for how in ("exit in a task", "stop", "exit in a task"):
            assert runtime.infer("leaving", how, timeout=TIMEOUT) == how
            assert runtime.infer("leaving", "good", timeout=TIMEOUT) == "good"
