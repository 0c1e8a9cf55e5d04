"""How are tensors exchanged with torch, CuPy and others without a copy?

By DLPack's C structures: numpy's own support lacks bfloat16 and refuses the capsules that Triton's
models pass around. It needs numpy 1.22.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

CPU = 1
_CPU_PINNED = 3

#: DLPack's type (code, bits) of each datatype.
TYPES = {
    "INT8": (0, 8),
    "INT16": (0, 16),
    "INT32": (0, 32),
    "INT64": (0, 64),
    "UINT8": (1, 8),
    "UINT16": (1, 16),
    "UINT32": (1, 32),
    "UINT64": (1, 64),
    "FP16": (2, 16),
    "FP32": (2, 32),
    "FP64": (2, 64),
    "BF16": (4, 16),
    "BOOL": (6, 8),
}
_NAMES = {code: name for name, code in TYPES.items()}


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("index", ctypes.c_int)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_Managed._fields_ = [
    ("tensor", _Tensor),
    ("context", ctypes.c_void_p),
    ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))),
]

_api = ctypes.pythonapi
_is_valid = _api.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_pointer = _api.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_rename = _api.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


class _Exported:
    """Memory that is lent, as the base of an array: keeps its array and `owner` alive."""

    def __init__(self, memory: Any, owner: Any, shape: Any, itemsize: int) -> None:
        self._held = (memory, owner)
        self.__array_interface__ = _interface(memory.ctypes.data, shape, itemsize)


def capsule_of(memory: Any, datatype: str, shape: Any, owner: Any = None) -> Any:
    """A DLPack capsule of a contiguous array's memory. The array and `owner` are kept alive while
    it is used."""
    if datatype not in TYPES:
        raise TypeError(f"DLPack has no {datatype}")
    code, bits = TYPES[datatype]
    # numpy's capsule, with our type: its deleter is in C. One in Python could not run, and would
    # replace the exception, where a consumer frees a tensor while an exception is raised.
    capsule = np.asarray(_Exported(memory, owner, shape, bits // 8)).__dlpack__()
    _managed(capsule).contents.tensor.dtype.code = code
    return capsule


def _managed(capsule: Any) -> Any:
    return ctypes.cast(_pointer(capsule, b"dltensor"), ctypes.POINTER(_Managed))


def _interface(address: int, shape: Any, itemsize: int, strides: Any = None) -> dict[str, Any]:
    return {
        "version": 3,
        "data": (address, False),
        "shape": tuple(shape),
        "strides": strides,
        "typestr": "|u1" if itemsize == 1 else f"<u{itemsize}",
    }


class _Owner:
    """Imported memory, returned to its producer when its last array is freed."""

    def __init__(self, managed: Any, capsule: Any) -> None:
        self._managed = managed
        self._capsule = capsule  # renamed as used: it frees nothing itself
        self.__array_interface__: dict[str, Any] = {}

    def __del__(self) -> None:
        deleter = self._managed.contents.deleter
        if deleter:
            deleter(self._managed)


def memory_of(source: Any) -> tuple[str, list[int], Any]:
    """The datatype, shape and memory (contiguous, uint8) of a capsule or an object with
    `__dlpack__`. Copied only if not contiguous or on a GPU."""
    if hasattr(source, "__dlpack__"):
        kind = source.__dlpack_device__()[0] if hasattr(source, "__dlpack_device__") else CPU
        if int(kind) not in (CPU, _CPU_PINNED):
            source = _to_cpu(source)
        source = source.__dlpack__()
    if not _is_valid(source, b"dltensor"):
        raise TypeError("from_dlpack needs an unused DLPack capsule, or an object with __dlpack__")
    managed = _managed(source)
    tensor = managed.contents.tensor
    if tensor.device.kind not in (CPU, _CPU_PINNED):
        raise TypeError("a DLPack capsule of a GPU cannot be taken: give the tensor itself")
    datatype = _NAMES.get((tensor.dtype.code, tensor.dtype.bits))
    if datatype is None or tensor.dtype.lanes != 1:
        raise TypeError(
            f"DLPack type (code {tensor.dtype.code}, {tensor.dtype.bits} bits) has no datatype here"
        )
    _rename(source, b"used_dltensor")
    owner = _Owner(managed, source)
    shape = [int(tensor.shape[i]) for i in range(tensor.ndim)]
    itemsize = tensor.dtype.bits // 8
    strides = None
    if tensor.strides:
        strides = tuple(int(tensor.strides[i]) * itemsize for i in range(tensor.ndim))
    if 0 in shape:
        return datatype, shape, np.empty(0, np.uint8)
    address = (tensor.data or 0) + tensor.byte_offset
    owner.__array_interface__ = _interface(address, shape, itemsize, strides)
    array = np.ascontiguousarray(np.asarray(owner))
    return datatype, shape, array.reshape(-1).view(np.uint8)


def _to_cpu(source: Any) -> Any:
    """A GPU tensor copied to the CPU by its own library."""
    if hasattr(source, "cpu"):
        return source.cpu()
    torch = sys.modules.get("torch")
    if torch is not None:
        return torch.from_dlpack(source).cpu()
    raise TypeError(f"a {type(source).__name__} on a GPU must be moved to the CPU first")
