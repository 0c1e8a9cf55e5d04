"""The fixture that holds every test to leaving nothing behind: does it see what it must?"""

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from tests.leaks import left_behind, snapshot


def test_a_thread_that_still_runs_is_seen_by_its_name() -> None:
    before = snapshot()
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait, name="forgotten")
    thread.start()
    try:
        assert ["thread forgotten" in extra for extra in left_behind(before, grace=0)] == [True]
    finally:
        may_end.set()
        thread.join()
    assert left_behind(before) == []


def test_a_loops_own_threads_are_seen_once_however_many_they_become() -> None:
    before = snapshot()
    with asyncio.Runner() as runner:
        runner.run(_in_threads(1))
        extra = left_behind(before, grace=0)
        assert "threads of event loops" in extra
        runner.run(_in_threads(3))
        assert left_behind(before, grace=0) == extra
    assert left_behind(before) == []


async def _in_threads(count: int) -> None:
    together = threading.Barrier(count)
    await asyncio.gather(*(asyncio.to_thread(together.wait, 10) for _ in range(count)))


def test_a_pipe_that_stays_open_is_seen_with_both_ends() -> None:
    before = snapshot()
    ends = os.pipe()
    try:
        extra = left_behind(before, grace=0)
        assert len(extra) == 2
        assert all(line.startswith("open file pipe:") for line in extra)
    finally:
        for end in ends:
            os.close(end)
    assert left_behind(before) == []


def test_a_memfd_is_seen_by_its_name() -> None:
    before = snapshot()
    fd = os.memfd_create("forgotten-slab")
    try:
        assert left_behind(before, grace=0) == ["open file /memfd:forgotten-slab (deleted)"]
    finally:
        os.close(fd)


def test_a_child_is_seen_while_it_runs_and_until_it_is_waited_for() -> None:
    before = snapshot()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (seen,) = (x for x in left_behind(before, grace=0) if x.startswith("child"))
        assert f"child {child.pid}" in seen
        child.kill()
        # Wait for its end without reaping it: a zombie is a leak too.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        (seen,) = (x for x in left_behind(before, grace=0) if x.startswith("child"))
        assert "never waited for" in seen
    finally:
        child.communicate()
    assert left_behind(before) == []


MAPS = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 1)
held = mmap.mmap(file, 1)
print("mapped", flush=True)
input()
"""


NOT_MAPPED = MAPS.replace("held = mmap.mmap(file, 1)", "")
CLOSED = NOT_MAPPED.replace('print("', 'os.close(file); print("')
#: A shell that ends: what it started in the background is not a descendant of this process.
LEAVES = ["sh", "-c", 'exec 3<&0; "$@" <&3 &', "sh"]
#: A shell that stays: what it started is a grandchild.
STAYS = ["sh", "-c", '"$@"; true', "sh"]


@pytest.mark.parametrize(
    ("program", "through", "name", "is_a_leak"),
    [
        pytest.param(MAPS, [], "test", True, id="mapped by a child"),
        pytest.param(NOT_MAPPED, [], "test", True, id="open in a child"),
        pytest.param(MAPS, STAYS, "test", True, id="mapped by a grandchild"),
        pytest.param(CLOSED, [], f"test-{os.getpid()}", True, id="closed, with our id in its name"),
        pytest.param(CLOSED, [], "test", False, id="closed, with any name"),
        pytest.param(MAPS, LEAVES, "test", False, id="mapped by a program beside us"),
        pytest.param(NOT_MAPPED, LEAVES, "test", False, id="open in a program beside us"),
    ],
)
def test_shared_memory_is_a_leak_where_this_process_or_a_descendant_uses_it(
    program: str, through: list[str], name: str, is_a_leak: bool, tmp_path: Path
) -> None:
    path = Path(f"/dev/shm/wherry-{tmp_path.parent.name}-{name}")
    before = snapshot()
    child = subprocess.Popen(
        [*through, sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "mapped\n"
        if through is LEAVES:
            child.wait()
        extra = left_behind(before, grace=0.0)
        assert (f"shared memory {path}" in extra) is is_a_leak
    finally:
        path.unlink(missing_ok=True)
        child.communicate("\n")
    assert left_behind(before) == []


def test_shared_memory_that_another_program_makes_and_removes_is_not_ours() -> None:
    """As a named semaphore of a program beside us does at any moment."""
    before = snapshot()
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="sem.mp-", delete=False) as made:
        assert f"shared memory {made.name}" in left_behind(before, grace=0)
    try:
        assert left_behind(before, grace=0) == []
    finally:
        os.unlink(made.name)


def test_what_ends_within_the_grace_time_is_no_leak() -> None:
    before = snapshot()
    thread = threading.Timer(0.05, lambda: None)
    thread.start()
    assert left_behind(before) == []
    thread.join()


PLANTED = """
import os, subprocess, sys, threading

