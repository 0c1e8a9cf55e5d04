"""What may stand in a request to /v1/rerank and /v1/score?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from wherry.llm.openai.errors import BadField
from wherry.llm.openai.fields.beside import PairsBeside
from wherry.llm.openai.fields.kinds import Positive
from wherry.llm.openai.fields.not_done import OF_SCORES, NotDone

#: Pairs of texts of one request.
MOST_PAIRS: Final = 2048

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
    """POST /v1/score, as vLLM has it."""

    not_done: ClassVar[Mapping[str, NotDone]] = OF_SCORES

    model: str | None = None
    text_1: Texts
    text_2: Texts

    def pairs(self) -> Pairs:
        """One text beside each of the others, or as many beside as many."""
        first, second = _texts("text_1", self.text_1), _texts("text_2", self.text_2)
        if len(first) == 1:
            first = first * len(second)
        if len(first) != len(second):
            problem = (
                f"has {len(second)} texts, and text_1 {len(first)}; send one there, or as many"
            )
            raise BadField("text_2", problem)
        return first, second


def _texts(field: str, texts: Texts) -> list[str]:
    """The texts of a side."""
    several = texts if isinstance(texts, list) else [texts]
    if not several:
        raise BadField(field, "is empty")
    if len(several) > MOST_PAIRS:
        raise BadField(field, f"holds {len(several)} texts; send at most {MOST_PAIRS}")
    return [one if isinstance(one, str) else one.text for one in several]
