"""What may stand in a request to /v1/rerank and /v1/score?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from wherry.frontends.openai.errors import BadField
from wherry.frontends.openai.fields.beside import PairsBeside
from wherry.frontends.openai.fields.kinds import Positive
from wherry.frontends.openai.fields.not_done import OF_SCORES, NotDone

#: Pairs of texts of one request.
MOST_PAIRS: Final = 2048
#: The names that vLLM has for the two sides of `/v1/score`, the first and what is beside it.
SIDES: Final = (
    ("text_1", "text_2"),
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
)

Pairs = tuple[list[str], list[str]]


class TextDocument(msgspec.Struct, kw_only=True):
    """A document as an object. What it has beside its text is not looked at."""

    text: str


#: One text or several.
Texts = str | TextDocument | list[str | TextDocument]


class RerankRequest(PairsBeside, kw_only=True):
    """POST /v1/rerank, as Cohere, Jina and vLLM have it."""

    not_done: ClassVar[Mapping[str, NotDone]] = OF_SCORES

    model: str | None = None
    query: str
    documents: Texts
    top_n: Positive | None = None
    return_documents: bool | None = None

    def pairs(self) -> Pairs:
        documents = _texts("documents", self.documents)
        return [self.query] * len(documents), documents


class ScoreRequest(PairsBeside, kw_only=True):
    """POST /v1/score, as vLLM has it: one of the pairs of SIDES."""

    not_done: ClassVar[Mapping[str, NotDone]] = OF_SCORES

    model: str | None = None
    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None

    def pairs(self) -> Pairs:
        """One text beside each of the others, or as many beside as many."""
        left, right = self._sides()
        first, second = _texts(left, getattr(self, left)), _texts(right, getattr(self, right))
        if len(first) == 1:
            first = first * len(second)
        if len(first) != len(second):
            problem = (
                f"has {len(second)} texts, and {left} {len(first)}; send one there, or as many"
            )
            raise BadField(right, problem)
        return first, second

    def _sides(self) -> tuple[str, str]:
        """The names of the two sides that were sent, by one pair of names alone."""
        sent = {name for pair in SIDES for name in pair if getattr(self, name) is not None}
        for pair in SIDES:
            if sent == set(pair):
                return pair
        if len(sent) > 1:
            raise BadField(None, f"{', '.join(sorted(sent))}: {_ONE_PAIR}")
        lone = next(iter(sent), "text_1")
        left, right = next(pair for pair in SIDES if lone in pair)
        raise BadField(left if lone == right or not sent else right, f"is missing; {_ONE_PAIR}")


_ONE_PAIR: Final = f"send one pair of {', or '.join(' and '.join(pair) for pair in SIDES)}"


def _texts(field: str, given: Texts) -> list[str]:
    """The texts of a side."""
    several = given if isinstance(given, list) else [given]
    if not several:
        raise BadField(field, "is empty")
    if len(several) > MOST_PAIRS:
        raise BadField(field, f"holds {len(several)} texts; send at most {MOST_PAIRS}")
    return [one if isinstance(one, str) else one.text for one in several]
