from __future__ import annotations

from pathlib import Path

import pytest

from wherry.core.instances import devices
from wherry.core.values.errors import ConfigError
from wherry.triton.backends.load import backend_for, backend_name, not_here, unknown_backend
from wherry.triton.ensemble import EnsembleModel
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonDynamicBatching,
    TritonEnsembling,
    TritonEnsemblingStep,
    TritonInput,
    TritonInstanceGroup,
    TritonOutput,
)


@pytest.mark.parametrize(
    ("config", "file", "backend"),
    [
        (TritonConfig(backend="python"), "", "python"),
        (TritonConfig(platform="onnxruntime_onnx"), "", "onnxruntime"),
        (TritonConfig(platform="pytorch_libtorch"), "", "pytorch"),
        (TritonConfig(platform="libtorch"), "", "pytorch"),
        (TritonConfig(platform="tensorrt_plan"), "", "tensorrt_plan"),
        (TritonConfig(platform="ensemble"), "", "ensemble"),
        (TritonConfig(ensemble_scheduling=TritonEnsembling()), "", "ensemble"),
        (TritonConfig(), "model.py", "python"),
        (TritonConfig(), "model.onnx", "onnxruntime"),
        (TritonConfig(), "model.pt", "pytorch"),
        (TritonConfig(default_model_filename="net.onnx"), "net.onnx", "onnxruntime"),
    ],
)
def test_the_backend_is_what_the_configuration_or_the_file_says(
    tmp_path: Path, config: TritonConfig, file: str, backend: str
) -> None:
    if file:
        (tmp_path / file).touch()

    assert backend_name(config, str(tmp_path)) == backend


def test_a_name_of_two_parts_ends_with_the_backend(tmp_path: Path) -> None:
    """As in Triton: nothing else says what `model.dali` is."""
    assert backend_name(TritonConfig(name="model.dali"), str(tmp_path)) == "dali"
    (tmp_path / "model.onnx").touch()
    assert backend_name(TritonConfig(name="model.dali"), str(tmp_path)) == "onnxruntime"


def test_what_runs_elsewhere_only_is_told_though_the_model_has_no_version(tmp_path: Path) -> None:
    def told(platform: str = "", backend: str = "") -> str | None:
        config = TritonConfig(name="m", platform=platform, backend=backend)
        return not_here(str(tmp_path), config, (), None)

    assert "ONNX file" in str(told(platform="tensorrt_plan"))
    assert "${b} is not filled in" in str(told(backend="${b}"))
    assert "--backend-directory, in mine/model.py" in str(told(backend="mine"))
    assert told(backend="python") is None
    assert told() is None


def test_a_model_that_says_nothing_is_refused_with_what_could_be_said(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"model 'm': it names no backend, .* has none of model.py"
    ):
        backend_for(str(tmp_path), "1", TritonConfig(name="m"))


@pytest.mark.parametrize(
    ("backend", "why"),
    [("pyhton", "did you mean 'python'"), ("abacus", "known are: python, onnxruntime")],
)
def test_an_unknown_backend_is_refused(tmp_path: Path, backend: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown backend '{backend}'; {why}"):
        backend_for(str(tmp_path), "1", TritonConfig(name="m", backend=backend))


@pytest.mark.parametrize(
    ("backend", "platform", "instead"),
    [
        ("tensorrt", "", "ONNX file that it was built from"),
        ("", "tensorrt_plan", "ONNX file that it was built from"),
        ("tensorflow", "tensorflow_graphdef", "tf2onnx"),
        ("", "tensorflow_savedmodel", "tf2onnx"),
        ("fastdeploy", "", "paddle2onnx"),
        ("fastertransformer", "", "wherry serve llm:FOLDER"),
        ("dali", "", "model.py"),
    ],
)
def test_a_backend_of_public_repositories_says_what_to_do_instead(
    backend: str, platform: str, instead: str
) -> None:
    found = backend_name(TritonConfig(backend=backend, platform=platform), "")
    told = unknown_backend(found)
    assert told.startswith(f"backend {found!r} is not here: ")
    assert instead in told


@pytest.mark.parametrize(("file", "backend"), [("model.plan", "tensorrt"), ("model.dali", "dali")])
def test_a_file_alone_says_what_to_do_instead(tmp_path: Path, file: str, backend: str) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / file).touch()

    with pytest.raises(ConfigError, match=f"model 'm': backend '{backend}' is not here: "):
        backend_for(str(tmp_path), "1", TritonConfig(name="m"))


