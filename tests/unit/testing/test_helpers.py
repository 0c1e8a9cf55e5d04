"""The helpers that other programs' tests rest on."""

import fcntl
import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import wherry
from tests.fakes import TIMEOUT
from wherry.testing import GatedModel, ManualClock, ServerProcess, local_server, running_server


def test_a_manual_clock_moves_when_it_is_told_to() -> None:
    clock = ManualClock(10.0)
    assert clock() == clock() == 10.0
    assert clock.advance(0.5) == clock() == 10.5
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
    assert repr(clock) == "<ManualClock 10.5>"


def test_a_gated_model_says_who_is_in_the_batch_and_holds_it() -> None:
    gated = GatedModel(max_batch_size=2)
    with wherry.Runtime(gated) as runtime, ThreadPoolExecutor(3) as pool:
        first = pool.submit(runtime.infer, "gated", text="a")
        assert gated.wait_started() == ["a"]
        assert not first.done()
        others = [pool.submit(runtime.infer, "gated", text=text) for text in "bc"]
        gated.let_finish()
        assert first.result(TIMEOUT) == "a"
        gated.open()
        assert sorted(other.result(TIMEOUT) for other in others) == ["b", "c"]
    assert gated.batches[0] == ["a"]


def test_waiting_for_a_batch_that_never_starts_ends_with_a_timeout() -> None:
    with pytest.raises(TimeoutError, match="'idle'"):
        GatedModel("idle").wait_started(timeout=0.001)


def test_leaving_the_runtime_opens_the_gate() -> None:
    gated = GatedModel()
    with wherry.Runtime(gated) as runtime:
        caller = threading.Thread(target=lambda: runtime.infer("gated", text="a"))
        caller.start()
        gated.wait_started()
        gated.open()
        caller.join()


def test_a_local_server_is_in_this_process() -> None:
    gated = GatedModel()
    gated.open()
    with local_server(gated) as server, wherry.Client(server.url) as client:
        assert client.infer("gated", text="a") == "a"
    assert gated.batches == [["a"]]


APP = """
import wherry

@wherry.model
def shout(text: list[str]) -> list[str]:
    return [t.upper() for t in text]
"""


@pytest.mark.slow
def test_a_running_server_is_ready_when_the_block_begins(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    app = tmp_path_factory.mktemp("app") / "shouting.py"
    app.write_text(APP)
    with running_server(str(app), "--isolation", "thread") as url, wherry.Client(url) as client:
        assert client.infer("shout", text="a") == "A"


@pytest.mark.slow
def test_a_server_is_gone_even_if_it_was_not_waited_for(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = tmp_path_factory.mktemp("app") / "shouting.py"
    app.write_text(APP)
    server = ServerProcess(str(app)).start()
    wait, interrupts = server.process.wait, [KeyboardInterrupt()]

    def interrupted(timeout: float | None = None) -> int:
        if interrupts:
            raise interrupts.pop()
        return wait(timeout)

    monkeypatch.setattr(server.process, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.stop()
    assert server.process.returncode is not None


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 1024, reason="no descriptors from 1,024 on"
)
def test_readiness_may_come_by_a_descriptor_that_select_does_not_take() -> None:
    server = ServerProcess("app.py")
    reads, writes = os.pipe()
    with open(reads, "rb"), open(writes, "wb", 0) as told:
        server._ready = fcntl.fcntl(reads, fcntl.F_DUPFD_CLOEXEC, 1024)
        told.write(b"http://127.0.0.1:1\n")
        assert server.wait_ready() == "http://127.0.0.1:1"
        os.close(server._ready)


@pytest.mark.slow
def test_a_server_that_cannot_start_is_an_error_with_its_log() -> None:
    server = ServerProcess("nowhere.py")
    with pytest.raises(RuntimeError, match=r"exit code 2(.|\n)*no such file"):
        server.__enter__()


@pytest.mark.slow
def test_a_server_may_run_in_a_folder_that_has_names_of_the_standard_library(
    tmp_path: Path,
) -> None:
    for name in ("types", "enum", "functools", "queue"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not the standard one')")
    (tmp_path / "helper.py").write_text("def shout(text): return text.upper()")
    (tmp_path / "app.py").write_text(
        "import wherry, helper\n@wherry.model\ndef shout(text: str) -> str:"
        " return helper.shout(text)"
    )
    for target in ("app.py", "app:shout"):
        with (
            running_server(target, cwd=str(tmp_path)) as url,
            wherry.Client(url) as client,
        ):
            assert client.infer("shout", "a") == "A"
