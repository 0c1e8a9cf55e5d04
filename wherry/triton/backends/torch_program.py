"""What is in a model.pt2, and how is it called?

A program of torch.export, or a package that AOTInductor has compiled: machine code for one kind of
device. Both take and return flat lists of tensors, whatever containers forward() takes and returns.
A tensor's names are those of Triton's PyTorch backend: by its place (INPUT__0, OUTPUT__1), or by
its path (ARGS[0], KWARGS[scale], RESULT[scores][0]). A program of torch.export also knows the names
of parameters (x).
"""

from __future__ import annotations

import os
import re
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from wherry.core.api import ConfigError
from wherry.triton.backends.shared import FileTensor
from wherry.triton.repository.triton_config import TritonDataType, TritonInput, TritonOutput

#: The datatypes of config.pbtxt by torch's names.
TYPES: Final[dict[str, TritonDataType]] = {
    "bool": "TYPE_BOOL", "uint8": "TYPE_UINT8", "uint16": "TYPE_UINT16", "uint32": "TYPE_UINT32",
    "uint64": "TYPE_UINT64", "int8": "TYPE_INT8", "int16": "TYPE_INT16", "int32": "TYPE_INT32",
    "int64": "TYPE_INT64", "float16": "TYPE_FP16", "float32": "TYPE_FP32",
    "float64": "TYPE_FP64", "bfloat16": "TYPE_BF16",
}  # fmt: skip
#: Reading a program uses a global: one file at a time.
_reading = threading.Lock()


