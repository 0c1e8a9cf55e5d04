"""Models of which not all fit: loaded when they are asked for, and no request is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wherry
from wherry.core.instances.runner import InstanceRunner
from wherry.core.models.settings import Isolation
from wherry.core.residency.policy import DeviceTurns
from wherry.core.values.errors import ConfigError, DeadlineExceeded, LoadFailed, ModelNotReady
from wherry.core.values.reply import Reply

ROOM = 250


class Counted(wherry.Model):
    """Adds its number; writes down when it is loaded and unloaded."""

    max_batch_size = 4
    memory = 100
    number = 0
    seconds = 0.0

    def __init__(self) -> None:
        self.events: list[str] = []
        self.wrong: list[Exception] = []
        self.gate = threading.Event()
        self.gate.set()

    def load(self, device: wherry.Device) -> None:
        self.gate.wait()
        threading.Event().wait(self.seconds)
        if self.wrong:
            raise self.wrong.pop()
        self.events.append("load")

    def unload(self) -> None:
        self.events.append("unload")

    def execute(self, x: list[int]) -> list[int]:
        return [value + self.number for value in x]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def wait_until(condition: Callable[[], bool]) -> None:
    ended = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ended
        threading.Event().wait(0.01)


def models(count: int, **attributes: Any) -> list[Any]:
    kinds = [
        type(f"M{number}", (Counted,), {"name": f"m{number}", "number": number, **attributes})
        for number in range(count)
    ]
    return [kind() for kind in kinds]


def state(runtime: wherry.Runtime, name: str) -> str:
    return str(runtime.model(name).runner.residence()["state"])


def test_models_sleep_until_they_are_asked_for_and_count_as_ready() -> None:
    made = models(5)
    with wherry.Runtime(*made, device_memory={"cpu": ROOM}) as runtime:
        assert [one.events for one in made] == [[], [], [], [], []]
        assert not runtime.not_ready()
        assert len(runtime.models()) == 5
        assert runtime.infer("m3", x=10) == 13
        assert [one.events for one in made] == [[], [], [], ["load"], []]
        wait_until(lambda: state(runtime, "m3") == "ready")
        assert state(runtime, "m0") == "asleep"


def test_no_more_are_awake_than_fit() -> None:
    made = models(4)
    with wherry.Runtime(*made, device_memory={"cpu": ROOM}) as runtime:
        for number in (0, 1, 2, 3, 0, 3, 1):
            assert runtime.infer(f"m{number}", x=1) == 1 + number
            awake = sum(one.events[-1:] == ["load"] for one in made)
            assert awake <= 2


def test_without_a_budget_every_model_is_loaded_at_the_start() -> None:
    made = models(2)
    with wherry.Runtime(*made) as runtime:
        assert [one.events for one in made] == [["load"], ["load"]]
        assert not runtime.model("m0").runner.residence()


def test_when_asked_needs_no_budget() -> None:
    made = models(3, resident="when asked")
    with wherry.Runtime(*made) as runtime:
        assert made[0].events == []
        assert [runtime.infer(f"m{n}", x=1) for n in range(3)] == [1, 2, 3]
        assert [one.events for one in made] == [["load"]] * 3


def test_a_model_that_is_always_resident_never_sleeps() -> None:
    fixed = models(1, resident="always")[0]
    others = [type(f"N{n}", (Counted,), {"name": f"n{n}", "number": n})() for n in range(3)]
    with wherry.Runtime(fixed, *others, device_memory={"cpu": ROOM}) as runtime:
        for n in (0, 1, 2, 1, 0):
            assert runtime.infer(f"n{n}", x=0) == n
        assert fixed.events == ["load"]
        assert sum(one.events[-1:] == ["load"] for one in others) == 1


def test_many_callers_lose_nothing_while_models_take_turns() -> None:
    made = models(5)
    with (
        wherry.Runtime(*made, device_memory={"cpu": ROOM}) as runtime,
        ThreadPoolExecutor(20) as threads,
    ):
        asked = [(n % 5, x) for n, x in zip(range(400), range(400), strict=True)]
        answers = list(threads.map(lambda one: runtime.infer(f"m{one[0]}", x=one[1]), asked))
        assert answers == [x + n for n, x in asked]
    for one in made:
        assert one.events == ["load", "unload"] * (len(one.events) // 2)


def test_a_request_waits_for_its_model_no_longer_than_its_timeout() -> None:
    made = models(1)
    made[0].gate.clear()
    with wherry.Runtime(*made, device_memory={"cpu": ROOM}) as runtime:
        with pytest.raises(DeadlineExceeded):
            runtime.infer("m0", x=1, timeout=0.05)
        made[0].gate.set()
        assert runtime.infer("m0", x=1) == 1


def test_who_cannot_wait_for_a_wake_is_told_when_to_come_back() -> None:
    first, second = models(2, memory=200)
    first.seconds = 0.3
    with wherry.Runtime(first, second, device_memory={"cpu": ROOM}) as runtime:
        assert runtime.infer("m0", x=1) == 1
        assert runtime.infer("m1", x=1) == 2
        wait_until(lambda: state(runtime, "m0") == "asleep")
        wait_until(lambda: state(runtime, "m1") == "ready")
        with pytest.raises(ModelNotReady, match=r"sleeps, .*0\.\d s, too long.*timeout") as caught:
            runtime.infer("m0", x=1, timeout=0.1)
        assert caught.value.retry_after == 1.0
        wait_until(lambda: state(runtime, "m0") == "ready")
        assert runtime.infer("m0", x=1, timeout=0.1) == 1


def test_what_cannot_be_loaded_is_told_to_those_who_wait_and_tried_again_later() -> None:
    (one,) = models(1)
    one.wrong = [ValueError("no weights")]
    with wherry.Runtime(one, device_memory={"cpu": ROOM}) as runtime:
        with pytest.raises(ModelNotReady, match="no weights") as caught:
            runtime.infer("m0", x=1)
        assert caught.value.retry_after == 1.0
        model = runtime.model("m0")
        assert "no weights" in model.not_ready_reason()
        assert not runtime.not_ready(), "the others are asked all the same"
        with pytest.raises(ModelNotReady, match="no weights"):
            runtime.infer("m0", x=1)
        wait_until(lambda: not model.not_ready_reason())
        assert runtime.infer("m0", x=1) == 1


def test_too_little_memory_makes_room_and_tries_once_more() -> None:
    made = models(2)
    made[1].wrong = [MemoryError("CUDA out of memory")]
    with wherry.Runtime(*made, device_memory={"cpu": ROOM}) as runtime:
        assert runtime.infer("m0", x=1) == 1
        assert runtime.infer("m1", x=1) == 2
        assert made[0].events == ["load", "unload"]


def test_a_model_that_can_never_fit_is_refused_at_its_load() -> None:
    with (
        pytest.raises(LoadFailed, match=r"'m0'.*100 bytes on cpu.*budget of 50 bytes"),
        wherry.Runtime(*models(1), device_memory={"cpu": 50}),
    ):
        pass


def test_an_explicit_load_wakes_and_raises_why_it_cannot() -> None:
    good, bad = models(2)
    bad.wrong = [ValueError("no weights")]
    with wherry.Runtime(device_memory={"cpu": ROOM}) as runtime:
        runtime.load(good)
        assert good.events == ["load"]
        with pytest.raises(LoadFailed, match="no weights"):
            runtime.load(bad)


def test_unload_while_it_wakes_answers_what_waits() -> None:
    (one,) = models(1)
    one.gate.clear()
    with (
        wherry.Runtime(one, device_memory={"cpu": ROOM}) as runtime,
        ThreadPoolExecutor() as threads,
    ):
        answer = threads.submit(runtime.infer, "m0", x=1)
        wait_until(lambda: state(runtime, "m0") == "waking")
        unloaded = threads.submit(runtime.unload, "m0")
        wait_until(lambda: not runtime.models())
        one.gate.set()
        assert answer.result(10) == 1
        unloaded.result(10)
        assert one.events == ["load", "unload"]


def test_close_while_it_wakes_ends() -> None:
    (one,) = models(1)
    one.gate.clear()
    runtime = wherry.Runtime(one, device_memory={"cpu": ROOM}).start()
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(runtime.infer, "m0", x=1)
        wait_until(lambda: state(runtime, "m0") == "waking")
        closed = threads.submit(runtime.close, 5.0)
        with pytest.raises(ModelNotReady):
            answer.result(10)
        one.gate.set()
        closed.result(10)


def test_a_wake_that_nobody_waits_for_is_not_begun() -> None:
    first, second = models(2, memory=200)
    second.gate.clear()
    with wherry.Runtime(first, second, device_memory={"cpu": ROOM}) as runtime:
        first.gate.clear()
        with ThreadPoolExecutor() as threads:
            waits = threads.submit(runtime.infer, "m0", x=1)
            wait_until(lambda: state(runtime, "m0") == "waking")
            with pytest.raises(DeadlineExceeded):
                runtime.infer("m1", x=1, timeout=0.05)
            first.gate.set()
            assert waits.result(10) == 1
        assert runtime.infer("m0", x=1) == 1
        assert second.events == []
        assert state(runtime, "m1") == "asleep"


def test_a_new_version_of_a_sleeping_model_takes_its_place() -> None:
    old, new = models(2)
    type(new).name = "m0"
    with wherry.Runtime(old, device_memory={"cpu": ROOM}) as runtime:
        runtime.load(new)
        assert runtime.infer("m0", x=1) == 2
        assert old.events == []
        assert new.events == ["load"]


class Countdown(wherry.StepModel):
    """Counts down to 0; one of two that do not fit together."""

    max_batch_size = 2
    memory = 200

    def __init__(self) -> None:
        self.loads = 0

    def load(self, device: wherry.Device) -> None:
        self.loads += 1

    def start(self, n: int) -> list[int]:
        return [n]

    def step(self, active: list[list[int]]) -> list[wherry.Step[int]]:
        for left in active:
            left[0] -= 1
        return [wherry.Step([left[0]], done=left[0] == 0) for left in active]


def test_streams_run_to_their_end_before_their_model_sleeps() -> None:
    first, second = (type(name, (Countdown,), {"name": name})() for name in ("one", "two"))
    with (
        wherry.Runtime(first, second, device_memory={"cpu": ROOM}) as runtime,
        ThreadPoolExecutor() as threads,
    ):
        names = iter(("one", "two") * 4)
        streams = [
            threads.submit(lambda: list(runtime.stream(next(names), n=200))) for _ in range(8)
        ]
        assert [one.result(30) for one in streams] == [list(range(199, -1, -1))] * 8
        assert first.loads >= 1
        assert second.loads >= 1


class Endless(wherry.Model):
    """Sends numbers until its caller leaves."""

    instances, memory = 2, 100

    def __init__(self) -> None:
        self.loads = 0

    def load(self, device: wherry.Device) -> None:
        self.loads += 1

    def execute(self, x: int) -> Iterator[int]:
        while True:
            threading.Event().wait(0.01)
            yield x


class Slow(Countdown):
    def step(self, active: list[list[int]]) -> list[wherry.Step[int]]:
        threading.Event().wait(0.01)
        return super().step(active)


@pytest.mark.parametrize("kind", [Endless, Slow])
def test_a_model_that_ends_a_stream_goes_on_if_its_room_is_not_needed_any_more(kind: Any) -> None:
    """The only request for the other one is given up while a stream of hours keeps the room."""
    streams, other = kind(), models(1)[0]
    name = kind.__name__.lower()
    inputs: dict[str, Any] = {"n": 1 << 40} if kind is Slow else {"x": 7}
    with (
        wherry.Runtime(streams, other, device_memory={"cpu": ROOM}) as runtime,
    ):
        first = runtime.stream(name, **inputs)
        next(first)
        with pytest.raises(DeadlineExceeded):
            runtime.infer("m0", x=1, timeout=0.5)
        second = runtime.stream(name, **inputs)
        next(second)
        next(first)
        assert (state(runtime, name), streams.loads, other.events) == ("ready", 1, [])
        first.close()  # type: ignore[attr-defined]
        second.close()  # type: ignore[attr-defined]
        assert runtime.infer("m0", x=1) == 1


def test_a_runtime_closes_while_a_model_waits_for_its_stream_to_end() -> None:
    streams, other = Endless(), models(1)[0]
    runtime = wherry.Runtime(streams, other, device_memory={"cpu": ROOM}).start()
    with ThreadPoolExecutor() as threads:
        stream = runtime.stream("endless", x=1)
        next(stream)
        left = threads.submit(runtime.infer, "m0", x=1)
        wait_until(lambda: state(runtime, "endless") == "stopping")
        runtime.close(0.5)
        assert left.exception(10) is None or isinstance(left.exception(), ModelNotReady)
        with pytest.raises(ModelNotReady):
            for _ in stream:
                pass


@pytest.mark.slow
def test_callers_who_come_back_with_each_answer_have_whole_turns() -> None:
    """Each model has two callers of a row; of five two fit. A turn that ended with the first empty
    queue would serve two rows."""
    made = models(5, seconds=0.1)
    with (
        wherry.Runtime(*made, device_memory={"cpu": ROOM}) as runtime,
        ThreadPoolExecutor(10) as threads,
    ):
        ends = time.monotonic() + 4.0

        def calls(number: int) -> int:
            rows = 0
            while time.monotonic() < ends:
                rows += runtime.infer(f"m{number}", x=1) == 1 + number
            return rows

        rows = list(threads.map(calls, [n % 5 for n in range(10)]))
        loads = sum(one.events.count("load") for one in made)
        assert min(rows) > 0
        assert sum(rows) > 10 * loads


def test_a_load_that_cannot_have_a_thread_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = models(1)
    with wherry.Runtime(one, device_memory={"cpu": ROOM}) as runtime:
        runner, left = runtime.model("m0").runner, [RuntimeError("can't start new thread")]
        assert isinstance(runner, InstanceRunner)
        wake = runner.life.wake

        def fails_once() -> None:
            if left:
                raise left.pop()
            wake()

        monkeypatch.setattr(runner.life, "wake", fails_once)
        assert runtime.infer("m0", x=1) == 1


class Kept(Counted):
    """Can leave its device and come back, and writes that down."""

    memory = 200
    offload = True

    def to_host(self) -> bool:
        self.events.append("to_host")
        return True

    def to_device(self, device: wherry.Device) -> None:
        if self.wrong:
            raise self.wrong.pop()
        self.events.append("to_device")


def two_kept(**attributes: Any) -> list[Any]:
    return [
        type(f"K{number}", (Kept,), {"name": f"m{number}", "number": number, **attributes})()
        for number in range(2)
    ]


def test_a_model_that_can_rests_in_host_memory_and_wakes_by_a_copy() -> None:
    first, second = two_kept()
    with wherry.Runtime(first, second, device_memory={"cpu": ROOM}) as runtime:
        for number in (0, 1, 0, 1):
            assert runtime.infer(f"m{number}", x=1) == 1 + number
        assert first.events == ["load", "to_host", "to_device", "to_host"]
        assert second.events == ["load", "to_host", "to_device"]
        wait_until(lambda: state(runtime, "m1") == "ready")
        assert state(runtime, "m0") == "resting"
        assert runtime.model("m0").runner.residence()["wakes"] == 2
        assert not runtime.not_ready()
    assert first.events[-1] == "unload"


def test_without_the_setting_a_model_is_unloaded() -> None:
    first, second = two_kept(offload=False)
    with wherry.Runtime(first, second, device_memory={"cpu": ROOM}) as runtime:
        assert [runtime.infer(f"m{number}", x=1) for number in (0, 1)] == [1, 2]
        assert first.events == ["load", "unload"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("isolation", "how"),
    [("thread", "raises"), ("thread", "cannot"), ("process", "raises"), ("process", "hangs")],
)
def test_a_model_that_cannot_leave_its_device_is_unloaded(isolation: Isolation, how: str) -> None:
    never, other = NeverMoved(), models(1)[0]
    with wherry.Runtime(device_memory={"cpu": ROOM}) as runtime:
        runtime.load(never, isolation=isolation)
        runtime.load(other)
        assert runtime.infer("never_moved", how=how) == how
        assert runtime.infer("m0", x=1) == 1
        assert state(runtime, "never_moved") == "asleep"
        assert runtime.infer("never_moved", how=how) == how


class NeverMoved(wherry.Model):
    memory = 200
    offload = True
    unload_timeout = 1.0

    def execute(self, how: str) -> str:
        self.how = how
        return how

    def to_host(self) -> bool:
        if self.how == "hangs":
            threading.Event().wait()
        if self.how == "raises":
            raise ValueError("no host")
        return False


def test_a_copy_that_fails_is_a_load() -> None:
    first, second = two_kept()
    with wherry.Runtime(first, second, device_memory={"cpu": ROOM}) as runtime:
        assert [runtime.infer(f"m{number}", x=1) for number in (0, 1)] == [1, 2]
        first.wrong = [ValueError("graphs have old addresses")]
        assert runtime.infer("m0", x=1) == 1
        assert first.events == ["load", "to_host", "unload", "load"]


def test_a_resting_model_is_unloaded_and_taken_the_place_of() -> None:
    first, second = two_kept()
    with wherry.Runtime(first, second, device_memory={"cpu": ROOM}) as runtime:
        assert [runtime.infer(f"m{number}", x=1) for number in (0, 1)] == [1, 2]
        runtime.unload("m0")
        assert first.events == ["load", "to_host", "unload"]
        assert runtime.infer("m1", x=1) == 2


class KeptCountdown(Countdown):
    offload = True

    def __init__(self) -> None:
        super().__init__()
        self.copies = 0

    def to_host(self) -> bool:
        return True

    def to_device(self, device: wherry.Device) -> None:
        self.copies += 1


def test_step_models_rest_between_streams() -> None:
    first, second = (type(name, (KeptCountdown,), {"name": name})() for name in ("one", "two"))
    with wherry.Runtime(first, second, device_memory={"cpu": ROOM}) as runtime:
        for name in ("one", "two", "one", "two"):
            assert list(runtime.stream(name, n=3)) == [2, 1, 0]
        assert (first.loads, second.loads) == (1, 1)
        assert (first.copies, second.copies) == (1, 1)


class KeptInWorker(wherry.Model):
    """Says which process it is in, and how often it was loaded and moved."""

    isolation = "process"
    memory = 200
    offload = True

    def load(self, device: wherry.Device) -> None:
        self.moves = 0

    def to_host(self) -> bool:
        return True

    def to_device(self, device: wherry.Device) -> None:
        self.moves += 1

    def execute(self, x: list[int]) -> list[list[int]]:
        return [[os.getpid(), self.moves] for _ in x]


class KeptBeside(KeptInWorker):
    pass


class DiesOnItsWay(KeptInWorker):
    def to_device(self, device: wherry.Device) -> None:
        os._exit(1)


@pytest.mark.slow
def test_a_worker_that_ends_while_weights_come_back_is_loaded() -> None:
    with wherry.Runtime(DiesOnItsWay(), KeptBeside(), device_memory={"cpu": ROOM}) as runtime:
        before, _ = runtime.infer("dies_on_its_way", x=1)
        runtime.infer("kept_beside", x=1)
        after, moves = runtime.infer("dies_on_its_way", x=1)
        assert after != before
        assert moves == 0


@pytest.mark.slow
def test_a_worker_stays_while_its_model_rests_and_one_that_was_killed_is_loaded() -> None:
    with wherry.Runtime(KeptInWorker(), KeptBeside(), device_memory={"cpu": ROOM}) as runtime:
        before, _ = runtime.infer("kept_in_worker", x=1)
        runtime.infer("kept_beside", x=1)
        assert runtime.infer("kept_in_worker", x=1) == [before, 1]
        runtime.infer("kept_beside", x=1)
        wait_until(lambda: state(runtime, "kept_in_worker") == "resting")
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: not runtime.model("kept_in_worker").runner.instances)
        after, moves = runtime.infer("kept_in_worker", x=1)
        assert after != before
        assert moves == 0


@pytest.fixture
def killed_at_load(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "kill"
    os.environ["KILLED_AT_LOAD"] = str(file)
    yield file
    del os.environ["KILLED_AT_LOAD"]


class InProcess(wherry.Model):
    """Dies in its load while a file is there."""

    name = "dies"
    isolation = "process"

    def load(self, device: wherry.Device) -> None:
        file = Path(os.environ["KILLED_AT_LOAD"])
        if file.exists():
            file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def execute(self, x: list[int]) -> list[int]:
        return x


@pytest.mark.slow
def test_a_worker_that_is_killed_while_it_wakes_is_started_again(killed_at_load: Path) -> None:
    with wherry.Runtime(InProcess(), device_memory={"cpu": 1 << 40}) as runtime:
        killed_at_load.touch()
        assert runtime.infer("dies", x=7) == 7
        wait_until(lambda: state(runtime, "dies") == "ready")
        assert runtime.model("dies").runner.residence()["footprint_bytes"] > 1 << 20


def test_a_footprint_is_known_again_by_the_next_server(
    killed_at_load: Path, tmp_path: Path
) -> None:
    with wherry.Runtime(InProcess(), device_memory={"cpu": 1 << 40}) as runtime:
        assert runtime.model("dies").runner.residence()["footprint_bytes"] is None
        runtime.infer("dies", x=1)
        wait_until(lambda: state(runtime, "dies") == "ready")
    with wherry.Runtime(InProcess(), device_memory={"cpu": 1 << 40}) as runtime:
        assert runtime.model("dies").runner.residence()["footprint_bytes"] > 1 << 20
    (tmp_path / "wherry" / "footprints.json").write_text("[not json")
    with wherry.Runtime(InProcess(), device_memory={"cpu": 1 << 40}) as runtime:
        assert runtime.model("dies").runner.residence()["footprint_bytes"] is None


class NeverUnloaded(wherry.Model):
    name = "never_unloaded"
    isolation = "process"
    memory = 200
    unload_timeout = 0.2

    def unload(self) -> None:
        threading.Event().wait()

    def execute(self, x: list[int]) -> list[int]:
        return x


@pytest.mark.slow
def test_a_worker_that_hangs_in_its_unload_does_not_keep_the_room() -> None:
    with wherry.Runtime(NeverUnloaded(), *models(1), device_memory={"cpu": ROOM}) as runtime:
        assert runtime.infer("never_unloaded", x=1) == 1
        assert runtime.infer("m0", x=1) == 1


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="memory"):
        Counted().config(memory="much")
    with pytest.raises(ConfigError, match="resident"):
        Counted().config(resident="sometimes")  # type: ignore[arg-type]
    assert Counted().config(memory="2GiB").memory == 2 << 30


def test_a_flood_at_a_model_that_wakes_is_decided_about_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (one,) = models(1, max_batch_size=64)
    one.gate.clear()
    looks, decide = list[int](), DeviceTurns.decide

    def counted(self: DeviceTurns, views: Any, now: float) -> Any:
        looks.append(len(views))
        return decide(self, views, now)

    monkeypatch.setattr(DeviceTurns, "decide", counted)
    with (
        wherry.Runtime(one, device_memory={"cpu": ROOM}) as runtime,
        ThreadPoolExecutor(32) as threads,
    ):
        answers = [threads.submit(runtime.infer, "m0", x=x) for x in range(32)]
        wait_until(lambda: runtime.model("m0").runner.queued_requests == 32)
        before = len(looks)
        for _ in range(200):
            threading.Event().wait(0.001)  # the thread that decides may run
            request = runtime.model("m0").request({"x": np.array([1])}, 1, Reply(lambda _: None))
            runtime.model("m0").submit([request])
        looked = len(looks) - before
        one.gate.set()
        assert looked < 50
        assert [answer.result(20) for answer in answers] == list(range(32))


def test_nothing_runs_while_nobody_asks() -> None:
    with wherry.Runtime(*models(2), device_memory={"cpu": ROOM}) as runtime:
        runtime.infer("m0", x=1)
        before = time.process_time()
        threading.Event().wait(0.3)
        assert time.process_time() - before < 0.1
