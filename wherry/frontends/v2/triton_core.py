"""Which fault of an infer request does Triton's core tell? For `--triton-strict`.

What its reader has taken, the core looks at in an order of its own (infer_request.cc, Normalize):
the outputs, the number of inputs, then each input in the order of a hash table. Pure; it is asked
only about requests that were refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, NamedTuple

from wherry.frontends.v2.model_tensors import ModelTensors
from wherry.frontends.v2.unordered import in_order_of_a_hash_table
from wherry.frontends.v2.wire_shape import dims_text
from wherry.values.buffer import Buffer
from wherry.values.datatypes import DATATYPES

#: What Triton says of shapes where a model has a batch dimension.
NOTE: Final = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be"
    " prepended to each input shape. If you want to specify the full shape including the batch dim"
    " in your input dims config, try setting max_batch_size to zero. See the model configuration"
    " docs for more info on max_batch_size."
)
#: Bytes before each element of BYTES.
_LENGTH: Final = 4
#: As Triton keeps the number of rows, and as it compares it.
_ROWS: Final = 2**32


@dataclass(frozen=True, slots=True)
class TakenInput:
    """An input as Triton's reader hands it on. `nbytes`, which of BYTES are elements, is None where
    that is not known; `texts` are the bytes of elements with their lengths."""

    name: str
    datatype: str
    shape: Sequence[int]
    nbytes: int | None
    texts: Buffer | None = None


class Expected(NamedTuple):
    """An input as the configuration has it; the shape without the batch dimension."""

    datatype: str
    dims: Sequence[int]
    optional: bool
    #: A row of one element may have a dimension for it, or none.
    scalar: bool


class CoreView:
    """A model as Triton's core looks at it."""

    def __init__(
        self,
        tensors: ModelTensors,
        max_batch_size: int,
        has_region: Callable[[str], bool] = lambda name: True,
    ) -> None:
        """`has_region`: whether a shared memory region is registered."""
        self.model = tensors.model
        self.has_region = has_region
        self.rows = max_batch_size
        skipped = 1 if max_batch_size else 0
        self.inputs = {
            name: Expected(
                codec.datatype,
                codec.wire_shape[skipped:],
                codec.spec.optional,
                codec.spec.shape == (),
            )
            for name, codec in tensors.inputs.items()
        }
        self.outputs = frozenset(tensors.outputs)


#: The view of the model that has this name and version ("": its highest); None if there is none.
ViewOf = Callable[[str, str], CoreView | None]


class _Found(Exception):
    """Triton's words."""


class _FoundWithId(_Found):
    """The request's id stands before them."""


def core_fault(
    view: CoreView, inputs: Sequence[TakenInput], outputs: Iterable[str], request_id: str
) -> str | None:
    """The fault that Triton's core tells; None if it has none of those that show before the data
    of texts is read."""
    try:
        _check(view, inputs, outputs)
    except _FoundWithId as fault:
        return id_before(str(fault), request_id)
    except _Found as fault:
        return str(fault)
    return None


def raw_fault(view: CoreView, nbytes: int) -> str | None:
    """The fault of a request that is the data of the model's one input and nothing else; None if
    its size is right, or if another one is told."""
    if len(view.inputs) != 1:
        return None
    (one,) = view.inputs.values()
    size = DATATYPES[one.datatype].itemsize
    if not size or 0 in one.dims or one.dims.count(-1) > 1:
        return None
    known = prod(dim for dim in one.dims if dim != -1) * size
    expected = nbytes // known * known if -1 in one.dims else known
    if expected == nbytes and nbytes:
        return None
    told = f"input byte size mismatch for input 'raw_input' for model '{view.model}'."
    return id_before(f"{told} Expected {expected}, got {nbytes}", "")


def binary_input(name: str, datatype: str, shape: Sequence[int], data: Buffer) -> TakenInput:
    """An input whose data is binary."""
    if datatype == "BYTES":
        return TakenInput(name, datatype, shape, None, data)
    return TakenInput(name, datatype, shape, len(data))


def id_before(text: str, request_id: str) -> str:
    """An error as the core logs it."""
    return f"[request id: {request_id or '<id_unknown>'}] {text}"


def _check(view: CoreView, inputs: Sequence[TakenInput], outputs: Iterable[str]) -> None:
    given: dict[str, TakenInput] = {}
    for one in inputs:
        if one.name in given:
            raise _FoundWithId(f"input '{one.name}' already exists in request")
        given[one.name] = one
    for name in sorted(outputs):
        if name not in view.outputs:
            raise _Found(f"unexpected inference output '{name}' for model '{view.model}'")
    order = in_order_of_a_hash_table(given)
    _check_number(view, order)
    rows = _rows(view, order, given)
    for name in order:
        _check_input(view, given[name], rows)