@dataclass(frozen=True, slots=True)
class Slot:
    #: ARGS[0], KWARGS[scale], RESULT[scores][0]
    path: str
    #: The parameter's name, or the key of a dictionary that is returned; "": not known.
    name: str = ""
    #: torch's name of the dtype, and the shape with -1 for any size; None: not known.
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A loaded program. Any thread, also several at once."""

    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    #: From a flat list of inputs to one of outputs.
    run: Callable[[list[Any]], Sequence[Any]]
    #: Fewer rows than this are refused.
    least: int = 0


def is_program(path: str) -> bool:
    """Whether a file is for this module, by its name or by what is in it. Else: TorchScript."""
    parts = ("/models/model.json", "serialized_exported_program.json")
    return (
        path.endswith(".pt2")
        or is_package(path)
        or any(name.endswith(parts) for name in _members(path))
    )


def is_package(path: str) -> bool:
    return any("/data/aotinductor/" in name for name in _members(path))


def _members(path: str) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return []


def open_program(torch: Any, path: str, device: Any) -> Program:
    """Load a model.pt2 for a device; None, for the CPU, is for programs of torch.export. Raises
    whatever torch raises for what is in the file."""
    return _package(path, device) if is_package(path) else _exported(torch, path, device)


def places(
    model: str, tensors: Sequence[TritonInput | TritonOutput], slots: Sequence[Slot]
) -> list[int]:
    """Where each tensor of a configuration is among the slots. ConfigError if one is not there."""
    found = [_place(tensor.name, number, slots) for number, tensor in enumerate(tensors)]
    names = ", ".join(slot.name or slot.path for slot in slots)
    for tensor, place in zip(tensors, found, strict=True):
        if place >= len(slots):
            raise ConfigError(
                f"model {model!r}: {tensor.name!r} is not in the file; it has {names}"
            )
    if len(set(found)) < len(found):
        raise ConfigError(
            f"model {model!r}: two tensors have the same place in the file; it has {names}"
        )
    return found


def _place(name: str, number: int, slots: Sequence[Slot]) -> int:
    for place, slot in enumerate(slots):
        if name in (slot.path, slot.name):
            return place
    return place_of(name, number)


def place_of(name: str, number: int) -> int:
    """The position of NAME__2 is 2; other names keep their position in the configuration."""
    match = re.fullmatch(r".+__(\d+)", name)
    return int(match.group(1)) if match else number


def described(
    tensors: Sequence[TritonInput | TritonOutput], slots: Sequence[Slot], side: str, model: str
) -> list[FileTensor]:
    """The slots in the names of a configuration, or in their own if it names none."""
    found = places(model, tensors, slots)
    names = {place: tensor.name for place, tensor in zip(found, tensors, strict=True)}
    return [
        FileTensor(
            names.get(place) or slot.name or f"{side.upper()}__{place}", *_known(slot, model)
        )
        for place, slot in enumerate(slots)
        if place in names or not names or side == "input"
    ]


def _known(slot: Slot, model: str) -> tuple[TritonDataType, tuple[int, ...]]:
    if slot.dtype is None or slot.shape is None or slot.dtype not in TYPES:
        raise ConfigError(
            f"model {model!r}: the file does not describe {slot.name or slot.path}: list all inputs"
            " and outputs in config.pbtxt"
        )
    return TYPES[slot.dtype], slot.shape


# torch.export


def _exported(torch: Any, path: str, device: Any) -> Program:
    with _reading:
        program = torch.export.load(path)
    values = _values(torch, program)
    graph = program.graph_signature
    names = [str(name) for name in graph.user_inputs]
    input_values = [values.get(name) for name in graph.user_inputs]
    output_values = [values.get(name) for name in graph.user_outputs]
    into, out = program.call_spec.in_spec, program.call_spec.out_spec
    tree = import_module("torch.utils._pytree")
    if device is not None:  # also the tensors that the code makes
        import_module("torch.export.passes").move_to_device_pass(program, device)
    module = program.module()

    def run(flat: list[Any]) -> list[Any]:
        args, keywords = tree.tree_unflatten(flat, into)
        return list(tree.tree_leaves(module(*args, **keywords)))

    inputs = [
        _slot(path, value, name)
        for path, value, name in zip(_paths(tree, into, "INPUT"), input_values, names, strict=True)
    ]
    outputs = [
        _slot(path, value, _key(path))
        for path, value in zip(_paths(tree, out, "RESULT"), output_values, strict=True)
    ]
    return Program(tuple(inputs), tuple(outputs), run)


def _values(torch: Any, program: Any) -> dict[str, Any]:
    """The tensors of the graph, without their contents, by the names of their nodes."""
    found = {node.name: node.meta.get("val") for node in program.graph.nodes}
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def _slot(path: str, value: Any, name: str) -> Slot:
    if value is None:
        return Slot(path, name)
    shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    return Slot(path, name, str(value.dtype).removeprefix("torch."), shape)


def _paths(tree: Any, spec: Any, root: str) -> Iterator[str]:
    """The path of each leaf, as Triton writes it: ARGS[2][key], KWARGS[scale], RESULT[0]."""
    numbered = tree.tree_unflatten(list(range(spec.num_leaves)), spec)
    for keys, _ in tree.tree_flatten_with_path(numbered)[0]:
        words = [str(getattr(key, "key", getattr(key, "idx", key))) for key in keys]
        start = root
        if root == "INPUT":
            start = "ARGS" if words.pop(0) == "0" else "KWARGS"
        yield start + "".join(f"[{word}]" for word in words)


def _key(path: str) -> str:
    """The key of a dictionary that a program returns: `scores` of RESULT[scores]."""
    match = re.fullmatch(r"RESULT\[([^\]\d][^\]]*)\]", path)
    return match.group(1) if match else ""


# AOTInductor


def _package(path: str, device: Any) -> Program:
    # Without this, compiled code reads inputs of a wrong shape as if it were right.
    os.environ.setdefault("AOTI_RUNTIME_CHECK_INPUTS", "1")
    index = -1 if device.index is None else device.index
    model = import_module("torch._inductor").aoti_load_package(path, device_index=index)
    made_for = model.loader.get_metadata().get("AOTI_DEVICE_KEY", "cpu")
    if made_for != device.type:
        raise ValueError(f"it was compiled for {made_for}, and the instance is on {device.type}")
    tree = import_module("torch.utils._pytree")
    into, out = [tree.treespec_loads(text) for text in model.loader.get_call_spec()]
    inputs = [Slot(name) for name in _paths(tree, into, "INPUT")]
    outputs = [Slot(name, _key(name)) for name in _paths(tree, out, "RESULT")]
    run = model.loader.run
    return Program(tuple(inputs), tuple(outputs), lambda flat: list(run(flat)), _least(path))


def _least(path: str) -> int:
    """The rows that the code was compiled for at least, by the checks of its inputs."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".wrapper.cpp")]
        return least_rows(archive.read(names[0]).decode()) if names else 0


def least_rows(code: str) -> int:
    least = re.findall(r'dim value is too small at 0, "\s*<<[^;]*?>= (\d+)', code)
    return max(map(int, least), default=0)
