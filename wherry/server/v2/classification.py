"""Which classes of each row are the best, as the texts of Triton's classification extension?

    [[0.1, 0.9, 0.5]], the best 2  ->  [["0.900000:1:cat", "0.500000:2:dog"]]

For any frontend: scores in, texts out; on the wire they are a BYTES tensor [rows, k].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from wherry.core.api import BOOL, BYTES, Array, InvalidRequest, TensorSpec

#: A row is sorted whole, whatever is asked of it.
MAX_CLASSES: Final = 1_000_000


def check_classifiable(spec: TensorSpec, model: str) -> None:
    """InvalidRequest unless this output holds scores."""
    if spec.datatype is BYTES or spec.datatype is BOOL:
        raise InvalidRequest(
            "class result not available for output due to unsupported type"
            f" '{spec.datatype}' (output '{spec.name}' of model '{model}')"
        )


def best_classes(scores: Array, most: int, labels: Sequence[str] = ()) -> list[list[str]]:
    """The `most` best of each row as "score:index" or "score:index:label", the best first.

    `scores` has the rows first; a row of any shape counts as flat. Equal scores stay in their
    order, a NaN is last. An index without a label has none. InvalidRequest: too many classes.
    """
    classes = scores.size // len(scores)
    if classes > MAX_CLASSES:
        raise InvalidRequest(
            f"classification output tensor too large: it has {classes} classes, at most"
            f" {MAX_CLASSES} are put in order"
        )
    flat = scores.reshape(len(scores), classes)
    layout = "%f:%d" if flat.dtype.kind == "f" else "%d:%d"
    named = [f":{label}" if label else "" for label in labels]
    return [
        [layout % (row[i], i) + (named[i] if i < len(named) else "") for i in places]
        for row, places in zip(flat, _descending(flat)[:, :most], strict=True)
    ]


def _descending(scores: Array) -> Array:
    """For each row the indices of its scores, the largest first."""
    if scores.dtype.kind == "f":
        return np.argsort(-scores, axis=1, kind="stable")
    # Integers have no exact negative (of 2**63, of what is unsigned): sorted upwards, from behind.
    behind = np.argsort(scores[:, ::-1], axis=1, kind="stable")[:, ::-1]
    places: Array = scores.shape[1] - 1 - behind
    return places
