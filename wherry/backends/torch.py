"""How does a TorchScript or torch.export file of a repository run?

In threads that share one module for each device. The inputs are the parameters of forward(), named
as there, or `NAME__0`, `NAME__1` by position. Pickled modules are refused: reading one runs
arbitrary code.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
import numpy as np

from wherry.backends.repository_model import RepositoryModel
from wherry.backends.shared import Shared
from wherry.backends.tensors import from_model, to_model
from wherry.instances.devices import for_torch
from wherry.models.model import Device
from wherry.repository.triton_config import TritonConfig, TritonDynamicBatching, TritonInput
from wherry.values.errors import BadModelOutput, ConfigError
from wherry.values.request import Array, Column, Columns

#: The file names of TorchScript and of an exported program.
FILES: Final = ("model.pt", "model.pt2")

#: torch.export.load uses a global while it reads: one file at a time.
_reading = threading.Lock()


class TorchModel(RepositoryModel):
    """A model in a TorchScript or torch.export file. Its instances on one device are threads that
    share one copy."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._module: Shared[_Module] = Shared()

    @classmethod
    def completed(cls, folder: str, version: str, config: TritonConfig) -> TritonConfig:
        """Require inputs and outputs in config.pbtxt: the file's own names and shapes are not
        reliable."""
        if config.platform == "torch_aoti":
            raise ConfigError(
                f"model {config.name!r}: platform 'torch_aoti': what AOTInductor has compiled is"
                " not supported; save the program with torch.export.save, or as TorchScript"
            )
        model_file(folder, version, config)
        for side, tensors in (("input", config.input), ("output", config.output)):
            if not tensors:
                raise ConfigError(
                    f"model {config.name!r}: a PyTorch file does not say its {side}s: list them in"
                    " config.pbtxt"
                )
            for tensor in tensors:
                if tensor.data_type in ("TYPE_STRING", "TYPE_BF16"):
                    raise ConfigError(
                        f"model {config.name!r}: {side} {tensor.name!r}: PyTorch files take no"
                        f" {tensor.data_type}"
                    )
        if config.max_batch_size > 1 and not (config.dynamic_batching or config.sequence_batching):
            return msgspec.structs.replace(config, dynamic_batching=TritonDynamicBatching())
        return config

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "isolation": "thread"}

    def take(self) -> bool:
        """True if all instances are on one device: they share this object. Else as for any
        model."""
        return len({group.device for group in self.config().instances}) == 1 or super().take()

    def load(self, device: Device) -> None:
        self._module.take(
            lambda: _Module(
                self.folder, self.version, self.inside, str(for_torch(device, self.triton.name))
            )
        )

    def unload(self) -> None:
        self._module.give_back()

    def execute(self, **columns: Column) -> Columns:
        batched = self.triton.max_batch_size > 0
        arrays = {
            tensor.name: to_model(columns[tensor.name], tensor, batched)
            for tensor in self.inside.input
            if tensor.name in columns
        }
        results = self._module.value(arrays)
        return {
            tensor.name: from_model(result, tensor, batched, self.triton.name)
            for tensor, result in zip(self.inside.output, results, strict=True)
        }


class _Module:
    """A loaded file, called with arrays by name. Any thread, also several at once."""

    def __init__(self, folder: str, version: str, config: TritonConfig, device: str) -> None:
        import torch

        self._torch = torch
        self._config = config
        self._device = torch.device(device)
        threads = config.parameters.get("INTRA_OP_THREAD_COUNT")
        if threads is not None:
            torch.set_num_threads(int(threads.string_value))
        path = model_file(folder, version, config)
        self._forward, names = _load(torch, path, self._device, config.name)
        self._order = _places(config.name, config.input, names)

    def __call__(self, arrays: Mapping[str, Array]) -> list[Array]:
        torch = self._torch
        inputs = [
            torch.from_numpy(np.require(arrays[name], requirements="C")).to(self._device)
            for name in self._order
            if name in arrays
        ]
        with torch.inference_mode():
            result = self._forward(*inputs)
        return [cast(Array, tensor.cpu().numpy()) for tensor in self._tensors(result)]

    def _tensors(self, result: Any) -> list[Any]:
        """The outputs as tensors, in the order of the configuration."""
        outputs = self._config.output
        where = f"model {self._config.name!r}"
        if isinstance(result, Mapping):
            missing = [tensor.name for tensor in outputs if tensor.name not in result]
            if missing:
                raise BadModelOutput(
                    f"{where} gave no {', '.join(missing)}; it gave {', '.join(map(str, result))}"
                )
            return [result[tensor.name] for tensor in outputs]
        results = list(result) if isinstance(result, list | tuple) else [result]
        places = [_place(tensor.name, number) for number, tensor in enumerate(outputs)]
        if max(places) >= len(results):
            raise BadModelOutput(f"{where} gave {len(results)} outputs, not {max(places) + 1}")
        return [results[place] for place in places]


def model_file(folder: str, version: str, config: TritonConfig) -> str:
    names = (config.default_model_filename,) if config.default_model_filename else FILES
    for name in names:
        path = os.path.join(folder, version, name)
        if os.path.isfile(path):
            return path
    raise ConfigError(f"model {config.name!r}: version {version} has no {' or '.join(names)}")


def _load(
    torch: Any, path: str, device: Any, model: str
) -> tuple[Callable[..., Any], Sequence[str]]:
    """The file's function, and its parameter names if the file has them."""
    try:
        if path.endswith(".pt2"):
            with _reading:
                program = torch.export.load(path)
            names = list(program.graph_signature.user_inputs)
            return program.module().to(device), names
        module = torch.jit.load(path, map_location=device).eval()
    except Exception as error:  # of any type, by what is in the file
        raise ConfigError(
            f"model {model!r}: {os.path.basename(path)} cannot be loaded: {error}; it must be"
            " TorchScript (torch.jit.save) or an exported program (torch.export.save, as"
            " model.pt2)"
        ) from error
    return module, [a.name for a in module.forward.schema.arguments if a.name != "self"]


def _places(model: str, inputs: Sequence[TritonInput], names: Sequence[str]) -> list[str]:
    """The inputs in the order of forward()'s parameters."""
    given = [tensor.name for tensor in inputs]
    if set(given) <= set(names):
        return [name for name in names if name in given]
    by_place = {_place(name, number): name for number, name in enumerate(given)}
    if len(by_place) < len(given):
        raise ConfigError(
            f"model {model!r}: two inputs have the same place; name them as forward() does"
            f" ({', '.join(names)}), or NAME__0, NAME__1, ..."
        )
    return [by_place[place] for place in sorted(by_place)]


def _place(name: str, number: int) -> int:
    """The position of NAME__2 is 2; other names keep their position in the configuration."""
    match = re.fullmatch(r".+__(\d+)", name)
    return int(match.group(1)) if match else number
