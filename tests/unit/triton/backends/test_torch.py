from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import wherry
from wherry.core.instances import devices
from wherry.core.values.errors import BadModelOutput, ConfigError
from wherry.triton.backends.torch import TorchModel
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonInput,
    TritonInstanceGroup,
    TritonOutput,
)
from wherry.triton.repository.validate import problems_of

torch = pytest.importorskip("torch")

# TorchScript is on its way out, and still in use: who runs it need not be told by us.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

LEFT = TritonInput(name="left", data_type="TYPE_FP32", dims=[2])
RIGHT = TritonInput(name="right", data_type="TYPE_FP32", dims=[2])


class Difference(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, left, right):  # type: ignore[no-untyped-def]
        return left - right, left + right


def config(*inputs: TritonInput, outputs: tuple[str, ...] = ("OUT__0", "OUT__1")) -> TritonConfig:
    return TritonConfig(
        name="d",
        backend="pytorch",
        max_batch_size=8,
        input=list(inputs) or [LEFT, RIGHT],
        output=[TritonOutput(name=name, data_type="TYPE_FP32", dims=[2]) for name in outputs],
        instance_group=[TritonInstanceGroup(count=2, kind="KIND_CPU")],
    )


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("script")
    (folder / "1").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(Difference()), folder / "1" / "model.pt")
    return str(folder)


def made(folder: str, triton: TritonConfig) -> TorchModel:
    return TorchModel(folder, "1", TorchModel.completed(folder, "1", triton))


