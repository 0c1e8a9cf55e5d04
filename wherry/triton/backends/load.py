"""Which backend runs a model of a repository?

A backend is imported by name when the first model needs it: most need an optional library, and the
one of ensembles is in a higher layer. Packages bring others (the entry point group of BACKENDS).
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from wherry.core.api import ConfigError, Plugins, gpu_count
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.repository.layout import is_name
from wherry.triton.repository.normalise import is_ensemble
from wherry.triton.repository.schema import BadConfig, is_blank, unfilled
from wherry.triton.repository.triton_config import TritonConfig
from wherry.triton.repository.validate import problems_of

log = logging.getLogger("wherry")

_OWN: Final = {
    "python": "wherry.triton.python.model:PythonBackendModel",
    "onnxruntime": "wherry.triton.backends.onnx:OnnxModel",
    "pytorch": "wherry.triton.backends.torch:TorchModel",
    "openvino": "wherry.triton.backends.openvino:OpenVinoModel",
    "fil": "wherry.triton.backends.fil:FilModel",
    "vllm": "wherry.llm.engine.vllm_backend:VllmBackendModel",
    "ensemble": "wherry.triton.ensemble:EnsembleModel",
}
#: Subclasses of RepositoryModel by the backend's name in config.pbtxt.
BACKENDS: Final = Plugins("backend", RepositoryModel, _OWN, only_classes=True)

#: The backends of the older field `platform`.
PLATFORMS: Final = {
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "libtorch": "pytorch",
    "torch_aoti": "pytorch",
    "ensemble": "ensemble",
}

_AS_ONNX: Final = 'make it ONNX (tf2onnx, paddle2onnx do that), and set backend: "onnxruntime"'
_PLAN: Final = (
    "a plan fits one GPU type and one TensorRT: serve the ONNX file that it was built from with"
    ' backend: "onnxruntime" (its gpu_execution_accelerator "tensorrt" builds the plan again)'
)
_CHECKPOINT: Final = (
    'serve the checkpoint itself: backend: "vllm" with its model.json, or `wherry serve llm:FOLDER`'
)
#: What to do with a model of a backend or platform that is not here.
INSTEAD: Final = {
    **dict.fromkeys(("tensorrt", "tensorrt_plan"), _PLAN),
    **dict.fromkeys(("tensorflow", "tensorflow_graphdef", "tensorflow_savedmodel"), _AS_ONNX),
    **dict.fromkeys(("paddle", "fastdeploy", "stateful", "onnx"), _AS_ONNX),
    **dict.fromkeys(("tensorrtllm", "fastertransformer"), _CHECKPOINT),
    "dali": 'write the pipeline as a model.py (backend: "python"), where nvidia-dali does the same',
}
#: Files of such backends.
_FILES_OF_OTHERS: Final = {
    "model.plan": "tensorrt",
    "model.savedmodel": "tensorflow",
    "model.graphdef": "tensorflow_graphdef",
    "model.dali": "dali",
    "model.pdmodel": "paddle",
}

#: The backend by the model's file, if the configuration names none.
FILES: Final = {
    "model.py": "python",
    "model.onnx": "onnxruntime",
    "model.pt": "pytorch",
    "model.pt2": "pytorch",
    "model.xml": "openvino",
    "xgboost.json": "fil",
    "xgboost.ubj": "fil",
    "xgboost.model": "fil",
    "checkpoint.tl": "fil",
    "model.txt": "fil",
}


#: How a pointer of Git LFS begins.
_POINTER: Final = b"version https://git-lfs.github.com/spec/"


def backend_for(
    folder: str,
    version: str,
    config: TritonConfig,
    *,
    auto_complete: bool = True,
    backend_directory: str | None = None,
    default_max_batch_size: int | None = None,
) -> RepositoryModel:
    """One version of a model, not loaded yet, with its configuration completed by its backend.

    Python-based backends are in `backend_directory`, in folders of their names. A model whose
    file and not whose configuration shows that it takes batches takes `default_max_batch_size`
    rows; None: its backend's default. Blocks: completing may read the model's file or run its code
    in a process. Raises ConfigError.
    """
    backend = backend_name(config, os.path.join(folder, version))
    program = _program(backend, backend_directory)
    cls = _imported("python" if program else backend, config.name)
    if backend == "ensemble":
        config = msgspec.structs.replace(config, backend="", platform="ensemble")
    else:
        config = msgspec.structs.replace(config, backend=backend)
    if backend != "python" and (pointers := _pointers(os.path.join(folder, version))):
        raise ConfigError(
            f"model {config.name!r}: Git LFS has only left a pointer in place of"
            f" {', '.join(pointers)}: run `git lfs pull` in the repository"
        )
    opened = cls.opened if auto_complete else cls
    model: RepositoryModel = opened(folder, version, config, program=program)
    if default_max_batch_size and not config.max_batch_size and model.triton.max_batch_size:
        model.triton.max_batch_size = default_max_batch_size
    if problems := list(problems_of(model.triton, completed=True)):
        raise BadConfig(f"{config.name}: {problem}" for problem in problems)
    if model.requires_gpus and not gpu_count():
        log.warning(
            "instance_group requests a GPU and this machine has none, using the CPU",
            extra={"model": config.name},
        )
    return model


def backend_name(config: TritonConfig, version_folder: str) -> str:
    """The backend that the configuration names, else the one of the model's file, else the end of
    the model's name."""
    if is_ensemble(config):
        return "ensemble"
    if config.backend:
        return config.backend
    if config.platform:
        return PLATFORMS.get(config.platform, config.platform)
    known = {**FILES, **_FILES_OF_OTHERS}
    if backend := _by_file(known, config, version_folder):
        return backend
    theirs = _files_of_packages()
    if backend := _by_file(theirs, config, version_folder):
        return backend
    if suffix := config.name.partition(".")[2]:
        return suffix  # as in Triton, where a folder may be called model.dali
    files = [config.default_model_filename] if config.default_model_filename else [*FILES, *theirs]
    raise ConfigError(
        f"model {config.name!r}: it names no backend, and version"
        f" {os.path.basename(version_folder)} has none of {', '.join(files)}; set backend to one"
        f" of {', '.join(BACKENDS)}"
    )


