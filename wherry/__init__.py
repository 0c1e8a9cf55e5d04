"""wherry: an inference server and an in-process inference runtime in one small package.

This file is the table of contents. A name is loaded when it is first used, so that
`wherry --help`, and a worker process that needs no server, do not pay for the rest.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as typing says it, without the time that importing typing takes
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

_DATATYPES = [name for name in __all__ if name[-1].isdigit() or name in ("BOOL", "BYTES")]

#: Where each name lives; those left out are errors.
_HOMES = {
    **dict.fromkeys(_DATATYPES, "wherry.core.values.datatypes"),
    **dict.fromkeys(
        ("Audio", "AudioSpec", "File", "FileSpec", "ImageSpec"), "wherry.core.values.media"
    ),
    "Client": "wherry.core.client",
    "Device": "wherry.core.models.model",
    "Image": "wherry.core.values.image_bytes",
    "InstanceGroup": "wherry.core.models.config",
    "Model": "wherry.core.models.model",
    "ModelConfig": "wherry.core.models.config",
    "ModelSettings": "wherry.core.models.settings",
    "Runtime": "wherry.core.runtime.runtime",
    **dict.fromkeys(
        ("QueuePolicy", "SequenceBatching", "SequenceControl", "SequenceState"),
        "wherry.core.models.config",
    ),
    "SequenceStep": "wherry.core.values.request",
    "Server": "wherry.server.server",
    "Step": "wherry.core.models.step_model",
    "StepModel": "wherry.core.models.step_model",
    "asgi": "wherry.server.asgi",
    "gather": "wherry.core.pipelines.pipeline",
    "in_order": "wherry.core.pipelines.pipeline",
    "model": "wherry.core.models.model",
    "pipeline": "wherry.core.models.model",
    "progress": "wherry.core.observability.progress",
    "split_text": "wherry.core.pipelines.pipeline",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        import difflib

        close = difflib.get_close_matches(name, __all__, n=1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise AttributeError(f"module 'wherry' has no attribute {name!r}{meant}")
    value = getattr(importlib.import_module(_HOMES.get(name, "wherry.core.values.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
