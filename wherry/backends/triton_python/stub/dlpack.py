"""How are tensors exchanged with torch, CuPy and others without a copy?

By DLPack's C structures: numpy's own support lacks bfloat16 and refuses the capsules that Triton's
models pass around.
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


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [
    ("tensor", _Tensor),
    ("context", ctypes.c_void_p),
    ("deleter", _DELETER),
]

_api = ctypes.pythonapi
_CAPSULE_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_is_valid = _api.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_pointer = _api.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_rename = _api.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
# By address, not as an object: a capsule being freed must not get another reference.
_raw_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)

#: Exported memory by the address of its structure, until the consumer calls the deleter.
_lent: dict[int, tuple[Any, ...]] = {}


@_DELETER  # type: ignore[untyped-decorator]
def _given_back(managed: Any) -> None:
    _lent.pop(ctypes.addressof(managed.contents), None)


@_CAPSULE_DELETER  # type: ignore[untyped-decorator]
def _never_taken(capsule: int) -> None:
    """Free the tensor of a capsule that was never consumed."""
    if _raw_is_valid(capsule, b"dltensor"):
        _lent.pop(_raw_pointer(capsule, b"dltensor") or 0, None)


def capsule_of(memory: Any, datatype: str, shape: Any, owner: Any = None) -> Any:
    """A DLPack capsule of a contiguous array's memory. The array and `owner` are kept alive while
    it is used."""
    if datatype not in TYPES:
        raise TypeError(f"DLPack has no {datatype}")
    managed = _Managed()
    dims = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    code, bits = TYPES[datatype]
    managed.tensor = _Tensor(
        memory.ctypes.data, _Device(CPU, 0), len(shape), _Type(code, bits, 1), dims, None, 0
    )
    managed.deleter = _given_back
    address = ctypes.addressof(managed)
    _lent[address] = (managed, dims, memory, owner)
    return _new(address, b"dltensor", ctypes.cast(_never_taken, ctypes.c_void_p))


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
    managed = ctypes.cast(_pointer(source, b"dltensor"), ctypes.POINTER(_Managed))
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
    owner.__array_interface__ = {
        "version": 3,
        "data": ((tensor.data or 0) + tensor.byte_offset, False),
        "shape": tuple(shape),
        "strides": strides,
        "typestr": "|u1" if itemsize == 1 else f"<u{itemsize}",
    }
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
