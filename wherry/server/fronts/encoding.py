"""How do columns, errors and models cross a link between a front and the owner?

Strings may have a shape that their list does not show (`ShapedRow`, `ShapedRows`), which msgpack
would drop: a column of them crosses as three members, its rows, its shape, its rows' shapes.
A front imports no code of the user: it has a model's configuration and signature from the owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final, cast

import msgspec
import numpy as np

from wherry.core.api import (
    DATATYPES,
    AudioSpec,
    Column,
    Columns,
    FileSpec,
    Form,
    ImageSpec,
    MediaSpec,
    Model,
    ModelConfig,
    ShapedRow,
    ShapedRows,
    Signature,
    TensorSpec,
    WherryError,
    errors,
)
from wherry.server.fronts.link_protocol import ModelCard, RowsRefused, SpecCard

_MEDIA: Final[dict[str, type[MediaSpec]]] = {
    "image": ImageSpec, "audio": AudioSpec, "file": FileSpec
}  # fmt: skip


class RemoteModel(Model):
    """A model of a front's runtime. Its code runs elsewhere."""

    def __init__(self, card: ModelCard) -> None:
        self._config = card.config
        self._signature = signature_of(card)
        self.output_labels = card.labels
        self._variable_strings = card.variable_strings
        self.calls_others = card.calls_others
        self.is_ensemble = card.is_ensemble

    @property
    def variable_strings(self) -> list[str]:
        return self._variable_strings

    def config(self, **overrides: Any) -> ModelConfig:
        return replace(self._config, **overrides)

    def signature(self, name: str = "") -> Signature:
        return self._signature


def card_of(number: int, model: Model, config: ModelConfig, signature: Signature) -> ModelCard:
    """What a front must know of a loaded version, which messages call `number`.

    The limits of memory and the samples stay with the owner.
    """
    return ModelCard(
        number,
        replace(config, max_queue_bytes=None, response_cache=False, warmup=(), examples=()),
        [_spec_card(spec) for spec in signature.inputs],
        [_spec_card(spec) for spec in signature.outputs],
        signature.row_wise,
        signature.streams,
        signature.is_async,
        signature.returns,
        {name: list(labels) for name, labels in model.output_labels.items()},
        list(model.variable_strings),
        model.calls_others,
        model.is_ensemble,
    )


def signature_of(card: ModelCard) -> Signature:
    return Signature(
        tuple(map(_spec, card.inputs)),
        tuple(map(_spec, card.outputs)),
        card.row_wise,
        card.streams,
        card.is_async,
        card.returns,
    )


def shaped_strings(specs: Sequence[TensorSpec]) -> list[str]:
    """The names of those whose columns may hold strings with a shape of their own."""
    return [spec.name for spec in specs if spec.shape and spec.form in (Form.TEXT, Form.BYTES)]


def _spec_card(spec: TensorSpec) -> SpecCard:
    return SpecCard(
        spec.name,
        spec.datatype.name,
        spec.shape,
        spec.form,
        spec.optional,
        spec.holds_lists,
        None if spec.media is None else (spec.media.kind, asdict(spec.media)),
        None if isinstance(spec.default, bytes) else cast("str | None", spec.default),
    )


def _spec(card: SpecCard) -> TensorSpec:
    return TensorSpec(
        card.name,
        DATATYPES[card.datatype],
        card.shape,
        card.form,
        card.optional,
        list if card.json_list else None,
        None if card.media is None else msgspec.convert(card.media[1], _MEDIA[card.media[0]]),
        default=card.default,
    )


#: Wherry's own, by name: a class of a model's code is not known in a front.
CLASSES: Final[dict[str, type[WherryError]]] = {
    name: cls
    for name, cls in vars(errors).items()
    if isinstance(cls, type) and issubclass(cls, WherryError)
}


#: What an error may carry besides its class and text.
_ATTRIBUTES: Final = ("retry_after", "field", "reached", "http_status", "grpc_code")


def refused(model: int, ids: list[int], error: Exception) -> RowsRefused:
    """The message that these requests end with this error. Of another class than ours it is a
    defect: its text stays here."""
    if not isinstance(error, WherryError):
        error = WherryError("internal error; see the server's log")
    name = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in CLASSES)
    more = {
        attribute: getattr(error, attribute)
        for attribute in _ATTRIBUTES
        # An attribute of the error's own, or of its class below the known one.
        if attribute in vars(error)
        or getattr(error, attribute, None) != getattr(CLASSES[name], attribute, None)
    }
    return RowsRefused(model, ids, name, str(error), more)


def error_of(message: RowsRefused) -> WherryError:
    cls = CLASSES[message.error]
    error = cls.__new__(cls)  # each constructor has arguments of its own
    error.args = (message.text,)
    vars(error).update(message.more)
    return error


#: Bytes of an array, at most, in columns that are small; rows or characters of a list.
SMALL_BYTES: Final = 2**11
SMALL_STRING: Final = 64

_NUMBERS: Final = {int, float, bool, type(None)}


def packed(columns: Columns, strings: Sequence[str]) -> dict[str, Any]:
    """The columns as they cross. `strings` are those that may be shaped."""
    if not strings:
        return columns
    return {
        name: _packed(column) if name in strings else column for name, column in columns.items()
    }


def unpacked(columns: dict[str, Any], strings: Sequence[str]) -> Columns:
    for name in strings:
        if name in columns:
            columns[name] = _unpacked(columns[name])
    return columns


def joined(parts: Sequence[Columns]) -> dict[str, Any] | None:
    """Columns of one row each, as one; None if they do not fit together."""
    first = parts[0]
    together: dict[str, Any] = {}
    for name, column in first.items():
        if isinstance(column, list):
            if type(column) is not list:
                return None
            together[name] = [part[name][0] for part in parts]
            continue
        arrays = [part[name] for part in parts]
        dtype, shape = column.dtype, column.shape[1:]
        if any(one.shape[1:] != shape or one.dtype != dtype for one in arrays):  # type: ignore[union-attr]
            return None
        together[name] = np.concatenate(arrays)
    return together


def is_small(columns: Columns) -> bool:
    """Whether the columns surely take little memory: no array, and few rows of short strings."""
    for column in columns.values():
        if not isinstance(column, list):
            if column.nbytes > SMALL_BYTES:
                return False
        elif len(column) > SMALL_STRING or any(
            type(v) not in _NUMBERS and len(v) > SMALL_STRING for v in column
        ):
            return False
    return True


def _packed(column: Column) -> Any:
    if type(column) is ShapedRows:
        return [list(column), list(column.shape), None]
    rows = [list(row) if isinstance(row, ShapedRow) else row for row in column]
    if not any(isinstance(row, ShapedRow) for row in column):
        return [rows, None, None]
    shapes = [list(row.shape) if isinstance(row, ShapedRow) else None for row in column]
    return [rows, None, shapes]


def _unpacked(sent: Any) -> Column:
    rows, shape, shapes = sent
    if shape is not None:
        return ShapedRows(rows, shape)
    if shapes is None:
        return rows  # type: ignore[no-any-return]
    return [
        row if one is None else ShapedRow(row, one) for row, one in zip(rows, shapes, strict=True)
    ]