def test_leaves_a_thread():
    threading.Thread(target=threading.Event().wait, name="planted", daemon=True).start()

def test_leaves_a_pipe():
    os.pipe()

def test_leaves_a_child():
    # Kept alive by its open standard input; the pipe is ours too.
    globals()["child"] = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

def test_leaves_nothing():
    with open(os.devnull):
        pass

def teardown_module():
    child.communicate()
"""


@pytest.mark.slow
def test_the_fixture_fails_the_test_that_leaks_and_no_other(tmp_path: Path) -> None:
    """The real conftest.py over planted leaks, in a process of its own."""
    root = Path(__file__).parents[2]
    fixture = (root / "tests/conftest.py").read_text()
    impatient = fixture.replace("left_behind(before)", "left_behind(before, grace=0.05)")
    assert impatient != fixture
    (tmp_path / "conftest.py").write_text(impatient)
    (tmp_path / "full.txt").write_text("")
    (tmp_path / "test_planted.py").write_text(PLANTED)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:asyncio",
        "-c",
        os.devnull,
    ]
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "4 passed, 3 errors" in done.stdout, done.stdout + done.stderr
    assert "thread planted" in done.stdout
    assert "open file pipe:" in done.stdout
    assert "child " in done.stdout


def test_a_leak_names_what_was_left(tmp_path: Path) -> None:
    before = snapshot()
    with open(tmp_path / "kept.txt", "w") as kept:
        assert left_behind(before, grace=0) == [f"open file {kept.name}"]


@pytest.mark.parametrize("grace", [0.0, 0.5])
def test_nothing_is_reported_where_nothing_was_left(grace: float) -> None:
    assert left_behind(snapshot(), grace=grace) == []


#: A driver as NVIDIA's: the first use of the GPU opens files and pipes, and keeps them.
FAKE_TORCH = """
import os

class Tensor:
    pin_memory = sum = item = __matmul__ = lambda self, *_: self
    def to(self, device):
        return ones(device=device)

opened = []
def ones(*shape, device="cpu"):
    if device == "cuda" and not opened:
        opened.extend([*os.pipe(), os.open("/dev/null", os.O_RDONLY)])
    return Tensor()

class cuda:
    is_available = staticmethod(lambda: True)
"""
USES_A_GPU = """
import pytest
import torch

@pytest.mark.gpu
def test_a_first_use():
    torch.ones(1, device="cuda")
"""
LOADS_A_DRIVER = """
from pathlib import Path
import tests.conftest
tests.conftest._DRIVER = Path("/dev/null")
"""


@pytest.mark.slow
def test_what_a_gpu_opens_once_is_no_leak_of_its_first_test(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    (tmp_path / "test_gpu.py").write_text(USES_A_GPU)
    (tmp_path / "with_driver.py").write_text(LOADS_A_DRIVER)
    root = Path(__file__).parents[2]
    command: list[str | Path] = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--rootdir", root, "-c", root / "pyproject.toml"]
    command += ["-p", "with_driver", "-p", "tests.conftest"]
    done = subprocess.run(
        [*command, "-m", "gpu", tmp_path / "test_gpu.py"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1].startswith("1 passed in"), done.stdout


def test_a_gpu_s_device_files_are_the_driver_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptors = tmp_path / "self" / "fd"
    descriptors.mkdir(parents=True)
    monkeypatch.setattr("tests.leaks.PROC", tmp_path)
    before = snapshot()
    for number, name in enumerate(("nvidiactl", "nvidia-uvm", "nvidia0", "null")):
        (descriptors / str(number)).symlink_to(f"/dev/{name}")
    assert left_behind(before, grace=0) == ["open file /dev/null"]
