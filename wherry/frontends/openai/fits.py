"""Which inputs and outputs of a model are those that a route asks for, by what they declare?

Names decide only between inputs that are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from wherry.models.signature import Signature
from wherry.values.datatypes import Form, TensorSpec


@dataclass(frozen=True, slots=True)
class VectorFit:
    """A model that makes one vector of a text, of a list of tokens, or of either."""

    text: TensorSpec | None
    tokens: TensorSpec | None
    vector: TensorSpec


@dataclass(frozen=True, slots=True)
class ScoreFit:
    """A cross encoder: it says of two texts by one number how well they go together."""

    query: TensorSpec
    document: TensorSpec
    score: TensorSpec


def vector_fit(signature: Signature) -> VectorFit | None:
    vectors = [s for s in signature.outputs if s.form is Form.ARRAY and len(s.shape) == 1]
    if signature.streams or len(vectors) != 1 or vectors[0].datatype.dtype.kind != "f":
        return None
    text = _one([spec for spec in signature.inputs if _is_text(spec)])
    tokens = _one([spec for spec in signature.inputs if _is_tokens(spec)])
    if text is None and tokens is None:
        return None
    needed = [spec for spec in signature.inputs if not spec.optional]
    if len(needed) > 1 or (needed and needed[0] not in (text, tokens)):
        return None
    if needed:  # the other one cannot stand alone
        text, tokens = (one if one in needed else None for one in (text, tokens))
    return VectorFit(text, tokens, vectors[0])


def score_fit(signature: Signature) -> ScoreFit | None:
    scores = [spec for spec in signature.outputs if _is_number(spec)]
    needed = [spec for spec in signature.inputs if not spec.optional]
    if signature.streams or len(scores) != 1 or len(needed) != 2 or not all(map(_is_text, needed)):
        return None
    query, document = needed
    if document.name == "query":
        query, document = document, query
    return ScoreFit(query, document, scores[0])


def _one(specs: Sequence[TensorSpec]) -> TensorSpec | None:
    """The only one, or the only one that is required."""
    needed = [spec for spec in specs if not spec.optional]
    return specs[0] if len(specs) == 1 else needed[0] if len(needed) == 1 else None


def _is_text(spec: TensorSpec) -> bool:
    return spec.form is Form.TEXT and spec.shape == ()


def _is_tokens(spec: TensorSpec) -> bool:
    """Whether a row is a list of whole numbers of any length."""
    if spec.form is Form.JSON:
        return spec.holds_lists and get_args(spec.json_type) == (int,)
    whole = spec.datatype.dtype.kind in "iu"
    return whole and spec.form in (Form.ARRAY, Form.ARRAYS) and spec.shape == (-1,)


def _is_number(spec: TensorSpec) -> bool:
    numbers = spec.form is Form.SCALARS or (spec.form is Form.ARRAY and spec.shape in ((), (1,)))
    return numbers and spec.datatype.dtype.kind == "f"
