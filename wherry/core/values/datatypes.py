"""What are the datatypes of the V2 protocol, and how does an annotation name one with a shape?

`FP32[3, 224, 224]` in an annotation is one row's shape, without the batch dimension; -1 or None
is a dimension of any size; `FP32` alone is one number a row.

numpy has no bfloat16: a BF16 tensor is float32 in Python (exact on the way in, rounded to nearest
even on the way out), as tritonclient does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_origin

import numpy as np
import numpy.typing as npt

from wherry.core.values.media import MediaSpec

Buffer = bytes | bytearray | memoryview


Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Datatype:
    """A datatype of the V2 protocol: its wire name, numpy dtype and bytes for one element."""

    name: str
    dtype: np.dtype[np.generic]
    #: Bytes of an element on the wire; 0 for BYTES, whose elements vary.
    itemsize: int

    def __getitem__(self, shape: int | tuple[int | None, ...] | None) -> TensorType:
        dims = shape if isinstance(shape, tuple) else (shape,)
        return TensorType(self, tuple(-1 if d is None else d for d in dims))

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class TensorType:
    """A datatype with the shape of one row: the marker in `Annotated[np.ndarray, ...]`."""

    datatype: Datatype
    shape: Shape

    def __post_init__(self) -> None:
        if any(d < -1 for d in self.shape):
            raise ValueError(f"shape {self.shape} must hold sizes >= 0, or -1 (None) for any size")


def _datatype(name: str, dtype: npt.DTypeLike, itemsize: int | None = None) -> Datatype:
    numpy_dtype: np.dtype[np.generic] = np.dtype(dtype)
    return Datatype(name, numpy_dtype, numpy_dtype.itemsize if itemsize is None else itemsize)


BOOL = _datatype("BOOL", np.bool_)
UINT8 = _datatype("UINT8", np.uint8)
UINT16 = _datatype("UINT16", np.uint16)
UINT32 = _datatype("UINT32", np.uint32)
UINT64 = _datatype("UINT64", np.uint64)
INT8 = _datatype("INT8", np.int8)
INT16 = _datatype("INT16", np.int16)
INT32 = _datatype("INT32", np.int32)
INT64 = _datatype("INT64", np.int64)
FP16 = _datatype("FP16", np.float16)
FP32 = _datatype("FP32", np.float32)
FP64 = _datatype("FP64", np.float64)
BF16 = _datatype("BF16", np.float32, itemsize=2)
BYTES = _datatype("BYTES", np.object_, itemsize=0)

_ALL = (
    BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BF16, BYTES
)  # fmt: skip
DATATYPES: dict[str, Datatype] = {datatype.name: datatype for datatype in _ALL}


class Misfit(TypeError):
    """Numbers are not of a datatype. The text: what they are, and what to do."""


def converted(array: npt.NDArray[Any], datatype: Datatype) -> npt.NDArray[Any]:
    """The array in a datatype. Python numbers have no width: a value that fits is accepted for any
    datatype of its kind. Misfit, or OverflowError."""
    expected = datatype.dtype
    if array.dtype == expected:
        return array
    if not array.size:  # numpy cannot infer the type of an empty list
        return array.astype(expected)
    if array.dtype.kind in "iu" and expected.kind in "iu":
        limits = np.iinfo(expected.name)
        if array.min() < limits.min or array.max() > limits.max:
            raise OverflowError(f"a number is not between {limits.min} and {limits.max}")
        return array.astype(expected)
    if np.can_cast(array.dtype, expected, "same_kind"):
        try:
            with np.errstate(over="raise"):
                return array.astype(expected)
        except FloatingPointError:
            raise OverflowError(f"a number is out of the range of {datatype}") from None
    if array.dtype.kind not in "biufc":
        raise Misfit(
            "it has text" if array.dtype.kind in "SU" else "not all are numbers of 64 bits"
        )
    raise Misfit(f"{array.dtype} is not converted silently; use .astype({expected.name!r})")


class Form(Enum):
    """The Python form of a column; the wire knows only the datatype."""

    TEXT = "list[str]"
    BYTES = "list[bytes]"
    JSON = "list[dict]"
    SCALARS = "list of numbers"
    ARRAY = "one array, batch first"
    ARRAYS = "list of arrays"

    @property
    def is_bytes(self) -> bool:
        return self in (Form.TEXT, Form.BYTES, Form.JSON)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model."""

    name: str
    datatype: Datatype
    #: One row's shape: () for a scalar, (-1,) for a list of any length.
    shape: Shape
    form: Form
    optional: bool = False
    #: The type that validates JSON rows (a dataclass, TypedDict or msgspec Struct).
    json_type: object = None
    #: Of rows that are bytes: what they hold.
    media: MediaSpec | None = None
    #: Of arrays that the code takes or returns as another library's than numpy: its name ("torch").
    library: str = ""
    #: The row for callers that leave it out, if that is a plain value: a number, text or bytes.
    default: object = None

    @property
    def holds_lists(self) -> bool:
        kind = get_origin(self.json_type) or self.json_type
        return isinstance(kind, type) and issubclass(kind, Sequence)

    @property
    def holds_objects(self) -> bool:
        return self.form is Form.JSON and self.shape == () and not self.holds_lists

    def fits(self, row_shape: Shape) -> bool:
        """Whether a row may have this shape."""
        return row_shape == self.shape or (
            len(row_shape) == len(self.shape)
            and all(size in (-1, got) for size, got in zip(self.shape, row_shape, strict=True))
        )


def bf16_to_float32(halves: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Exact: a bfloat16 is the upper half of a float32."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def float32_to_bf16(array: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Rounded to the nearest, ties to even; a NaN stays a NaN."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    quiet = (bits >> 16) | 0x40  # rounding could carry a NaN over into an infinity, or to zero
    return np.where(np.isnan(array), quiet, rounded).astype(np.uint16)
