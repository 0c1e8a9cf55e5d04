"""wherry: an inference server and an in-process inference runtime in one small package.

This file is the table of contents. A name is loaded when it is first used, so that
`wherry --help`, and a worker process that needs no server, do not pay for the rest.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without the time that importing typing takes
if TYPE_CHECKING:
    from typing import Any

    from PIL.Image import Image

    from wherry.core.client import Client
    from wherry.core.models.config import (
        InstanceGroup,
        ModelConfig,
        QueuePolicy,
        SequenceBatching,
        SequenceControl,
        SequenceState,
    )
    from wherry.core.models.model import Device, Model, model, pipeline
    from wherry.core.models.settings import ModelSettings
    from wherry.core.models.step_model import Step, StepModel
    from wherry.core.observability.progress import progress
    from wherry.core.pipelines.pipeline import gather, in_order, split_text
    from wherry.core.runtime.runtime import Runtime
    from wherry.core.values.datatypes import (
        BF16,
        BOOL,
        BYTES,
        FP16,
        FP32,
        FP64,
        INT8,
        INT16,
        INT32,
        INT64,
        UINT8,
        UINT16,
        UINT32,
        UINT64,
    )
    from wherry.core.values.errors import (
        BadModelOutput,
        Cancelled,
        ConfigError,
        DeadlineExceeded,
        ExecutionTimeout,
        InvalidRequest,
        LoadFailed,
        MayHaveRun,
        ModelFailed,
        ModelNotFound,
        ModelNotReady,
        Overloaded,
        PoisonRequest,
        QueueFull,
        QueueTimeout,
        RequestTooLarge,
        SequenceLost,
        Unsupported,
        WherryError,
        WorkerDied,
    )
    from wherry.core.values.media import Audio, AudioSpec, File, FileSpec, ImageSpec
    from wherry.core.values.request import SequenceStep
    from wherry.server.asgi import asgi
    from wherry.server.server import Server

__version__ = "0.1.0"

__all__ = [
    "BF16",
    "BOOL",
    "BYTES",
    "FP16",
    "FP32",
    "FP64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "Audio",
    "AudioSpec",
    "BadModelOutput",
    "Cancelled",
    "Client",
    "ConfigError",
    "DeadlineExceeded",
    "Device",
    "ExecutionTimeout",
    "File",
    "FileSpec",
    "Image",
    "ImageSpec",
    "InstanceGroup",
    "InvalidRequest",
    "LoadFailed",
    "MayHaveRun",
    "Model",
    "ModelConfig",
    "ModelFailed",
    "ModelNotFound",
    "ModelNotReady",
    "ModelSettings",
    "Overloaded",
    "PoisonRequest",
    "QueueFull",
    "QueuePolicy",
    "QueueTimeout",
    "RequestTooLarge",
    "Runtime",
    "SequenceBatching",
    "SequenceControl",
    "SequenceLost",
    "SequenceState",
    "SequenceStep",
    "Server",
    "Step",
    "StepModel",
    "Unsupported",
    "WherryError",
    "WorkerDied",
    "__version__",
    "asgi",
    "gather",
    "in_order",
    "model",
    "pipeline",
    "progress",
    "split_text",
]

#: Where each name lives, in this package; those left out are errors.
_HOMES = {
    name: home
    for home, names in {
        "core.client": "Client",
        "core.models.config": "InstanceGroup ModelConfig QueuePolicy SequenceBatching"
        " SequenceControl SequenceState",
        "core.models.model": "Device Model model pipeline",
        "core.models.settings": "ModelSettings",
        "core.models.step_model": "Step StepModel",
        "core.observability.progress": "progress",
        "core.pipelines.pipeline": "gather in_order split_text",
        "core.runtime.runtime": "Runtime",
        "core.values.datatypes": "BF16 BOOL BYTES FP16 FP32 FP64 INT8 INT16 INT32 INT64 UINT8"
        " UINT16 UINT32 UINT64",
        "core.values.image_bytes": "Image",
        "core.values.media": "Audio AudioSpec File FileSpec ImageSpec",
        "core.values.request": "SequenceStep",
        "server.asgi": "asgi",
        "server.server": "Server",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        import difflib

        # Python's own suggestion is only in its traceback, which `wherry serve` does not print.
        close = difflib.get_close_matches(name, __all__, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AttributeError(f"module 'wherry' has no attribute {name!r}{hint}")
    value = getattr(
        importlib.import_module(f"wherry.{_HOMES.get(name, 'core.values.errors')}"), name
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
