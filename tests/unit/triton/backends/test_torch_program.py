from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wherry
from wherry.core.values.errors import ConfigError
from wherry.triton.backends.load import backend_for
from wherry.triton.backends.shared import FileTensor
from wherry.triton.backends.torch_program import (
    Slot,
    described,
    is_package,
    is_program,
    least_rows,
    open_program,
    places,
)
from wherry.triton.repository.triton_config import TritonConfig, TritonInput, TritonOutput

SLOTS = (
    Slot("ARGS[0]", "x", "float32", (-1, 3)),
    Slot("ARGS[1][key]", "options_key", "int64", (-1, 1)),
    Slot("KWARGS[scale]", "scale", "float16", (-1,)),
)


def inputs(*names: str) -> list[TritonInput]:
    return [TritonInput(name=name) for name in names]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("x", "options_key", "scale"), [0, 1, 2]),
        (("scale", "x", "options_key"), [2, 0, 1]),
        (("KWARGS[scale]", "ARGS[1][key]", "ARGS[0]"), [2, 1, 0]),
        (("INPUT__2", "INPUT__0", "INPUT__1"), [2, 0, 1]),
        (("these", "are", "others"), [0, 1, 2]),
    ],
)
def test_a_tensor_is_found_by_its_path_its_name_or_its_place(
    names: tuple[str, ...], found: list[int]
) -> None:
    assert places("m", inputs(*names), SLOTS) == found


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("INPUT__3",), "'INPUT__3' is not in the file; it has x, options_key, scale"),
        (("x", "INPUT__0"), "two tensors have the same place"),
    ],
)
def test_a_tensor_that_is_not_there_is_refused(names: tuple[str, ...], told: str) -> None:
    with pytest.raises(ConfigError, match=f"model 'm': {told}"):
        places("m", inputs(*names), SLOTS)


def test_what_the_file_knows_is_told_in_the_names_of_the_configuration() -> None:
    found = described(inputs("INPUT__1"), SLOTS, "input", "m")

    assert [tensor.name for tensor in found] == ["x", "INPUT__1", "scale"]
    assert found[1] == FileTensor("INPUT__1", "TYPE_INT64", (-1, 1))


def test_without_names_a_tensor_is_called_by_its_place() -> None:
    slots = [Slot("RESULT[0]", "", "float32", (2,)), Slot("RESULT[1]", "", "bool", ())]

    assert [one.name for one in described([], slots, "output", "m")] == ["OUTPUT__0", "OUTPUT__1"]


def test_a_file_that_does_not_say_what_a_tensor_is_needs_a_configuration() -> None:
    with pytest.raises(ConfigError, match=r"does not describe RESULT\[0\]: list all inputs"):
        described([], [Slot("RESULT[0]")], "output", "m")


CODE = """
    if (arg3_1_size[0] < 2) {
        ss << "input_handles[1]: dim value is too small at 0, "
           << "expected it to be >= 2, " << "but got: "
"""


def test_the_rows_that_a_package_takes_at_least_are_in_the_checks_of_its_code() -> None:
    assert least_rows(CODE) == 2
    assert least_rows("") == 0


