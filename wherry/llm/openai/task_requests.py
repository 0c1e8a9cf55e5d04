"""What may stand in a request to /v1/embeddings, /v1/rerank and /v1/score?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

import msgspec

from wherry.llm.openai.errors import BadField
from wherry.llm.openai.reading import NotDone, Positive, TokenId, Whole

#: Fields of vectors and scores that vLLM has: here the model alone decides how it reads and what
#: it makes.
OF_TASKS: Final = {
    "truncate_prompt_tokens": NotDone((-1,)),
    "truncation_side": NotDone(),
    "padding": NotDone(("do_not_pad",)),
    "add_special_tokens": NotDone((True,)),
    "use_activation": NotDone(),
    "normalize": NotDone(),
    "messages": NotDone(use="input"),
    "mm_processor_kwargs": NotDone(({},)),
    "media_io_kwargs": NotDone(({},)),
    "chat_template": NotDone(),
    "chat_template_kwargs": NotDone(({},)),
    "cache_salt": NotDone(),
    "embed_dtype": NotDone(("float32",)),
    "endianness": NotDone(("native", "little")),
}
OF_SCORES: Final = {
    **OF_TASKS,
    "use_activation": NotDone((True,)),
    "instruction": NotDone(("",)),
    "max_tokens_per_query": NotDone((0,)),
    "max_tokens_per_doc": NotDone((0,)),
    "rank_fields": NotDone((["text"],), use="one text each"),
}


#: Rows of one request, as OpenAI has it.
MOST_ROWS: Final = 2048


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/embeddings: texts or tokens."""

    not_done: ClassVar[Mapping[str, NotDone]] = OF_TASKS

    model: str | None = None
    #: Texts or tokens, 2048 rows at most, batched with those of other callers.
    input: str | list[str | TokenId | list[TokenId]]
    user: str | None = None
    #: base64 is of little-endian FP32.
    encoding_format: Literal["float", "base64"] | None = None
    #: The first N numbers of each vector, scaled to length 1.
    dimensions: Positive | None = None
    #: 1 runs first.
    priority: Whole | None = None

    def rows(self) -> list[str] | list[list[int]]:
        """Texts, or lists of tokens. BadField."""
        texts: Any = [self.input] if isinstance(self.input, str) else self.input
        if not texts:
            raise BadField("input", "is empty")
        if all(isinstance(one, int) for one in texts):
            return [texts]
        if len(texts) > MOST_ROWS:
            problem = f"has {len(texts)} texts or lists of tokens; send at most {MOST_ROWS}"
            raise BadField("input", problem)
        if len({type(one) for one in texts}) > 1:
            raise BadField("input", "must hold texts, or tokens, or lists of tokens")
        for place, one in enumerate(texts):
            if one == []:
                raise BadField(f"input[{place}]", "is empty")
        rows: list[str] | list[list[int]] = texts
        return rows


Pairs = tuple[list[str], list[str]]


class TextDocument(msgspec.Struct, kw_only=True):
    """A document as an object. Only its text is read."""

    text: str


#: One text or several.
Texts = str | TextDocument | list[str | TextDocument]


class RerankRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/rerank, as Cohere, Jina and vLLM have it."""

    not_done: ClassVar[Mapping[str, NotDone]] = OF_SCORES

    model: str | None = None
    query: str
    documents: Texts
    top_n: Positive | None = None
    return_documents: bool | None = None
    #: 1 runs first.
    priority: Whole | None = None

    def pairs(self) -> Pairs:
        documents = _texts("documents", self.documents)
        return [self.query] * len(documents), documents


class ScoreRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/score, as vLLM has it."""

    not_done: ClassVar[Mapping[str, NotDone]] = OF_SCORES

    model: str | None = None
    text_1: Texts
    text_2: Texts
    #: 1 runs first.
    priority: Whole | None = None

    def pairs(self) -> Pairs:
        """One text beside each of the others, or two lists of the same length."""
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
    several = texts if isinstance(texts, list) else [texts]
    if not several:
        raise BadField(field, "is empty")
    if len(several) > MOST_ROWS:
        raise BadField(field, f"holds {len(several)} texts; send at most {MOST_ROWS}")
    return [one if isinstance(one, str) else one.text for one in several]
