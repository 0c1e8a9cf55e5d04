"""How does a model.py for Triton's Python backend become a wherry model?

Unchanged: its code runs in a separate process for each instance, with a module named like Triton's.
None of it runs in the server's process.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import weakref
from typing import Any

from wherry.core.api import (
    ConfigError,
    CustomMetrics,
    Device,
    Instance,
    LoadFailed,
    ModelConfig,
    refuse_while_importing,
)
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.python.calls import Host
from wherry.triton.python.instance import PythonInstance
from wherry.triton.python.process import PythonProcess, interpreter
from wherry.triton.python.stub.text import sent
from wherry.triton.repository.json_form import from_json, to_json
from wherry.triton.repository.normalise import normalised
from wherry.triton.repository.triton_config import TritonConfig


class PythonBackendModel(RepositoryModel):
    #: It may call other models, which are therefore unloaded after it.
    calls_others = True

    def __init__(
        self, folder: str, version: str, config: TritonConfig, *, program: str | None = None
    ) -> None:
        super().__init__(folder, version, config, program=program)
        #: The metrics that the model defines, over all its instances.
        self.custom_metrics = CustomMetrics()
        self._spare = _Spare()
        # If the model is never loaded, the process ends with this object.
        weakref.finalize(self, self._spare.close)

    @classmethod
    def completed(cls, folder: str, version: str, config: TritonConfig) -> TritonConfig:
        model = cls.opened(folder, version, config)
        model.close()
        return model.triton

    @classmethod
    def opened(
        cls, folder: str, version: str, config: TritonConfig, *, program: str | None = None
    ) -> PythonBackendModel:
        """The model as completed by its auto_complete_config(), with the process that ran it."""
        model = cls(folder, version, config, program=program)
        start = model._start(complete=True)
        process = model._new_process(f"{model._name}_0")
        try:
            text = process.open(start)
            if text is not None:
                model.triton = from_json(text, what=f"auto_complete_config of {model._name!r}")
        except BaseException:
            process.close()
            raise
        model._spare.keep(process)
        return model

    def settings(self) -> dict[str, Any]:
        # Running execute() again for half a batch could repeat side effects, which Triton never
        # does.
        return {**super().settings(), "isolation": "process", "isolate_errors": False}

    def make_instance(self, name: str, device: Device, config: ModelConfig, host: Host) -> Instance:
        return PythonInstance(name, device, self, config, host)

    def execute(self, *args: Any, **inputs: Any) -> Any:
        raise NotImplementedError  # PythonInstance does

    def take_process(self, instance: str) -> tuple[PythonProcess, dict[str, Any] | None]:
        """A process for an instance, and the message that opens it (None if it is open)."""
        refuse_while_importing(self._name)
        if instance.endswith("_0") and (spare := self._spare.take()) is not None:
            return spare, None
        start = self._start(complete=False)
        return self._new_process(instance), start

    def arguments(self, instance: str, device: Device) -> dict[str, str]:
        """The arguments of initialize(), with the path as it is sent."""
        kinds = {group.kind for group in self.triton.instance_group}
        kind = "MODEL" if kinds == {"KIND_MODEL"} else "CPU" if device.kind == "cpu" else "GPU"
        return {
            "model_config": json.dumps(to_json(self.triton)),
            "model_instance_kind": kind,
            "model_instance_device_id": str(device.index),
            "model_instance_name": self.instance_name(instance),
            "model_repository": sent(self.folder),
            "model_version": self.version,
            "model_name": self._name,
        }

    def instance_name(self, instance: str) -> str:
        """Triton's name of an instance: the group's name and the number in it."""
        number = int(instance.rpartition("_")[2])
        for group in normalised(self.triton).instance_group:
            here = (group.count or 1) * max(1, len(group.gpus))
            if number < here:
                return f"{group.name}_{number}"
            number -= here
        return instance

    def close(self) -> None:
        """End the process that completed the configuration, unless an instance has taken it."""
        self._spare.close()

    @property
    def _name(self) -> str:
        return self.triton.name or os.path.basename(self.folder)

    def _new_process(self, instance: str) -> PythonProcess:
        if sys.platform == "win32":
            raise ConfigError(f"model {self._name!r}: Python models need a Unix system")
        parameter = self.triton.parameters.get("EXECUTION_ENV_PATH")
        path = "" if parameter is None else parameter.string_value
        return PythonProcess(interpreter(self._name, self.folder, path), self._name, instance)

    def _start(self, *, complete: bool) -> dict[str, Any]:
        """The message that makes a process import the model's file."""
        file_name = self.triton.default_model_filename or "model.py"
        file = os.path.join(self.version_folder, file_name)
        module = f"{self.version}.{os.path.splitext(file_name)[0]}"
        folders = [self.version_folder, self.folder]
        if self.program is not None and not os.path.isfile(file):
            file = self.program
            module = f"{os.path.basename(os.path.dirname(file))}.model"
            folders = [os.path.dirname(file), os.path.dirname(os.path.dirname(file))]
        if not os.path.isfile(file):
            raise LoadFailed(f"version {self.version} has no {file_name}")
        return {
            "model": self._name,
            "file": sent(file),
            "module": module,
            "path": [sent(os.path.abspath(folder)) for folder in folders],
            "config": json.dumps(to_json(self.triton)) if complete else None,
            "log_level": logging.root.level,
            "model_dir": sent(os.path.abspath(self.version_folder)),
            "variables": {
                name: sent(os.environ.get(name, "")) for name in ("PYTHONPATH", "LD_LIBRARY_PATH")
            },
        }


class _Spare:
    """A process that waits to become an instance's. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: PythonProcess | None = None

    def keep(self, process: PythonProcess) -> None:
        with self._lock:
            self._process = process

    def take(self) -> PythonProcess | None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None and process.process.has_ended():
            process.close()
            return None
        return process

    def close(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()
