"""Which inputs and outputs of a model are those that a route asks for, by what they declare?

Names decide only between inputs that are alike.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final, get_args

from wherry.frontends.openai.fields.beside import BESIDE
from wherry.models.signature import Signature
from wherry.values.datatypes import Form, TensorSpec

#: Names of an output whose numbers are those of classes, where no other output names the class.
CLASSES: Final = ("probs", "probabilities", "logits")


@dataclass(frozen=True, slots=True)
class NumbersFit:
    """A model that makes numbers of a text, of a list of tokens, of a conversation, or of any of
    these."""

    text: TensorSpec | None
    tokens: TensorSpec | None
    messages: TensorSpec | None
    numbers: TensorSpec


@dataclass(frozen=True, slots=True)
class ClassFit(NumbersFit):
    """A model whose numbers say how probable classes are."""

    #: The output that names the best class.
    label: TensorSpec | None


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


def vector_fit(signature: Signature) -> NumbersFit | None:
    """One vector of floats a row."""
    vector = _vector(signature)
    return None if vector is None else _reading(signature, vector)


def numbers_fit(signature: Signature) -> NumbersFit | None:
    """One vector of floats a row, or else an only output of floats, of any shape."""
    numbers = _vector(signature) or _one(list(filter(_is_floats, signature.outputs)))
    return None if numbers is None else _reading(signature, numbers)


def class_fit(signature: Signature, labelled: Container[str] = ()) -> ClassFit | None:
    """A float, or a vector of them: beside a text, of which the labels are known (`labelled` has
    the names of such outputs), or by a name of CLASSES."""
    fit = numbers_fit(signature)
    if fit is None or len(fit.numbers.shape) > 1:
        return None
    texts = [spec for spec in signature.outputs if spec.form is Form.TEXT]
    label = texts[0] if len(texts) == 1 else signature.output("label")
    name = fit.numbers.name
    known = _is_number(fit.numbers) or name in CLASSES or name in labelled
    if label is None and not known:
        return None
    return ClassFit(fit.text, fit.tokens, fit.messages, fit.numbers, label)


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


def _vector(signature: Signature) -> TensorSpec | None:
    vectors = [s for s in signature.outputs if s.form is Form.ARRAY and len(s.shape) == 1]
    return vectors[0] if len(vectors) == 1 and _is_floats(vectors[0]) else None


def _reading(signature: Signature, numbers: TensorSpec) -> NumbersFit | None:
    """The fit of a model that makes these numbers, if it reads texts, tokens or conversations."""
    # The others say how it reads.
    inputs = [spec for spec in signature.inputs if spec.name not in BESIDE or not spec.optional]
    read = {
        "text": _one([spec for spec in inputs if _is_text(spec)]),
        "tokens": _one([spec for spec in inputs if _is_tokens(spec)]),
        "messages": _one([s for s in inputs if s.name == "messages" and s.form is Form.JSON]),
    }
    needed = [spec for spec in inputs if not spec.optional]
    if needed:  # the others cannot stand alone
        read = {kind: spec if [spec] == needed else None for kind, spec in read.items()}
    if signature.streams or not any(read.values()):
        return None
    return NumbersFit(**read, numbers=numbers)


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
