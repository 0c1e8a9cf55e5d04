"""Which inputs and outputs of a model are those that a route asks for, by what they declare?

Names decide only between inputs that are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from wherry.core.api import Form, Signature, TensorSpec
from wherry.llm.openai.fields.beside import BESIDE


@dataclass(frozen=True, slots=True)
class VectorFit:
    """A model that makes a vector of a text, of a list of tokens, of a conversation, or of any of
    these."""

    text: TensorSpec | None
    tokens: TensorSpec | None
    messages: TensorSpec | None
    vector: TensorSpec


@dataclass(frozen=True, slots=True)
class ScoreFit:
    """A cross encoder: it says of two texts by one number how well they go together."""

    query: TensorSpec
    document: TensorSpec
    score: TensorSpec


@dataclass(frozen=True, slots=True)
class HearingFit:
    """A model that makes a text of a recording."""

    audio: TensorSpec
    #: Whether it has an input that says if it is to translate.
    translates: bool


def vector_fit(signature: Signature) -> VectorFit | None:
    """One vector of floats a row, of a text, of tokens or of a conversation."""
    vectors = [s for s in signature.outputs if s.form is Form.ARRAY and len(s.shape) == 1]
    if signature.streams or len(vectors) != 1 or not _is_floats(vectors[0]):
        return None
    # The other inputs say how it reads.
    inputs = [spec for spec in signature.inputs if spec.name not in BESIDE or not spec.optional]
    read = {
        "text": _one([spec for spec in inputs if _is_text(spec)]),
        "tokens": _one([spec for spec in inputs if _is_tokens(spec)]),
        "messages": _one([s for s in inputs if s.name == "messages" and s.form is Form.JSON]),
    }
    needed = [spec for spec in inputs if not spec.optional]
    if needed:  # the others cannot stand alone
        read = {kind: spec if [spec] == needed else None for kind, spec in read.items()}
    return VectorFit(**read, vector=vectors[0]) if any(read.values()) else None


def score_fit(signature: Signature) -> ScoreFit | None:
    scores = [spec for spec in signature.outputs if _is_number(spec)]
    needed = [spec for spec in signature.inputs if not spec.optional]
    if signature.streams or len(scores) != 1 or len(needed) != 2 or not all(map(_is_text, needed)):
        return None
    query, document = needed
    if document.name == "query":
        query, document = document, query
    return ScoreFit(query, document, scores[0])


def hearing_fit(signature: Signature) -> HearingFit | None:
    needed = [spec for spec in signature.inputs if not spec.optional]
    if len(needed) != 1 or not _is_audio(needed[0]) or text_output(signature) is None:
        return None
    task = signature.input("task")
    return HearingFit(needed[0], task is not None and _is_text(task))


def text_output(signature: Signature) -> TensorSpec | None:
    """The output that is the answer's text: the only one, or the one of that name."""
    outputs = signature.outputs
    found = outputs[0] if len(outputs) == 1 else signature.output("text")
    return found if found is not None and found.form is Form.TEXT else None


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


def _is_audio(spec: TensorSpec) -> bool:
    """Whether a row is a recording: decoded for the model, or a file that it decodes itself."""
    media = spec.media
    if media is None or spec.shape != ():
        return False
    return media.kind == "audio" or (
        media.kind == "file" and any(one.startswith("audio/") for one in media.accepts)
    )


def _is_floats(spec: TensorSpec) -> bool:
    return spec.datatype.dtype.kind == "f" and not spec.form.is_bytes


def _is_number(spec: TensorSpec) -> bool:
    return _is_floats(spec) and spec.form is not Form.ARRAYS and spec.shape in ((), (1,))
