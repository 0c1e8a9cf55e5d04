"""Models whose OpenAPI document is held true: each kind of input and output once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt

import wherry

Vectors = Annotated[npt.NDArray[np.float32], wherry.FP32[3]]
Numbers = Annotated[npt.NDArray[np.float32], wherry.FP32]


@dataclass
class Review:
    """What a reader says."""

    text: str
    stars: int = 3
    language: Literal["en", "fr"] | None = None


class Verdict(TypedDict):
    label: str
    score: float


class Box(msgspec.Struct):
    """A part of a picture."""

    left: Annotated[int, msgspec.Meta(ge=0, le=10**6)]
    labels: list[str] = []


@wherry.model(max_batch_size=8, examples=[{"text": "fine"}])
def shout(text: list[str]) -> list[str]:
    """Says it louder."""
    return [one.upper() for one in text]


@wherry.model(max_batch_size=4, examples=[{"review": {"text": "fine", "stars": 5}}])
def rate(review: list[Review]) -> list[Verdict]:
    """Rates reviews."""
    return [{"label": one.text, "score": float(one.stars > 2)} for one in review]


@wherry.model
def area(box: Box, scale: float = 1.0) -> int:
    """Counts labels: one row at a time, with an input that may be left out."""
    return len(box.labels)


@wherry.model(max_batch_size=8)
def total(x: Vectors, weight: list[float] | None = None) -> Numbers:
    """Adds the numbers of each row."""
    with np.errstate(over="ignore"):
        sums: Numbers = np.nan_to_num(x.sum(axis=1))
    return sums


@wherry.model(max_batch_size=8)
def embed(text: list[str]) -> Vectors:
    """Makes vectors, as OpenAI's clients ask for them."""
    return np.ones((len(text), 3), np.float32)


@wherry.model(max_batch_size=8)
def pair(query: list[str], document: list[str]) -> list[float]:
    """Scores pairs, as clients of rerankers ask for them."""
    return [1.0] * len(query)


@wherry.model(max_batch_size=2)
def mixed(
    flag: list[bool], small: Annotated[list[int], wherry.UINT8], raw: list[bytes]
) -> list[bytes]:
    """Takes several columns."""
    return raw


@wherry.model
def count(up_to: int) -> Iterator[int]:
    """Counts."""
    yield from range(up_to % 5)


@wherry.model
def parrot(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Says the last message again."""
    yield str(messages[-1].get("content", "")) if messages else ""


@wherry.model(max_batch_size=8, route="/turn")
def turn(data: list[bytes], times: list[int] | None = None) -> list[bytes]:
    """Adds to files, which stay text if they are."""
    return [one + b"!" for one in data]


@wherry.model(max_batch_size=8, route="/people/greet", examples=[{"person": {"text": "Ann"}}])
def greet(person: list[Review]) -> list[str]:
    """Greets people."""
    return [f"hello {one.text}" for one in person]


@wherry.model(route="/spell")
def spell(word: str, upper: bool = False) -> Iterator[str]:
    """Spells a word."""
    yield from word[:3]


ALL: list[wherry.Model] = [
    turn,
    greet,
    spell,
    shout,
    rate,
    area,
    total,
    embed,
    pair,
    mixed,
    count,
    parrot,
]
