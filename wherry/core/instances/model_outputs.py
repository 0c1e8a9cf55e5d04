"""Is what a model's code has returned what it has declared?"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from wherry.core.instances.media_rows import MediaRows
from wherry.core.models.config import ModelConfig
from wherry.core.models.rows import as_array, describe
from wherry.core.models.signature import Signature
from wherry.core.values.datatypes import Form, TensorSpec
from wherry.core.values.errors import BadModelOutput
from wherry.core.values.media_codec import is_converted
from wherry.core.values.request import Column, Columns, ShapedRow
from wherry.core.values.tensors import fits_datatype, in_datatype, is_tensor, joined, on_host

#: What has a length, and yet is not a column.
NO_COLUMNS = (str, bytes, Mapping, Set)


class WrongColumn(BadModelOutput):
    """What the model returned is wrong for all rows: no column, or one of another length or shape.
    No part of the batch would fare better."""


class ModelOutputs:
    """Makes columns of what a model returns. `media` encodes images, audio and files."""

    def __init__(self, signature: Signature, config: ModelConfig, media: MediaRows) -> None:
        self._signature = signature
        self._model = config.name
        self._media = media
        #: May tensors stay what they are? All callers of the batch take them.
        self.keeps_tensors = False
        #: May images and audio go without a codec? All callers of the batch are in this program.
        self.lossless = False
        #: Does the code return one row, and not a column?
        self.returns_row = signature.row_wise or not config.max_batch_size

    def of(self, result: Any, rows: int, *, sparse: bool = False) -> Columns:
        """What the model returned as checked columns; BadModelOutput names what is wrong.

        With `sparse` a row may be None: a stream has nothing for it this time.
        """
        signature = self._signature
        if signature.returns == "single":
            spec = signature.outputs[0]
            if self.returns_row:
                result = [result]
            return {spec.name: self._checked(spec, result, rows, sparse)}
        if signature.returns == "tuple":
            if not isinstance(result, tuple) or len(result) != len(signature.outputs):
                raise WrongColumn(
                    f"model {self._model!r} must return a tuple of"
                    f" {len(signature.outputs)} outputs, not {describe(result)}"
                )
            result = {
                spec.name: value for spec, value in zip(signature.outputs, result, strict=True)
            }
        elif not isinstance(result, Mapping):
            result = {spec.name: getattr(result, spec.name, None) for spec in signature.outputs}
        outputs: Columns = {}
        for spec in signature.outputs:
            if spec.name not in result:
                if spec.optional:
                    continue
                raise WrongColumn(f"model {self._model!r} returned no output {spec.name!r}")
            value = result[spec.name]
            if self.returns_row:
                value = [value]
            outputs[spec.name] = self._checked(spec, value, rows, sparse)
        return outputs

    def _checked(self, spec: TensorSpec, value: Any, rows: int, sparse: bool) -> Column:
        """The column as the core keeps it; BadModelOutput if it is not what was declared."""
        if (
            type(value) is np.ndarray
            and value.dtype == spec.datatype.dtype
            and (spec.form is Form.ARRAY or spec.form is Form.SCALARS)
            and value.shape[:1] == (rows,)
            and spec.fits(value.shape[1:])
        ):
            return value  # as nearly always
        if getattr(value, "shape", None) == ():
            raise self._wrong_rows(spec, value, rows)
        count = len(value) if hasattr(value, "__len__") else None
        if count != rows or (type(value) is not list and isinstance(value, NO_COLUMNS)):
            raise self._wrong_rows(spec, value, rows)
        if spec.media is not None and is_converted(spec.media):
            return self._media.encoded(spec, value, lossless=self.lossless)
        if spec.form is Form.TEXT:
            return self._checked_elements(spec, list(value), str, sparse)
        if spec.form is Form.BYTES:
            return self._checked_elements(spec, list(value), bytes, sparse)
        if spec.form is Form.JSON:
            return list(value)
        where = f"model {self._model!r}: output {spec.name!r}"
        if spec.library:
            kept = self._kept(spec, value) if self.keeps_tensors else None
            if kept is not None:
                return kept
            try:
                value = on_host(value)
            except TypeError as error:
                raise WrongColumn(f"{where} must be {spec.datatype}: {error}") from None
        # Of an array every row has the datatype and the shape; of a list a row may be to blame.
        wrong = WrongColumn if isinstance(value, np.ndarray) else BadModelOutput
        column: Column
        try:
            if spec.form is Form.ARRAYS or (sparse and any(row is None for row in value)):
                column = [None if row is None and sparse else as_array(row, spec) for row in value]
                shapes = [row.shape for row in column if row is not None]
            else:
                column = as_array(value, spec)
                shapes = [column.shape[1:]]
        except (TypeError, ValueError, OverflowError) as error:
            raise wrong(f"{where} must be {spec.datatype}: {error}") from None
        for shape in shapes:
            if not spec.fits(shape):
                raise wrong(_bad_shape(where, spec, shape))
        return column

    def _kept(self, spec: TensorSpec, value: Any) -> Column | None:
        """A column of tensors as they were declared, without gradients; None: that takes a look at
        their values, or they are wrong."""
        in_list = isinstance(value, list | tuple)
        rows = value if in_list else [value]
        for row in rows:
            if not (is_tensor(row) and fits_datatype(row, spec.datatype)):
                return None
            if not spec.fits(tuple(row.shape[0 if in_list else 1 :])):
                return None
        rows = [row.detach() if getattr(row, "requires_grad", False) else row for row in rows]
        rows = [in_datatype(row, spec.datatype) for row in rows]
        column: Column = rows if in_list else rows[0]
        if spec.form is Form.ARRAYS:
            return column if in_list else list(column)
        return joined([row[None] for row in rows]) if in_list else column

    def _wrong_rows(self, spec: TensorSpec, value: Any, rows: int) -> WrongColumn:
        where = f"model {self._model!r}: output {spec.name!r}"
        if isinstance(value, NO_COLUMNS) or not getattr(value, "shape", hasattr(value, "__len__")):
            return WrongColumn(
                f"{where} must hold one row for each of the {rows} input rows, not"
                f" {describe(value)}"
            )
        return WrongColumn(
            f"{where} has {len(value)} rows for {rows} input rows; return exactly one row out for"
            " each row in"
        )

    def _checked_elements(
        self, spec: TensorSpec, column: list[Any], expected: type, sparse: bool
    ) -> list[Any]:
        if spec.shape:
            column = [self._listed(spec, row, expected) for row in column]
        kinds = set(map(type, column)) - {expected}
        for kind in kinds:
            if issubclass(kind, expected) or (sparse and kind is type(None)):
                continue
            wrong: Any = next(row for row in column if type(row) is kind)
            if (
                spec.shape
                and issubclass(kind, list)
                and all(isinstance(e, expected) for e in wrong)
            ):
                continue
            what = "rows"
            if spec.shape and issubclass(kind, list):
                what, wrong = "lists", next(e for e in wrong if not isinstance(e, expected))
            raise BadModelOutput(
                f"model {self._model!r}: output {spec.name!r} must hold {expected.__name__}"
                f" {what}, not {describe(wrong)}"
            )
        return column

    def _listed(self, spec: TensorSpec, row: Any, expected: type) -> Any:
        """A row of several strings as a list of them; a ShapedRow, or a wrong value, as it is."""
        if isinstance(row, ShapedRow) or not isinstance(row, np.ndarray | list | tuple):
            return row
        shape = row.shape if isinstance(row, np.ndarray) else (len(row), *spec.shape[1:])
        if not spec.fits(shape):
            raise BadModelOutput(
                _bad_shape(f"model {self._model!r}: output {spec.name!r}", spec, shape)
            )
        if isinstance(row, list) and expected is str:
            return row
        # Of an empty array numpy cannot know the kind.
        elements = row.ravel().tolist() if isinstance(row, np.ndarray) else [*row]
        if expected is bytes:
            elements = [
                one.encode("utf-8", "surrogatepass") if isinstance(one, str) else one
                for one in elements
            ]
        return ShapedRow(elements, shape) if len(shape) > 1 else elements


def _bad_shape(where: str, spec: TensorSpec, shape: tuple[int, ...]) -> str:
    return f"{where} has rows of shape {list(shape)}, declared is {list(spec.shape)}"
