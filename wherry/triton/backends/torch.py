"""How does a PyTorch file of a repository run: TorchScript, or a program of torch.export or
AOTInductor?

In threads that share one module for each device. The inputs are the parameters of forward(), named
as there, or `NAME__0`, `NAME__1` by position. Strings are lists of str to TorchScript, those of all
rows of a batch in one. Pickled modules are refused: reading one runs arbitrary code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np

from wherry.core.api import (
    Array,
    BadModelOutput,
    Column,
    Columns,
    ConfigError,
    Device,
    InvalidRequest,
    Signature,
    TensorSpec,
    for_torch,
    gpu_count,
)
from wherry.triton.backends import torch_program
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.backends.shared import Shared, called_with, complete, library, version_file
from wherry.triton.backends.torch_program import Program, place_of
from wherry.triton.repository.triton_config import TritonConfig, TritonInput, TritonOutput

#: The file names of TorchScript and of an exported program.
FILES: Final = ("model.pt", "model.pt2")


class TorchModel(RepositoryModel):
    """A model in a TorchScript or torch.export file. On the CPU its instances are threads that
    share one copy; where there is a GPU they are worker processes, as one that has left the GPU
    unusable must be replaced."""

    in_threads = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._module: Shared[_Module] = Shared()
        #: Of a TorchScript file, for `to_host`.
        self._script: Any = None

    def settings(self) -> dict[str, Any]:
        found = super().settings()
        groups = found["instances"]
        only_cpu = isinstance(groups, list) and all(group.device == "cpu" for group in groups)
        if gpu_count() and not only_cpu:
            found["isolation"] = "process"
        return found

    @classmethod
    def completed(cls, folder: str, version: str, config: TritonConfig) -> TritonConfig:
        """Add the inputs and outputs of a program. TorchScript's own names and shapes are not
        reliable: config.pbtxt must list them."""
        path = version_file(os.path.join(folder, version), config, FILES)
        if torch_program.is_program(path):
            return _completed(config, path)
        for side, tensors in (("input", config.input), ("output", config.output)):
            if not tensors:
                raise ConfigError(
                    f"model {config.name!r}: a TorchScript file does not describe its {side}s: list"
                    " them in config.pbtxt"
                )
        _check_strings(config, lists=True)
        return config

    def take(self) -> bool:
        """True if all instances are on one device: they share this object. Else as for any
        model."""
        return len({group.device for group in self.config().instances}) == 1 or super().take()

    def signature(self, name: str = "") -> Signature:
        found = super().signature(name)

        def as_tensors(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
            return tuple(s if s.form.is_bytes else replace(s, library="torch") for s in specs)

        return replace(found, inputs=as_tensors(found.inputs), outputs=as_tensors(found.outputs))

    def load(self, device: Device) -> None:
        self._module.take(
            lambda: _Module(
                self.folder, self.version, self.inside, str(for_torch(device, self.triton.name))
            )
        )
        self._script = self._module.value.script

    def unload(self) -> None:
        self._script = None
        self._module.give_back()

    def execute(self, **columns: Column) -> Columns:
        batched = self.triton.max_batch_size > 0
        return called_with(self._module.value, columns, self.inside, batched=batched)


class _Module:
    """A loaded file, called with arrays by name. Any thread, also several at once."""

    def __init__(self, folder: str, version: str, config: TritonConfig, device: str) -> None:
        torch: Any = library("torch", config.name, "torch")
        self._torch = torch
        self._config = config
        self._device = torch.device(device)
        self._strings = {one.name for one in config.input if one.data_type == "TYPE_STRING"}
        threads = config.parameters.get("INTRA_OP_THREAD_COUNT")
        if threads is not None:
            torch.set_num_threads(int(threads.string_value))
        path = version_file(os.path.join(folder, version), config, FILES)
        self.script: Any = None
        if torch_program.is_program(path):
            program = _program(path, config.name, self._device)
            self._run: Callable[[Mapping[str, Any]], Sequence[Any]]
            self._run = _ProgramCall(config, program)
            return
        self.script, names = _script(torch, path, self._device, config.name)
        self._order = _places(config.name, config.input, names)
        self._run = self._run_script

    def __call__(self, arrays: Mapping[str, Array]) -> list[Array]:
        with self._torch.no_grad():  # not inference_mode(): the next model may write to it
            found = self._run(arrays)
        batched = self._config.max_batch_size > 0
        rows = len(next(iter(arrays.values()))) if batched and arrays else None
        return [self._as_strings(one, rows) if isinstance(one, list) else one for one in found]

    def _as_strings(self, found: list[str], rows: int | None) -> Array:
        """The strings of all rows as an array with a row each; of no rows as they are."""
        array: Array = np.empty(len(found), np.object_)
        array[:] = found
        if rows is None:
            return array
        if len(found) % rows:
            raise BadModelOutput(
                f"model {self._config.name!r} gave {len(found)} strings for {rows} rows"
            )
        return array.reshape([rows, -1])

    def _run_script(self, arrays: Mapping[str, Array]) -> list[Any]:
        inputs = [
            _texts(self._config.name, name, arrays[name]) if name in self._strings else arrays[name]
            for name in self._order
            if name in arrays
        ]
        return self._tensors(self.script(*inputs))

    def _tensors(self, result: Any) -> list[Any]:
        outputs = self._config.output
        where = f"model {self._config.name!r}"
        if isinstance(result, Mapping):
            missing = [tensor.name for tensor in outputs if tensor.name not in result]
            if missing:
                raise BadModelOutput(
                    f"{where} gave no {', '.join(missing)}; it gave {', '.join(map(str, result))}"
                )
            return [result[tensor.name] for tensor in outputs]
        texts = isinstance(result, list) and all(isinstance(one, str) for one in result)
        results = list(result) if isinstance(result, list | tuple) and not texts else [result]
        places = [place_of(tensor.name, number) for number, tensor in enumerate(outputs)]
        if max(places) >= len(results):
            raise BadModelOutput(f"{where} gave {len(results)} outputs, not {max(places) + 1}")
        return [results[place] for place in places]


class _ProgramCall:
    def __init__(self, config: TritonConfig, program: Program) -> None:
        self._program = program
        places = torch_program.places(config.name, config.input, program.inputs)
        by_place = {place: tensor.name for place, tensor in zip(places, config.input, strict=True)}
        if len(by_place) < len(program.inputs):
            missing = [s.path for place, s in enumerate(program.inputs) if place not in by_place]
            raise ConfigError(
                f"model {config.name!r}: the file has more inputs than config.pbtxt:"
                f" {', '.join(missing)}"
            )
        self._order = [by_place[place] for place in sorted(by_place)]
        self._outputs = torch_program.places(config.name, config.output, program.outputs)
        self._least = program.least
        self._batched = config.max_batch_size > 0

    def __call__(self, arrays: Mapping[str, Array]) -> list[Any]:
        inputs = [arrays[name] for name in self._order]
        rows = len(inputs[0]) if self._batched and inputs else self._least
        if rows < self._least:  # compiled for more: repeats the last row, and cuts that off
            more = self._least - rows
            inputs = [one[[*range(rows), *[rows - 1] * more]] for one in inputs]
        found = self._program.run(inputs)
        chosen = [found[place] for place in self._outputs]
        return [one[:rows] for one in chosen] if rows < self._least else chosen


def _completed(config: TritonConfig, path: str) -> TritonConfig:
    tensors: list[TritonInput | TritonOutput] = [*config.input, *config.output]
    if (
        config.input
        and config.output
        and all(tensor.dims and tensor.data_type != "TYPE_INVALID" for tensor in tensors)
    ):
        _check_strings(config, lists=False)
        return config
    if torch_program.is_package(path):
        raise ConfigError(
            f"model {config.name!r}: a package of AOTInductor does not describe its inputs and"
            " outputs: list them in config.pbtxt, each with data_type and dims"
        )
    program = _program(path, config.name, None)
    found = complete(
        config,
        torch_program.described(config.input, program.inputs, "input", config.name),
        torch_program.described(config.output, program.outputs, "output", config.name),
    )
    _check_strings(found, lists=False)
    return found


def _check_strings(config: TritonConfig, *, lists: bool) -> None:
    """ConfigError for strings that the file does not take: TorchScript takes `lists`."""
    for side, tensors in (("input", config.input), ("output", config.output)):
        for tensor in cast("Sequence[TritonInput | TritonOutput]", tensors):
            dims = tensor.dims if tensor.reshape is None else tensor.reshape.shape
            if tensor.data_type == "TYPE_STRING" and not (lists and len(dims) < 2):
                takes = "TorchScript takes strings as a list, of one dimension"
                raise ConfigError(
                    f"model {config.name!r}: {side} {tensor.name!r}:"
                    f" {takes if lists else 'exported programs take no TYPE_STRING'}"
                )


def _texts(model: str, name: str, array: Array) -> list[str]:
    """Strings as TorchScript takes them. InvalidRequest if they are not UTF-8."""
    flat = array.ravel().tolist()
    try:
        return [one.decode() if isinstance(one, bytes) else str(one) for one in flat]
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"input '{name}' of model '{model}': TorchScript's strings are UTF-8: {error}"
        ) from None


def _program(path: str, model: str, device: Any) -> Program:
    torch: Any = library("torch", model, "torch")
    try:
        return torch_program.open_program(torch, path, device)
    except Exception as error:  # of any type, by what is in the file
        why = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"model {model!r}: {os.path.basename(path)} cannot be loaded: {why}; it must be what"
            " torch.export.save or aoti_compile_and_package wrote"
        ) from error


def _script(
    torch: Any, path: str, device: Any, model: str
) -> tuple[Callable[..., Any], Sequence[str]]:
    try:
        module = torch.jit.load(path, map_location=device).eval()
    except Exception as error:  # of any type, by what is in the file
        raise ConfigError(
            f"model {model!r}: {os.path.basename(path)} cannot be loaded: {error}; it must be"
            " TorchScript (torch.jit.save) or an exported program (torch.export.save, as"
            " model.pt2)"
        ) from error
    return module, [a.name for a in module.forward.schema.arguments if a.name != "self"]


def _places(model: str, inputs: Sequence[TritonInput], names: Sequence[str]) -> list[str]:
    input_names = [tensor.name for tensor in inputs]
    if set(input_names) <= set(names):
        return [name for name in names if name in input_names]
    by_place = {place_of(name, number): name for number, name in enumerate(input_names)}
    if len(by_place) < len(input_names):
        raise ConfigError(
            f"model {model!r}: two inputs have the same place; name them as forward() does"
            f" ({', '.join(names)}), or NAME__0, NAME__1, ..."
        )
    return [by_place[place] for place in sorted(by_place)]