def _by_file(known: Mapping[str, str], config: TritonConfig, version_folder: str) -> str:
    named = config.default_model_filename
    for name in [named] if named else known:
        if os.path.exists(os.path.join(version_folder, name)):
            for file, backend in known.items():
                if os.path.splitext(file)[1] == os.path.splitext(name)[1]:
                    return backend
    return ""


def _files_of_packages() -> dict[str, str]:
    """As FILES, of packages. One that cannot be loaded is passed over."""
    found: dict[str, str] = {}
    for name in BACKENDS:
        if name not in BACKENDS.own:
            try:
                found = {**dict.fromkeys(BACKENDS.load(name).files, name), **found}
            except ConfigError as error:
                log.warning("backend is passed over", extra={"why": str(error)})
    return found


def unknown_backend(name: str) -> str:
    """The error message for a backend that is not here: what to do instead of it, or the closest
    known names."""
    if name in INSTEAD:
        return f"backend {name!r} is not here: {INSTEAD[name]}"
    if is_blank(name):
        return unfilled(name, "the name of a backend")
    if close := difflib.get_close_matches(name, BACKENDS, n=1):
        return f"unknown backend {name!r}; did you mean {close[0]!r}?"
    return (
        f"unknown backend {name!r}; known are: {', '.join(BACKENDS)}; one in Python is found by"
        f" --backend-directory, in {name}/model.py; for a compiled one write a model.py"
    )


def not_here(
    folder: str, config: TritonConfig, versions: Sequence[int], backend_directory: str | None
) -> str | None:
    """What to do with a model whose backend runs elsewhere only, though it has other problems, too.
    None if its backend is here, or unknown."""
    try:
        backend = backend_name(config, os.path.join(folder, str(max(versions, default=1))))
    except ConfigError:
        return None
    if backend in BACKENDS or _program(backend, backend_directory):
        return None
    return unknown_backend(backend)


def _program(backend: str, backend_directory: str | None) -> str | None:
    # A client may name the backend in a load request: it must not leave the directory.
    if backend_directory is None or backend in BACKENDS or not is_name(backend):
        return None
    program = os.path.join(backend_directory, backend, "model.py")
    return program if os.path.isfile(program) else None


def _pointers(folder: str) -> list[str]:
    pointers = []
    for entry in os.scandir(folder) if os.path.isdir(folder) else ():
        if entry.is_file() and entry.stat().st_size < 1024:
            with open(entry.path, "rb") as file:
                if file.read(len(_POINTER)) == _POINTER:
                    pointers.append(entry.name)
    return sorted(pointers)


def _imported(backend: str, model: str) -> Any:
    if backend not in BACKENDS:
        raise ConfigError(f"model {model!r}: {unknown_backend(backend)}")
    try:
        return BACKENDS.load(backend)
    except ConfigError as error:
        raise ConfigError(f"model {model!r}: {error}") from error.__cause__
