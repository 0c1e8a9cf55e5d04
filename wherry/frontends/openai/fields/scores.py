"""What may stand in a request to /v1/rerank and /v1/score?"""

from __future__ import annotations

from typing import Final

import msgspec

from wherry.frontends.openai.errors import BadField
from wherry.frontends.openai.fields.kinds import Positive

#: Pairs of texts of one request.
MOST_PAIRS: Final = 2048

Pairs = tuple[list[str], list[str]]


class TextDocument(msgspec.Struct, kw_only=True):
    """A document as an object. What it has beside its text is not looked at."""

    text: str


class RerankRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/rerank, as Cohere, Jina and vLLM have it."""

    model: str | None = None
    query: str
    documents: list[str | TextDocument]
    top_n: Positive | None = None
    return_documents: bool | None = None

    def texts(self) -> list[str]:
        """The documents' texts."""
        return [one if isinstance(one, str) else one.text for one in self.documents]

    def pairs(self) -> Pairs:
        _check("documents", len(self.documents))
        return [self.query] * len(self.documents), self.texts()


class ScoreRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/score, as vLLM has it."""

    model: str | None = None
    text_1: str | list[str]
    text_2: str | list[str]

    def pairs(self) -> Pairs:
        """One text beside each of the others, or as many beside as many."""
        first, second = ([t] if isinstance(t, str) else t for t in (self.text_1, self.text_2))
        _check("text_1", len(first))
        _check("text_2", len(second))
        if len(first) == 1:
            first = first * len(second)
        if len(first) != len(second):
            problem = (
                f"has {len(second)} texts, and text_1 {len(first)}; send one there, or as many"
            )
            raise BadField("text_2", problem)
        return first, second


def _check(field: str, count: int) -> None:
    if not count:
        raise BadField(field, "is empty")
    if count > MOST_PAIRS:
        raise BadField(field, f"holds {count} texts; send at most {MOST_PAIRS}")
