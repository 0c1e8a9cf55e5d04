"""Models of which right.py and wrong.py call each kind."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypedDict

import numpy as np

import wherry


@dataclass
class Label:
    name: str
    score: float = 1.0


class Query(TypedDict):
    text: str
    top: int


class Pair(NamedTuple):
    left: list[str]
    right: list[int]


@wherry.model(max_batch_size=8, max_queue_delay=0.01, instances=2)
def classify(text: list[str]) -> list[Label]:
    return [Label(one) for one in text]


@wherry.model(instances=[wherry.InstanceGroup(2, "cpu")], version=2, cost=len)
def ranked(text: list[str], k: list[int] | None = None) -> list[str]:
    return text


@wherry.model
def search(query: list[Query]) -> list[list[str]]:
    return [[one["text"]] for one in query]


@wherry.model
def named(row: list[Label]) -> list[str]:
    return [one.name for one in row]


@wherry.model
async def soon(text: list[str]) -> list[int]:
    return [len(one) for one in text]


@wherry.model
def one_row(text: str, k: int = 1) -> Label:
    return Label(text * k)


@wherry.model
def pieces(text: list[str]) -> Iterator[list[str]]:
    yield text


@wherry.model
def pair(text: list[str]) -> Pair:
    return Pair(text, [1])


@wherry.model
def length(x: Annotated[np.ndarray, wherry.FP32[2]]) -> list[float]:
    return [float(one.sum()) for one in x]


@wherry.model
def width(image: list[wherry.Image]) -> list[int]:
    return [one.width for one in image]


@wherry.pipeline(max_queue_size=10)
async def chain(text: str, upper: bool = False) -> str:
    label = await classify.ainfer(text)
    return label.name.upper() if upper else label.name


@wherry.pipeline
async def words(text: str) -> AsyncIterator[str]:
    for word in text.split():
        yield (await classify.ainfer(text=word)).name


class Embedder(wherry.Model):
    max_batch_size = 64
    examples = ({"text": "a"},)

    def execute(self, text: list[str]) -> list[float]:
        return [float(len(one)) for one in text]


class Countdown(wherry.StepModel):
    max_batch_size = 8

    def start(self, n: int) -> list[int]:
        return [n]

    def step(self, active: list[list[int]]) -> list[wherry.Step[int]]:
        return [wherry.Step([one[0]], done=True) for one in active]
