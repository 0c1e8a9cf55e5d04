"""What may stand in a request to /v1/embeddings, /v1/rerank and /v1/score?

What a model reads and makes is its own business: a field that says how it is to read, or which
numbers it is to tell, is an input of the same name, of a model that has one. Of others it is
refused, unless its value is what happens anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

import msgspec
import numpy as np

from wherry.core.api import Column, Columns, InvalidRequest, LoadedModel, column_of_value
from wherry.llm.openai.chat_request import conversation, in_texts
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.reading import NotDone, Positive, Whole

#: The fields, and the values of each that ask for nothing.
BESIDE: Final[dict[str, tuple[Any, ...]]] = {
    "truncate_prompt_tokens": (-1,),
    "truncation_side": (),
    "padding": ("do_not_pad",),
    "add_special_tokens": (True,),
    "use_activation": (True,),
    "add_generation_prompt": (False,),
    "continue_final_message": (False,),
    "instruction": ("",),
    "max_tokens_per_query": (0,),
    "max_tokens_per_doc": (0,),
}

#: So many tokens; 0 is none.
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


#: Of vectors and scores, as vLLM knows them.
OF_TASKS: Final = {
    "mm_processor_kwargs": NotDone(({},)),
    "media_io_kwargs": NotDone(({},)),
    "chat_template": NotDone(),
    "chat_template_kwargs": NotDone(({},)),
    "cache_salt": NotDone(),
    "embed_dtype": NotDone(("float32",)),
    "endianness": NotDone(("native", "little")),
    "normalize": NotDone(use="use_activation"),
}
OF_SCORES: Final = {
    **OF_TASKS,
    "rank_fields": NotDone((["text"],), use="one text each"),
}


class FieldsBeside(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Those of vectors and scores, as vLLM knows them."""

    #: -1: as many as the model accepts.
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    padding: Literal["max_length", "do_not_pad"] | None = None
    add_special_tokens: bool | None = None
    #: True: vectors of length 1.
    use_activation: bool | None = None
    #: 1 runs first.
    priority: Whole | None = None


class PairsBeside(FieldsBeside):
    """Those of pairs of texts."""

    instruction: str | None = None
    max_tokens_per_query: _Tokens | None = None
    max_tokens_per_doc: _Tokens | None = None


def columns_beside(
    request: msgspec.Struct, loaded: LoadedModel, rows: int, done: frozenset[str] = frozenset()
) -> Columns:
    """What a request says in such fields, as columns of `rows` rows. BadField: the model has no
    input of that name, and the field is not among those that are `done` without it."""
    columns: Columns = {}
    for name, neutral in BESIDE.items():
        value = getattr(request, name, None)
        if value is None:
            continue
        spec = loaded.signature.input(name)
        if spec is None:
            if value not in neutral and name not in done:
                raise BadField(name, f"the model '{loaded.name}' does not support it")
            continue
        try:
            columns[name] = _repeated(column_of_value(spec, value, loaded.name), rows)
        except InvalidRequest as error:
            raise BadField(name, str(error)) from None
    return columns


def _repeated(column: Column, rows: int) -> Column:
    return np.repeat(column, rows, axis=0) if isinstance(column, np.ndarray) else column * rows


#: Rows of one request, as OpenAI has it.
MOST_INPUTS: Final = 2048
#: A token, which is at least 0.
Token = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class ToRead(NamedTuple):
    """What a model is to read, a row each: one of these is not empty."""

    texts: Sequence[str] = ()
    tokens: Sequence[list[int]] = ()
    conversations: Sequence[list[dict[str, Any]]] = ()


class EmbeddingRequest(FieldsBeside):
    """POST /v1/embeddings: texts, tokens, or a conversation."""

    not_done: ClassVar[Mapping[str, NotDone]] = OF_TASKS

    model: str | None = None
    #: Texts or tokens, 2048 rows at most, batched with those of other callers.
    input: str | list[str | Token | list[Token]] | None = None
    #: A conversation in place of `input`, for a model with an input of that name.
    messages: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    user: str | None = None
    #: base64 is of little-endian FP32.
    encoding_format: Literal["float", "base64"] | None = None
    #: The first N numbers of each vector, scaled to length 1.
    dimensions: Positive | None = None

    def rows(self) -> ToRead:
        """BadField, if it is none or more than one of them."""
        if self.add_generation_prompt and self.continue_final_message:
            problem = "the last message goes on, or another begins: leave one of the two out"
            raise BadField("continue_final_message", problem)
        if self.messages is not None:
            if self.input is not None:
                raise BadField("messages", "stands beside input: send one of the two")
            return ToRead(conversations=[in_texts(conversation(self.messages))])
        texts: Any = [self.input] if isinstance(self.input, str) else self.input
        if texts is None:
            raise BadField("input", "is missing")
        if not texts:
            raise BadField("input", "is empty")
        if all(isinstance(one, int) for one in texts):
            return ToRead(tokens=[texts])
        if len(texts) > MOST_INPUTS:
            problem = f"has {len(texts)} texts or lists of tokens; send at most {MOST_INPUTS}"
            raise BadField("input", problem)
        if all(isinstance(one, str) for one in texts):
            return ToRead(texts)
        if not all(isinstance(one, list) for one in texts):
            raise BadField("input", "must hold texts, or tokens, or lists of tokens")
        for place, one in enumerate(texts):
            if not one:
                raise BadField(f"input[{place}]", "is empty")
        return ToRead(tokens=texts)


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
    several = texts if isinstance(texts, list) else [texts]
    if not several:
        raise BadField(field, "is empty")
    if len(several) > MOST_PAIRS:
        raise BadField(field, f"holds {len(several)} texts; send at most {MOST_PAIRS}")
    return [one if isinstance(one, str) else one.text for one in several]