@pytest.mark.parametrize(
    ("gpus", "kind", "isolation"),
    [
        (1, "KIND_GPU", "process"),
        (1, "KIND_AUTO", "process"),
        (1, "KIND_CPU", "thread"),
        (0, "KIND_GPU", "thread"),
    ],
)
def test_where_there_is_a_gpu_a_lost_device_costs_a_worker_not_the_server(
    script: str, monkeypatch: pytest.MonkeyPatch, gpus: int, kind: str, isolation: str
) -> None:
    monkeypatch.setattr(devices, "gpus_of_machine", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    triton = config()
    triton.instance_group = [msgspec.convert({"count": 1, "kind": kind}, TritonInstanceGroup)]

    assert made(script, triton).config().isolation == isolation


def differences(model: TorchModel, names: tuple[str, str]) -> dict[str, list[list[float]]]:
    first, second = names
    with wherry.Runtime(model) as runtime:
        inputs: dict[str, Any] = {
            first: np.array([[5, 5], [1, 1]], np.float32),
            second: np.array([[1, 2], [3, 4]], np.float32),
        }
        outputs = runtime.infer_batch("d", **inputs)
    return {name: np.asarray(column).tolist() for name, column in outputs.items()}


def test_inputs_are_found_by_the_names_in_forward_whatever_their_order(script: str) -> None:
    model = made(script, config(RIGHT, LEFT))
    outputs = differences(model, ("left", "right"))
    assert outputs == {"OUT__0": [[4, 3], [-2, -3]], "OUT__1": [[6, 7], [4, 5]]}


def test_inputs_may_be_named_by_their_place(script: str) -> None:
    second = TritonInput(name="IN__1", data_type="TYPE_FP32", dims=[2])
    first = TritonInput(name="IN__0", data_type="TYPE_FP32", dims=[2])
    outputs = differences(made(script, config(second, first)), ("IN__0", "IN__1"))
    assert outputs["OUT__0"] == [[4, 3], [-2, -3]]


def test_an_output_may_be_picked_by_its_place(script: str) -> None:
    model = made(script, config(outputs=("SUM__1",)))
    assert differences(model, ("left", "right")) == {"SUM__1": [[6, 7], [4, 5]]}


def test_an_output_that_is_not_there_fails_with_its_number(script: str) -> None:
    with pytest.raises(BadModelOutput, match="gave 2 outputs, not 4"):
        differences(made(script, config(outputs=("OUT__3",))), ("left", "right"))


@pytest.mark.slow
def test_an_exported_program_runs_with_any_batch_size(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    rows = torch.export.Dim("rows")
    example = (torch.ones(2, 2), torch.ones(2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            Difference(), example, dynamic_shapes={"left": {0: rows}, "right": {0: rows}}
        )
        torch.export.save(program, tmp_path / "1" / "model.pt2")
        outputs = differences(made(str(tmp_path), config()), ("left", "right"))
    assert outputs["OUT__0"] == [[4, 3], [-2, -3]]


def test_a_pickled_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    torch.save(Difference(), tmp_path / "1" / "model.pt")
    with pytest.raises(wherry.LoadFailed, match="must be TorchScript"):
        differences(made(str(tmp_path), config()), ("left", "right"))


def test_a_configuration_must_list_the_tensors(script: str) -> None:
    with pytest.raises(ConfigError, match="a TorchScript file does not describe its inputs"):
        made(script, TritonConfig(name="d", backend="pytorch"))


def test_no_file_names_what_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no model\.pt or model\.pt2"):
        made(str(tmp_path), config())


class Twice(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x):  # type: ignore[no-untyped-def]
        assert x.dim() == 0
        return x * 2


def test_a_tensor_without_dimensions_goes_in_and_out(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(Twice()), tmp_path / "1" / "model.pt")
    triton = TritonConfig(
        name="d",
        backend="pytorch",
        input=[TritonInput(name="x", data_type="TYPE_FP32")],
        output=[TritonOutput(name="OUT__0", data_type="TYPE_FP32")],
        instance_group=[TritonInstanceGroup(kind="KIND_CPU")],
    )
    assert not list(problems_of(triton))
    with wherry.Runtime(made(str(tmp_path), triton)) as runtime:
        assert runtime.infer("d", x=3.0)["OUT__0"] == 6.0


def test_another_backend_needs_dims() -> None:
    (problem,) = problems_of(
        TritonConfig(
            name="d", backend="python", input=[TritonInput(name="x", data_type="TYPE_FP32")]
        ),
        completed=True,
    )
    assert "it needs dims" in str(problem)


def test_bfloat16_is_computed_and_is_float32_outside(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(Difference()), tmp_path / "1" / "model.pt")
    inputs = [TritonInput(name=n, data_type="TYPE_BF16", dims=[2]) for n in ("left", "right")]
    triton = config(*inputs)
    triton.output = [TritonOutput(name="OUT__1", data_type="TYPE_BF16", dims=[2])]
    found = differences(made(str(tmp_path), triton), ("left", "right"))
    assert found == {"OUT__1": [[6, 7], [4, 5]]}
    with wherry.Runtime(made(str(tmp_path), triton)) as runtime:
        third = np.array([1 / 3, 0], np.float32)
        (rounded, _) = runtime.infer("d", left=third, right=0 * third)["OUT__1"]
    assert rounded == np.float32(0.333984375)  # as bfloat16 has it


class Marked(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, texts: list[str], x: torch.Tensor) -> tuple[list[str], torch.Tensor]:  # type: ignore[name-defined]
        return [text + "!" for text in texts], x + len(texts)


class Echo(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, texts: list[str]) -> list[str]:
        return texts


def of_strings(
    folder: Path, module: Any, dims: list[int], *, x: bool = False, max_batch_size: int = 8
) -> TorchModel:
    (folder / "1").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(module), folder / "1" / "model.pt")
    inputs = [TritonInput(name="texts", data_type="TYPE_STRING", dims=dims)]
    outputs = [TritonOutput(name="TEXTS__0", data_type="TYPE_STRING", dims=dims)]
    if x:
        inputs.append(TritonInput(name="x", data_type="TYPE_FP32", dims=[1]))
        outputs.append(TritonOutput(name="X__1", data_type="TYPE_FP32", dims=[1]))
    triton = TritonConfig(
        name="d",
        backend="pytorch",
        max_batch_size=max_batch_size,
        input=inputs,
        output=outputs,
        instance_group=[TritonInstanceGroup(kind="KIND_CPU")],
    )
    return made(str(folder), triton)


def test_strings_of_all_rows_are_one_list(tmp_path: Path) -> None:
    model = of_strings(tmp_path, Marked(), [2], x=True)
    with wherry.Runtime(model) as runtime:
        texts = [[b"a", "é".encode()], [b"", b"n\0l"], [b"b", b"c"]]
        found = runtime.infer_batch("d", texts=texts, x=np.zeros((3, 1), np.float32))
    assert found["TEXTS__0"] == [[b"a!", "é!".encode()], [b"!", b"n\0l!"], [b"b!", b"c!"]]
    assert np.asarray(found["X__1"]).tolist() == [[6.0]] * 3


@pytest.mark.parametrize(("dims", "max_batch_size"), [([-1], 0), ([1], 8), ([-1], 8)])
def test_an_output_may_be_a_list_of_strings(
    tmp_path: Path, dims: list[int], max_batch_size: int
) -> None:
    with wherry.Runtime(of_strings(tmp_path, Echo(), dims, max_batch_size=max_batch_size)) as r:
        given = [b"a", b"b"] if dims == [-1] else [b"a"]
        assert r.infer("d", texts=given) == {"TEXTS__0": given}
        with pytest.raises(wherry.InvalidRequest, match=r"TorchScript's strings are UTF-8"):
            r.infer("d", texts=[b"\xff"] * len(given))


def test_strings_that_do_not_go_by_rows_are_the_models_fault(tmp_path: Path) -> None:
    class Fewer(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, texts: list[str]) -> list[str]:
            return texts[1:]

    with (
        wherry.Runtime(of_strings(tmp_path, Fewer(), [1])) as runtime,
        pytest.raises(BadModelOutput, match="gave 1 strings for 2 rows"),
    ):
        runtime.infer_batch("d", texts=[[b"a"], [b"b"]])


def test_strings_of_two_dimensions_are_no_list(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TorchScript takes strings as a list, of one dimension"):
        of_strings(tmp_path, Echo(), [2, 2])
