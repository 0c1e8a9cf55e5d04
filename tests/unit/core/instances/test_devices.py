"""Which GPUs work, and where do instances go? No GPU is asked: attempts are the test's."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from wherry.core.instances import devices
from wherry.core.instances.devices import (
    CPU,
    Gpus,
    cpu_instead,
    for_torch,
    gpu_count,
    gpu_uuids,
    gpus_of_machine,
    try_gpus,
)
from wherry.core.models.config import InstanceGroup
from wherry.core.models.model import Device


class Attempts:
    def __init__(self, **why: str) -> None:
        self.why: Mapping[int, str] = {int(number[1:]): said for number, said in why.items()}
        self.count = 0

    def __call__(self, count: int) -> Mapping[int, str]:
        self.count += 1
        return self.why


def gpus(**why: str) -> Gpus:
    return Gpus(lambda: len(why), Attempts(**why))


AUTO = [InstanceGroup(2, "auto")]


def test_auto_is_every_gpu_that_works_else_the_cpu() -> None:
    works = gpus(g0="", g1="")
    assert list(map(str, works.place(AUTO))) == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
    assert all(device.automatic for device in works.place(AUTO))
    one = gpus(g0="no memory", g1="")
    assert list(map(str, one.place(AUTO))) == ["cuda:1", "cuda:1"]
    none = gpus(g0="no library", g1="no library")
    assert none.place(AUTO) == [CPU, CPU]
    assert gpus().place(AUTO) == [CPU, CPU]


def test_gpus_are_tried_once_and_what_is_wrong_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    attempts = Attempts(g0="no memory", g1="no memory")
    tried = Gpus(lambda: 2, attempts)
    for _ in range(5):
        tried.place(AUTO)
    assert attempts.count == 1
    (warning,) = caplog.records
    assert (warning.__dict__["gpus"], warning.__dict__["why"]) == ("0,1", "no memory")


def test_what_is_asked_for_by_name_is_not_tried() -> None:
    attempts = Attempts(g0="no memory")
    tried = Gpus(lambda: 1, attempts)
    asked = [InstanceGroup(1, "cuda"), InstanceGroup(1, "cuda:3"), InstanceGroup(1, "cpu")]
    assert list(map(str, tried.place(asked))) == ["cuda:0", "cuda:3", "cpu"]
    assert attempts.count == 0


@pytest.mark.parametrize(
    ("visible", "files", "count"),
    [
        (None, [], 0),
        (None, ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], 2),
        ("0", [], 0),
        ("0", ["nvidia0", "nvidia1"], 1),
        ("GPU-1a2b,GPU-3c4d", ["nvidia0", "nvidia1"], 2),
        ("MIG-1a2b,MIG-3c4d", ["nvidia0"], 1),
        ("0", ["nvidiactl"], 0),
        ("", ["nvidia0"], 0),
        ("-1", ["nvidia0"], 0),
        (None, ["dxg"], 1),
        ("0", ["nvhost-gpu"], 1),
    ],
)
def test_gpus_are_those_of_the_machine_that_are_visible(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    files: list[str],
    count: int,
) -> None:
    for name in files:
        (tmp_path / name).touch()
    here = gpus_of_machine(tmp_path)
    monkeypatch.setattr(devices, "gpus_of_machine", lambda: here)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_count() == count


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        ("0,-1,1", 1),
        ("-1,0,1", 0),
        ("2,0,1", 3),
        (" 1 , 0 ", 2),
        ("+1,0", 2),
        ("1,3,0", 1),
        ("7", 0),
        ("0,,1", 1),
        (",0", 0),
        ("   ", 0),
        ("0,all,1", 1),
        ("NoDevFiles", 0),
        ("1abc,0", 2),
        ("0,1,0", 0),
        ("GPU-aa11,GPU-bb", 2),
        ("GPU-bb22,GPU-cc,GPU-aa", 1),
        ("GPU-a", 0),
        ("GPU-aa11,GPU-aa110000", 0),
        ("GPU-aa11,0", 0),
        ("GPU-bb,0", 2),
        ("MIG-1a2b", 1),
        ("MIG-GPU-aa11/3/0,MIG-GPU-bb22/3/0", 1),
    ],
)
def test_the_list_is_read_as_cuda_reads_it(
    monkeypatch: pytest.MonkeyPatch, visible: str, count: int
) -> None:
    monkeypatch.setattr(devices, "gpus_of_machine", lambda: 3)
    uuids = ["GPU-aa110000-01", "GPU-bb220000-02", "GPU-aa220000-03"]
    monkeypatch.setattr(devices, "gpu_uuids", lambda: uuids)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_count() == count


def test_uuids_are_those_that_the_driver_shows(tmp_path: Path) -> None:
    for place, uuid in [("0000:02:00.0", "GPU-bb-2"), ("0000:01:00.0", "GPU-aa-1")]:
        (tmp_path / place).mkdir()
        (tmp_path / place / "information").write_text(
            f"Model: \t\t H100\nIRQ: 12\nGPU UUID: \t {uuid}\nDevice Minor: \t 0\n"
        )
    assert gpu_uuids(tmp_path) == ["GPU-aa-1", "GPU-bb-2"]
    assert gpu_uuids(tmp_path / "none") == []


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_gpu_by_name_where_there_is_none_is_warned_of(
    caplog: pytest.LogCaptureFixture, device: str
) -> None:
    assert list(map(str, gpus().place([InstanceGroup(1, device)]))) == ["cuda:0"]
    (warning,) = caplog.records
    assert (warning.__dict__["device"], "no GPU here" in warning.message) == (device, True)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import sys; sys.exit('the library is not there')", "the library is not there"),
        ("import os; os._exit(3)", "ended with 3"),
        ("import os; os.abort()", "ended with -6"),
        ("print(0); import time; time.sleep(1000)", "timed out"),
        ("print(0); print(1, 'cuMemAlloc_v2 says 2')", "cuMemAlloc_v2 says 2"),
        ("print(0)", "no such device"),
    ],
)
def test_what_is_wrong_with_a_gpu_is_found_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    monkeypatch.setattr(devices, "_TRY", code)
    monkeypatch.setattr(devices, "_GPU_PROBE_TIMEOUT", 0.5)
    assert why in try_gpus(2)[1]


@pytest.mark.skipif(sys.platform != "linux", reason="the driver's library is Linux's")
def test_the_attempt_itself_runs_anywhere() -> None:
    """Here there is a driver or there is none: each device has its answer."""
    assert set(try_gpus(2)) == {0, 1}


def test_what_the_models_library_cannot_use_is_the_cpu_if_auto_has_chosen_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("torch")
    nowhere = 99  # more than any machine has
    assert for_torch(Device("cuda", nowhere, True), "m") == CPU
    assert "GPU cannot be used by the model's library" in caplog.text
    assert for_torch(Device("cuda", nowhere), "m") == Device("cuda", nowhere)
    assert for_torch(CPU, "m") == CPU
    assert cpu_instead(Device("cuda", 0, True), "m", "why") == CPU
