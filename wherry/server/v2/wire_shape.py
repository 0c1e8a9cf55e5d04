"""Which shape does a tensor have on the wire, and how is it written?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wherry.core.api import Form, TensorSpec

#: Dimensions of a shape that an error tells.
_MOST_DIMS: Final = 64


def wire_shape(spec: TensorSpec, batched: bool) -> list[int]:
    """Return the shape that metadata declares for a tensor."""
    if batched:
        return [-1, *spec.shape]
    # An array may have no dimensions; a single value is sent as one element.
    return list(spec.shape) or ([] if spec.form is Form.ARRAY else [1])


def row_wire_shape(spec: TensorSpec, shape: Sequence[int]) -> Sequence[int]:
    """Return the shape in which an output without a batch is sent, whose array has this one."""
    single = not shape and -1 not in spec.shape  # else it has no dimensions, whatever is declared
    return wire_shape(spec, False) if single else shape


def dims_text(shape: Sequence[int]) -> str:
    """A shape as errors have it; of one with more dimensions than any tensor the first ones."""
    text = ",".join(map(str, shape[:_MOST_DIMS]))
    return f"[{text}]" if len(shape) <= _MOST_DIMS else f"[{text},... {len(shape)} dimensions]"