@pytest.mark.parametrize("content", [None, b"", b"nothing that is zipped"])
def test_what_is_no_archive_is_no_package(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "model.pt2"
    if content is not None:
        file.write_bytes(content)

    assert not is_package(str(file))


@pytest.mark.parametrize(
    ("member", "expected"),
    [
        ("m/models/model.json", True),
        ("m/data/aotinductor/model/x.so", True),
        ("m/code/__torch__.py", False),
    ],
)
def test_a_program_of_another_name_is_told_by_what_is_in_it(
    tmp_path: Path, member: str, expected: bool
) -> None:
    with zipfile.ZipFile(tmp_path / "net.pt", "w") as archive:
        archive.writestr(member, "")
    assert is_program(str(tmp_path / "net.pt")) is expected
    assert is_program("net.pt2")


def test_a_package_has_compiled_code(tmp_path: Path) -> None:
    file = tmp_path / "model.pt2"
    for name, expected in (("a/models/model.json", False), ("a/data/aotinductor/m/x.so", True)):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(name, "")
        assert is_package(str(file)) is expected


# With torch: y = x * scale, and the options back.


def exported(folder: Path) -> Any:
    torch = pytest.importorskip("torch")

    class Scaled(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x, options, *, scale):  # type: ignore[no-untyped-def]
            return {"y": x * scale, "rest": (options["key"] + 1,)}

    rows = torch.export.Dim("rows")
    example = torch.ones(3, 2), {"key": torch.ones(3, 1, dtype=torch.int64)}
    sizes = {"x": {0: rows}, "options": {"key": {0: rows}}, "scale": {0: rows}}
    (folder / "1").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(
            Scaled(), example, {"scale": torch.ones(3, 1)}, dynamic_shapes=sizes
        )


def answers(model: Any, names: tuple[str, str, str], rows: int) -> dict[str, Any]:
    x, key, scale = names
    values: dict[str, Any] = {
        x: np.ones((rows, 2), np.float32),
        key: np.full((rows, 1), 4),
        scale: np.full((rows, 1), 3, np.float32),
    }
    with wherry.Runtime(model) as runtime:
        found = runtime.infer_batch("m", **values)
    return {name: np.asarray(column).tolist() for name, column in found.items()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_program_says_what_it_takes_and_gives(tmp_path: Path) -> None:
    program = exported(tmp_path)
    import torch

    torch.export.save(program, tmp_path / "1" / "model.pt2")
    model = backend_for(str(tmp_path), "1", TritonConfig(name="m"))

    assert model.triton.max_batch_size == 4
    assert [(one.name, one.data_type, one.dims) for one in model.triton.input] == [
        ("x", "TYPE_FP32", [2]),
        ("options_key", "TYPE_INT64", [1]),
        ("scale", "TYPE_FP32", [1]),
    ]
    assert [(one.name, one.dims) for one in model.triton.output] == [
        ("y", [2]),
        ("OUTPUT__1", [1]),
    ]
    found = answers(model, ("x", "options_key", "scale"), 1)
    assert found == {"y": [[3, 3]], "OUTPUT__1": [[5]]}

    wrong = TritonConfig(name="m", input=[TritonInput(name="x", data_type="TYPE_INT32")])
    with pytest.raises(ConfigError, match=r"more inputs than config\.pbtxt: options_key, scale"):
        backend_for(str(tmp_path), "1", wrong)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_the_code_of_a_program_makes_is_on_its_device_too(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Numbered(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x + torch.arange(2, dtype=torch.float32, device=x.device)

    program = torch.export.export(Numbered(), (torch.zeros(3, 2),))
    torch.export.save(program, tmp_path / "model.pt2")
    there = torch.device("meta")
    opened = open_program(torch, str(tmp_path / "model.pt2"), there)
    (found,) = opened.run([torch.zeros(3, 2, device=there)])
    assert found.device == there


COMPILE = """
import sys, torch
from torch._inductor import aoti_compile_and_package
program, package = sys.argv[1:]
aoti_compile_and_package(torch.export.load(program), package_path=package)
"""


def declared(x: str, key: str, scale: str) -> list[TritonInput]:
    return [
        TritonInput(name=x, data_type="TYPE_FP32", dims=[2]),
        TritonInput(name=key, data_type="TYPE_INT64", dims=[1]),
        TritonInput(name=scale, data_type="TYPE_FP32", dims=[1]),
    ]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor compiles with g++")
def test_a_package_that_was_compiled_runs_with_tritons_names(tmp_path: Path) -> None:
    program = exported(tmp_path)
    import torch

    torch.export.save(program, tmp_path / "program.pt2")
    paths_of_both = [str(tmp_path / "program.pt2"), str(tmp_path / "1" / "model.pt2")]
    # In a process of its own: the compiler keeps processes for as long as its own lasts.
    subprocess.run([sys.executable, "-c", COMPILE, *paths_of_both], check=True)
    with pytest.raises(ConfigError, match="does not describe its inputs and outputs: list them"):
        backend_for(str(tmp_path), "1", TritonConfig(name="m", platform="torch_aoti"))

    # Compiled for two rows or more: one is filled up.
    by_place = TritonConfig(
        name="m", platform="torch_aoti", max_batch_size=4,
        input=declared("INPUT__0", "INPUT__1", "INPUT__2"),
        output=[TritonOutput(name="OUTPUT__1", data_type="TYPE_INT64", dims=[1])],
    )  # fmt: skip
    model = backend_for(str(tmp_path), "1", by_place)
    found = answers(model, ("INPUT__0", "INPUT__1", "INPUT__2"), 1)
    assert found == {"OUTPUT__1": [[5]]}

    paths = ("ARGS[0]", "ARGS[1][key]", "KWARGS[scale]")
    named = TritonConfig(
        name="m", platform="torch_aoti", max_batch_size=8, input=declared(*paths),
        output=[TritonOutput(name="RESULT[rest][0]", data_type="TYPE_INT64", dims=[1])],
    )  # fmt: skip
    model = backend_for(str(tmp_path), "1", named)
    assert answers(model, paths, 3) == {"RESULT[rest][0]": [[5], [5], [5]]}