def test_a_python_based_backend_is_a_program_in_its_folder(tmp_path: Path) -> None:
    program = tmp_path / "backends" / "mine" / "model.py"
    program.parent.mkdir(parents=True)
    program.write_text("class TritonPythonModel: ...")
    folder = str(program.parents[1])

    model = backend_for(
        str(tmp_path),
        "1",
        TritonConfig(name="m", backend="mine"),
        auto_complete=False,
        backend_directory=folder,
    )
    assert model.program == str(program)
    assert model.triton.backend == "mine"


@pytest.mark.parametrize("backend", ["../mine", "../backends/mine", "{}/mine", ".mine"])
def test_a_backend_is_no_path(tmp_path: Path, backend: str) -> None:
    program = tmp_path / "mine" / "model.py"
    program.parent.mkdir(parents=True)
    program.write_text("class TritonPythonModel: ...")
    with pytest.raises(ConfigError, match="unknown backend"):
        backend_for(
            str(tmp_path),
            "1",
            TritonConfig(name="m", backend=backend.format(tmp_path)),
            backend_directory=str(tmp_path / "backends"),
        )


def test_an_ensemble_has_its_platform_and_no_backend(tmp_path: Path) -> None:
    tensor = {"data_type": "TYPE_FP32", "dims": [1]}
    config = TritonConfig(
        name="e",
        input=[TritonInput(name="i", **tensor)],  # type: ignore[arg-type]
        output=[TritonOutput(name="o", **tensor)],  # type: ignore[arg-type]
        ensemble_scheduling=TritonEnsembling(
            step=[TritonEnsemblingStep(model_name="m", input_map={"x": "i"}, output_map={"y": "o"})]
        ),
    )

    model = backend_for(str(tmp_path), "1", config)

    assert isinstance(model, EnsembleModel)
    assert (model.triton.platform, model.triton.backend) == ("ensemble", "")


def test_what_makes_no_sense_once_it_is_complete_is_refused(tmp_path: Path) -> None:
    config = TritonConfig(
        name="m",
        platform="ensemble",
        max_batch_size=2,
        dynamic_batching=TritonDynamicBatching(preferred_batch_size=[4]),
    )

    with pytest.raises(ConfigError) as caught:
        backend_for(str(tmp_path), "1", config)
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize("gpus", [[], [0, 1]])
def test_a_model_for_gpus_runs_on_the_cpu_where_there_are_none(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    gpus: list[int],
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text("class TritonPythonModel: ...")
    tensors = {"data_type": "TYPE_FP32", "dims": [1]}
    config = TritonConfig(
        name="m",
        backend="python",
        input=[TritonInput(name="INPUT0", **tensors)],  # type: ignore[arg-type]
        output=[TritonOutput(name="OUTPUT0", **tensors)],  # type: ignore[arg-type]
        instance_group=[TritonInstanceGroup(kind="KIND_GPU", gpus=gpus, count=2)],
    )

    model = backend_for(str(tmp_path), "1", config, auto_complete=False)

    assert [group.device for group in model.config().instances] == ["cpu"] * max(1, len(gpus))
    assert "requests a GPU and this machine has none" in caplog.text
    monkeypatch.setattr(devices, "gpus_of_machine", lambda: 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert {group.device.partition(":")[0] for group in model.config().instances} == {"cuda"}


def test_a_pointer_that_git_lfs_left_is_told(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    )

    with pytest.raises(
        ConfigError, match=r"model 'm': .* pointer in place of model\.onnx: run `git"
    ):
        backend_for(str(tmp_path), "1", TritonConfig(name="m", backend="onnxruntime"))
