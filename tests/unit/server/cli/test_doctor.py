"""`wherry doctor`: what is found, and when it is wrong."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from wherry.server.cli import doctor, main
from wherry.server.cli.doctor import MIB, Finding


@pytest.mark.parametrize(
    ("finding", "state", "told"),
    [
        (doctor.of_extra("onnx", [], {"onnxruntime": "1.2"}), "ok", "onnxruntime 1.2"),
        (doctor.of_extra("onnx", ["onnxruntime"], {}), "note", "not installed: onnxruntime"),
        (doctor.of_torch("2.13", "", "", 0), "ok", "on the CPU"),
        (doctor.of_torch("2.13", "", "", 1), "wrong", "built without CUDA"),
        (doctor.of_torch("2.13", "12.8", "driver too old", 1), "wrong", "driver too old"),
        (doctor.of_torch("2.13", "12.8", "", 1), "ok", "CUDA 12.8"),
        (doctor.of_memory(8192 * MIB, 4096 * MIB), "ok", "4,096 MiB of 8,192 MiB"),
        (doctor.of_memory(256 * MIB, 200 * MIB), "wrong", "200 MiB of 256 MiB"),
        (doctor.of_memory(None, None), "note", "not known"),
        (doctor.of_processors(8, None), "ok", "8"),
        (doctor.of_processors(8, 2.5), "note", "the time of 2.5"),
        (doctor.of_open_files(1024, 20_000, 4096), "ok", "20,000 at most"),
        (doctor.of_open_files(1024, 2048, 4096), "note", "2,048 at most"),
        (doctor.of_open_files(256, 256, 4096), "wrong", "256 at most"),
        (doctor.of_port("--port", 8000, ""), "ok", "is free"),
        (doctor.of_port("--port", 8000, "in use"), "note", "in use"),
    ],
)
def test_each_fact_is_judged(finding: Finding, state: str, told: str) -> None:
    assert finding.state == state
    assert told in finding.found
    assert bool(finding.remedy) == (state != "ok") or "not known" in told


def test_gpus_are_told_one_by_one() -> None:
    assert [one.state for one in doctor.of_gpus({0: "", 1: "cuInit says 3"}, False)] == [
        "ok",
        "wrong",
    ]
    (none,) = doctor.of_gpus({}, hidden=True)
    assert "CUDA_VISIBLE_DEVICES" in none.found


def test_shared_memory_of_a_container_is_noticed() -> None:
    refused, small = doctor.of_shared_memory(64 * MIB, 60 * MIB, anonymous=False)
    assert (refused.state, small.state) == ("wrong", "note")
    assert "--shm-size" in small.remedy


#: As a driver answers for one H100.
H100 = "0, NVIDIA H100, 550.1, 81559, 80994, 700.00, 700.00, 1980, 16, 16, Enabled, 0, Disabled"


def of_driver(**changed: str) -> list[tuple[str, str, str]]:
    told = dict(zip(doctor.FIELDS, H100.split(", "), strict=True))
    told |= {name.replace("__", "."): value for name, value in changed.items()}
    return [(one.state, one.topic, one.found) for one in doctor.of_driver(told)]


def test_a_gpu_that_is_ready_is_told_without_a_note() -> None:
    assert of_driver() == [
        ("ok", "GPU 0", "NVIDIA H100, driver 550.1, at most 1980 MHz"),
        ("ok", "GPU 0 memory", "80,994 of 81,559 MiB are free"),
        ("ok", "GPU 0 power", "700 of 700 W"),
        ("ok", "GPU 0 link", "16 of 16 lanes"),
        ("ok", "GPU 0 ECC", "Enabled"),
    ]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("memory__free", "4000", ("note", "GPU 0 memory", "4,000 of 81,559 MiB are free")),
        ("power__limit", "350.00", ("note", "GPU 0 power", "350 of 700 W")),
        ("pcie__link__width__current", "8", ("note", "GPU 0 link", "8 of 16 lanes")),
        ("ecc__errors__uncorrected__volatile__total", "3",
         ("wrong", "GPU 0 ECC", "3 uncorrected errors")),
        ("mig__mode__current", "Enabled", ("note", "GPU 0 MIG", "on: it is cut into instances")),
    ],
)  # fmt: skip
def test_what_is_less_than_it_could_be_is_told(
    name: str, value: str, expected: tuple[str, str, str]
) -> None:
    (told,) = set(of_driver(**{name: value})) - set(of_driver())
    assert told == expected


@pytest.mark.parametrize("value", ["[N/A]", "[Not Supported]", "N/A", "", "nan", "[Unknown Error]"])
@pytest.mark.parametrize("field", doctor.FIELDS)
def test_no_field_is_needed(field: str, value: str) -> None:
    told = of_driver(**{field.replace(".", "__"): value})
    assert {state for state, _, _ in told} == {"ok"}
    if field not in ("index", "name", "driver_version"):
        assert value == "" or not any(value in found for _, _, found in told)


def test_a_gpu_that_does_not_answer_any_more_is_wrong() -> None:
    (lost,) = [one for one in of_driver(power__limit="[GPU requires reset]") if one[0] != "ok"]
    assert lost[:2] == ("wrong", "GPU 0")
    assert "[GPU requires reset]" in lost[2]


@pytest.mark.parametrize(
    ("driver", "cuda", "state"),
    [
        ("550.127.05", "12.8", "ok"),
        ("525.60.13", "12.1", "ok"),
        ("470.82", "12.1", "wrong"),
        ("570.86.10", "13.0", "wrong"),
        ("580.65.06", "13.0", "ok"),
        ("550.1", "", "ok"),  # torch without CUDA
        ("", "13.0", "ok"),
        ("[N/A]", "13.0", "ok"),
        ("400.1", "99.0", "ok"),  # not known here
    ],
)
def test_a_driver_is_new_enough_for_the_cuda_of_torch_or_not(
    driver: str, cuda: str, state: str
) -> None:
    found = [one.state for one in doctor.of_versions({"cuda": cuda}, driver)]
    assert found == [state] * (state == "wrong")


@pytest.mark.parametrize(
    ("compiler", "headers", "state", "told"),
    [
        ("/usr/bin/gcc", True, "ok", "by /usr/bin/gcc"),
        ("", True, "note", "no C compiler"),
        ("cc", False, "note", "no Python.h"),
    ],
)
def test_triton_needs_a_compiler_and_headers(
    compiler: str, headers: bool, state: str, told: str
) -> None:
    about = {"triton": True, "compiler": compiler, "headers": headers}
    (finding,) = doctor.of_versions(about, "")
    assert (finding.state, told in finding.found) == (state, True)


def test_what_a_driver_does_not_tell_is_left_out() -> None:
    told = of_driver(power__limit="[N/A]", memory__free="[Not Supported]")
    assert [topic for _, topic, _ in told] == ["GPU 0", "GPU 0 link", "GPU 0 ECC"]


@pytest.mark.parametrize(
    ("capability", "built", "expected"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 9), ["sm_80", "sm_90"], True),
        ((9, 0), ["sm_80"], False),
        ((7, 0), ["sm_75", "sm_80"], False),
        ((12, 0), ["sm_90", "compute_90"], True),
        ((9, 0), ["sm_90a"], True),
        ((10, 0), [], False),
    ],
)
def test_a_build_of_torch_has_kernels_for_a_gpu_or_not(
    capability: tuple[int, int], built: list[str], expected: bool
) -> None:
    told = {"built": built, "apart": [], "gpus": [{"capability": capability, "pinned_gb_s": 50}]}
    (finding,) = doctor.of_torch_gpus(told)
    assert doctor.runs(capability, built) is (finding.state == "ok") is expected


def test_gpus_that_do_not_reach_each_other_are_named() -> None:
    one = {"capability": (9, 0), "pinned_gb_s": 6.0}
    told = {"built": ["sm_90"], "apart": ["0-1", "1-0"], "gpus": [one, one]}
    *slow, peers = doctor.of_torch_gpus(told)
    assert [finding.state for finding in slow] == ["note", "note"]
    assert (peers.state, peers.found) == ("note", "not between 0-1, 1-0")


def test_a_driver_and_a_torch_are_asked_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{H100}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    told = '{"built": ["sm_90"], "apart": [], "gpus": [{"capability": [9, 0], "pinned_gb_s": 50}]}'
    about = '{"cuda": "13.0", "triton": false}'
    monkeypatch.setattr(
        doctor, "_GPU_PROBE", f"print('{about}'); print('a warning'); print('{told}')"
    )
    found = [*doctor.look_at_gpus()]
    assert {one.state for one in found} == {"ok"}  # torch works, as old as the driver may be
    assert found[-1].found == "has kernels for it; 50.0 GB/s from pinned memory"
    monkeypatch.setattr(doctor, "_GPU_PROBE", f"print('{about}'); raise RuntimeError('too old')")
    program.write_text(f"""#!/bin/sh
    case "$1" in *mig*) echo 'Field "mig.mode.current" is not a valid field.'; exit 2;; esac
    echo '{H100.rpartition(",")[0]}'; echo 'WARNING: infoROM is corrupted at gpu 0000:00:1E.0'
    """)
    *read, warning, driver, last = doctor.look_at_gpus()
    assert [one.state for one in read] == ["ok"] * 5
    assert warning.found.startswith("WARNING: infoROM")
    assert "550.1 is too old for CUDA 13.0" in driver.found
    assert last.found == "RuntimeError: too old"
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed: no driver'; exit 9\n")
    (failed,) = doctor.look_at_gpus()
    assert (failed.state, failed.found) == ("note", "NVIDIA-SMI has failed: no driver")
    program.unlink()
    (missing,) = doctor.look_at_gpus()
    assert "nvidia-smi" in missing.found


@pytest.mark.slow
def test_the_command_looks_at_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        main(["doctor", "--json", "--port", str(port)])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"wherry", "memory", "open files"} <= {one["topic"] for one in found}
    (ours,) = [one for one in found if one["topic"] == f"--port {port}"]
    assert ours["state"] == "note"


def test_one_wrong_thing_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Finding("ok", "a", "b"), Finding("wrong", "memory", "none\x1b[2J", "buy some")]
    monkeypatch.setattr(doctor, "look", lambda ports: iter(found))
    assert main(["doctor"]) == 1
    told = capsys.readouterr().out
    assert "WRONG  memory" in told
    assert "buy some" in told
    assert "\x1b" not in told
