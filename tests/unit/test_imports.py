"""What `import wherry` loads, and which names it has."""

import resource
import subprocess
import sys

import pytest

import wherry

pytestmark = pytest.mark.slow  # each starts a process

HEAVY = {
    "torch", "grpc", "matplotlib", "ray", "transformers", "onnxruntime", "prometheus_client",
    "rich", "tokenizers",
}  # fmt: skip

PUBLIC = {
    "BF16", "BOOL", "BYTES", "FP16", "FP32", "FP64", "INT8", "INT16", "INT32", "INT64", "UINT8",
    "UINT16", "UINT32", "UINT64", "BadModelOutput", "Cancelled", "Client", "ConfigError",
    "DeadlineExceeded", "Device", "ExecutionTimeout", "InstanceGroup", "InvalidRequest",
    "LoadFailed", "MayHaveRun", "Model", "ModelConfig", "ModelFailed", "ModelNotFound",
    "ModelNotReady", "ModelSettings",
    "Overloaded", "PoisonRequest", "QueueFull", "QueuePolicy", "QueueTimeout",
    "SequenceBatching", "SequenceControl",
    "SequenceLost", "SequenceState", "SequenceStep",
    "RequestTooLarge", "Runtime", "Server", "Step", "StepModel", "Unsupported",
    "WherryError", "WorkerDied", "__version__", "asgi", "gather", "in_order", "model", "pipeline",
    "progress", "split_text", "Audio", "AudioSpec", "File", "FileSpec", "Image", "ImageSpec",
}  # fmt: skip


def loaded_by(code: str) -> set[str]:
    """The modules of a fresh interpreter; its CPU time is printed, machines differ too much."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('\\n'.join(sys.modules))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{code!r}: {cpu * 1000:.0f} ms CPU")  # noqa: T201 - shown by pytest -s
    return set(out.stdout.split())


@pytest.mark.parametrize(
    "code", ["import wherry", "from wherry import *", "import wherry; wherry.Server"]
)
def test_import_wherry_loads_nothing_heavy(code: str) -> None:
    assert not {name.partition(".")[0] for name in loaded_by(code)} & HEAVY


def test_a_name_is_loaded_when_it_is_used() -> None:
    assert "numpy" not in loaded_by("import wherry")
    used = loaded_by("import wherry\n@wherry.model\ndef m(x: list[str]) -> list[str]: return x")
    assert "numpy" in used
    assert "wherry.server.server" not in used


def test_pillow_is_loaded_for_the_models_that_name_it() -> None:
    model = "import wherry\n@wherry.model\ndef m(x: {0}) -> {0}: return x"
    assert not loaded_by(model.format("wherry.File")) & {"PIL", "soundfile"}
    assert not loaded_by(model.format("wherry.Audio")) & {"PIL", "soundfile"}
    assert "PIL" in loaded_by(model.format("wherry.Image"))


def test_import_wherry_leaves_logging_alone() -> None:
    code = (
        "import wherry, logging; wherry.Server; "
        "assert not logging.root.handlers and not logging.getLogger('wherry').handlers"
    )
    loaded_by(code)


def test_the_public_names_are_these_and_all_are_there() -> None:
    assert set(wherry.__all__) == PUBLIC
    assert len(wherry.__all__) == len(PUBLIC)
    for name in wherry.__all__:
        assert getattr(wherry, name) is not None
    assert set(wherry.__all__) <= set(dir(wherry))
    with pytest.raises(AttributeError, match="has no attribute 'Nope'"):
        wherry.Nope  # noqa: B018


def test_no_submodule_hides_the_decorator() -> None:
    code = (
        "import wherry.core.runtime.runtime, wherry.core.models.model, wherry\n"
        "assert callable(wherry.model), wherry.model\n"
        "from wherry import model\nassert callable(model)"
    )
    loaded_by(code)


def test_serving_imports_no_client() -> None:
    assert "wherry.core.client.client" not in loaded_by("import wherry.server.cli.serve")
