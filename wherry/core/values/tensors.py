"""How does an array of another library than numpy (torch, CuPy, JAX: a tensor here) pass from one
model to the next?

As it is, on its device, if the code of both is annotated with it and runs in this process: it is a
column like numpy's arrays. Elsewhere it becomes numpy's: `on_host` waits for the device. Nothing
before it does, as what hands tensors over works in the device's default stream, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from wherry.core.values.datatypes import BF16, Datatype, Form, TensorSpec


def is_tensor(value: Any) -> bool:
    return hasattr(type(value), "__dlpack__") and not isinstance(value, np.ndarray)


def is_array_type(kind: type) -> bool:
    """Numpy's, or a tensor's: JAX's public class has only the namespace."""
    return hasattr(kind, "__dlpack__") or (
        hasattr(kind, "__array_namespace__") and not issubclass(kind, np.generic)
    )


def library_of(kind: type) -> str:
    """The name of the library whose array type this is, or is derived from."""
    first = [cls for cls in kind.__mro__ if is_array_type(cls)][-1]
    return first.__module__.partition(".")[0]


def _functions(library: str) -> Any:
    return import_module("jax.numpy" if library == "jax" else library)


def on_host(value: Any) -> Any:
    """A tensor, or a list of them, as numpy's arrays; all else as it is. TypeError for one that is
    sparse."""
    if isinstance(value, list | tuple):
        return [on_host(row) for row in value]
    if not is_tensor(value):
        return value
    if hasattr(value, "detach"):  # torch's; numpy has no bfloat16
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        return value.numpy(force=True)  # what is a conjugate, too
    return value.get() if hasattr(value, "get") else np.asarray(value)  # CuPy's


def for_code(column: Any, library: str) -> Any:
    """A column as code takes it whose arrays are this library's; "": numpy's."""
    first = column[0] if isinstance(column, list) and column else column
    return column if library or not is_tensor(first) else on_host(column)


def as_declared(column: Any, spec: TensorSpec, device: str = "") -> Any:
    """A column as its annotation declares it: tensors of this library, torch's on this device ("":
    where they are). What is one already is not copied."""
    if spec.form is Form.ARRAYS:
        return [_of_library(row, spec, device) for row in column]
    return _of_library(column, spec, device)


def _of_library(value: Any, spec: TensorSpec, device: str) -> Any:
    value = of_library(in_datatype(value, spec.datatype), spec.library)
    if spec.library == "torch":
        value = in_datatype(value.to(device or value.device), spec.datatype)
    return value


def fits_datatype(tensor: Any, datatype: Datatype) -> bool:
    """Are its numbers these, or can torch make them so, where they are, by numpy's rules and
    without a look at their values?"""
    name = _dtype(tensor)
    if library_of(type(tensor)) != "torch":
        return name == ("bfloat16" if datatype is BF16 else datatype.dtype.name)
    try:
        found = np.dtype("float32" if name == "bfloat16" else name)
    except TypeError:
        return False
    integers = {found.kind, datatype.dtype.kind} <= {*"iu"}
    casts = np.can_cast(found, datatype.dtype, "safe" if integers else "same_kind")
    return casts and str(tensor.layout) == "torch.strided"


def in_datatype(value: Any, datatype: Datatype) -> Any:
    """A tensor that `fits_datatype`, or an array, in it. What is so already is not copied."""
    if library_of(type(value)) != "torch":
        return value
    name = "bfloat16" if datatype is BF16 else datatype.dtype.name
    return value.to(getattr(import_module("torch"), name))


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).rpartition(".")[2]


def of_library(value: Any, library: str) -> Any:
    if library_of(type(value)) == library:
        return value
    if is_tensor(value):
        return _functions(library).from_dlpack(value)
    return _functions(library).asarray(np.require(value, requirements=["C", "W"]))


def joined(columns: Sequence[Any], device: str = "") -> Any:
    """The rows of several columns as one, where they are. Torch's that are on several devices come
    to this one ("": to that of the first)."""
    first = next(filter(is_tensor, columns))
    library = library_of(type(first))
    rows = [of_library(column, library) for column in columns]
    if library == "torch" and len({row.device for row in rows}) > 1:
        rows = [row.to(device or first.device) for row in rows]
    try:
        return _functions(library).concatenate(rows)
    except RuntimeError as error:  # numpy's error, as torch's may be of memory, too
        if len({column.shape[1:] for column in rows}) > 1:
            raise ValueError(str(error)) from None
        raise


def own(tensor: Any, *, lent: bool) -> Any:
    """The tensor itself if it is `lent` and no other one has its memory, else a copy, there."""
    if lent and _is_alone(tensor):
        return tensor
    return tensor.clone() if hasattr(tensor, "clone") else tensor.copy()


def view(tensor: Any) -> Any:
    """Another tensor with the same memory: `own` of either is a copy while there are both."""
    return tensor[...]


def _is_alone(tensor: Any) -> bool:
    count = _users(tensor)
    return count is not None and count <= _users(import_module("torch").empty(1))


def _users(tensor: Any) -> Any:
    """How many torch tensors, and more, have this one's memory; None: that is not known."""
    if not hasattr(tensor, "untyped_storage") or tensor.is_inference():
        return None  # what inference_mode() has made, only that may write to
    count: Any = getattr(import_module("torch._C"), "_storage_Use_Count", None)
    address = getattr(tensor.untyped_storage(), "_cdata", None)
    return None if count is None or address is None else count(address)