def _check_number(view: CoreView, order: Sequence[str]) -> None:
    required = [name for name, one in view.inputs.items() if not one.optional]
    if len(required) <= len(order) <= len(view.inputs):
        return
    missing = [name for name in required if name not in order]
    wanted = f"{len(required)} inputs"
    if len(required) < len(view.inputs):
        wanted = f"number of inputs between {len(required)} and {len(view.inputs)}"
    got = f"[{_quoted(order)}]"
    # Triton takes the last character away: a comma, or the bracket.
    told = f"[{_quoted(missing)}]" if missing else "]"
    raise _FoundWithId(
        f"expected {wanted} but got {len(order)} inputs for model '{view.model}'. Got input(s)"
        f" {got}, but missing required input(s) {told}. Please provide all required input(s)."
    )


def _rows(view: CoreView, order: Sequence[str], given: Mapping[str, TakenInput]) -> int:
    """The batch size, with its 32 bits; 0 for a model without batches."""
    rows = 0
    if not view.rows:
        return rows
    for name in order:
        if name not in view.inputs:
            raise _unexpected(view, name)
        shape = given[name].shape
        if not shape:
            raise _FoundWithId(
                f"input '{name}' has no shape but model requires batch dimension for '{view.model}'"
            )
        if rows == 0:
            rows = shape[0] % _ROWS
        elif shape[0] != rows:
            raise _FoundWithId(
                f"input '{name}' batch size does not match other inputs for '{view.model}'"
            )
    signed = rows - _ROWS if rows >= _ROWS // 2 else rows
    if signed > view.rows:
        raise _FoundWithId(
            f"inference request batch-size must be <= {view.rows} for '{view.model}'"
        )
    return rows


def _check_input(view: CoreView, one: TakenInput, rows: int) -> None:
    expected = view.inputs.get(one.name)
    if expected is None:
        raise _unexpected(view, one.name)
    if one.datatype != expected.datatype:
        told = one.datatype if one.datatype in DATATYPES else "<invalid>"
        raise _FoundWithId(
            f"inference input '{one.name}' data-type is '{told}', but model '{view.model}' expects"
            f" '{expected.datatype}'"
        )
    dims = one.shape[1:] if view.rows else one.shape
    _check_dims(view, one, expected, dims)
    if one.texts is not None:
        _check_texts(view, one.name, one.texts, prod(dims) * (rows or 1))
    if one.nbytes is not None:
        size = prod(dims) * (rows or 1) * (DATATYPES[expected.datatype].itemsize or 1)
        if size != one.nbytes and expected.datatype == "BYTES":
            raise _FoundWithId(_wrong_number(view, one.name, size, one.nbytes))
        if size != one.nbytes:
            raise _FoundWithId(
                f"input byte size mismatch for input '{one.name}' for model '{view.model}'."
                f" Expected {size}, got {one.nbytes}"
            )


def _check_dims(view: CoreView, one: TakenInput, expected: Expected, dims: Sequence[int]) -> None:
    fits = len(dims) == len(expected.dims)
    if expected.scalar and list(dims) == [1]:
        return
    if fits:
        for dim, wanted in zip(dims, expected.dims, strict=True):
            if dim == -1:
                raise _FoundWithId(
                    f"All input dimensions should be specified for input '{one.name}' for model"
                    f" '{view.model}', got {dims_text(one.shape)}"
                )
            if wanted not in (-1, dim):
                fits = False
                break
    if fits:
        return
    full = [-1, *expected.dims] if view.rows else expected.dims
    raise _FoundWithId(
        f"unexpected shape for input '{one.name}' for model '{view.model}'. Expected"
        f" {dims_text(full)}, got {dims_text(one.shape)}. {NOTE if view.rows else ''}"
    )


def _check_texts(view: CoreView, name: str, texts: Buffer, expected: int) -> None:
    """The elements are counted by their lengths, whatever is missing of the last one."""
    found = at = 0
    while at < len(texts):
        left = len(texts) - at
        if left < _LENGTH:
            raise _FoundWithId(
                f"incomplete string length indicator for inference input '{name}' for model"
                f" '{view.model}', expecting {_LENGTH} bytes but only {left} bytes available."
                " Please make sure the string length indicator is in one buffer."
            )
        found += 1
        if found > expected:
            raise _FoundWithId(_wrong_number(view, name, expected, found))
        at += _LENGTH + int.from_bytes(texts[at : at + _LENGTH], "little")
    if found != expected:
        raise _FoundWithId(_wrong_number(view, name, expected, found))


def _wrong_number(view: CoreView, name: str, expected: int, got: int) -> str:
    where = f"for inference input '{name}' for model '{view.model}'"
    if got < expected:
        return f"expected {expected} string elements {where}, got {got}"
    return f"unexpected number of string elements {expected + 1} {where}, expecting {expected}"


def _unexpected(view: CoreView, name: str) -> _Found:
    return _Found(f"unexpected inference input '{name}' for model '{view.model}'")


def _quoted(names: Iterable[str]) -> str:
    return ",".join(f"'{name}'" for name in names)
