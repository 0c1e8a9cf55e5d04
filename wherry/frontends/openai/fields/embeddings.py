"""What may stand in a request for vectors, classes, or any numbers that a model makes of texts?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

import msgspec

from wherry.frontends.openai.errors import BadField
from wherry.frontends.openai.fields.beside import FieldsBeside
from wherry.frontends.openai.fields.kinds import Positive
from wherry.frontends.openai.fields.messages import conversation
from wherry.frontends.openai.fields.not_done import OF_EMBED, OF_TASKS, NotDone
from wherry.llm.chat_form import in_texts

#: Rows of one request, as OpenAI has it.
MOST_INPUTS: Final = 2048
#: A token, which is at least 0.
Token = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
#: As which a vector may be told; Cohere's `int8` and `uint8` need a range for each model.
EmbeddingType = Literal["float", "base64", "binary", "ubinary"]
#: What /pooling may be asked for, as vLLM names it.
PoolingTask = Literal["embed", "classify", "token_embed", "token_classify"]


class ToRead(NamedTuple):
    """What a model is to read, a row each: one of these is not empty."""

    texts: Sequence[str] = ()
    tokens: Sequence[list[int]] = ()
    conversations: Sequence[list[dict[str, Any]]] = ()


class ReadRequest(FieldsBeside):
    """A request with texts, with tokens, or with a conversation."""

    not_done: ClassVar[Mapping[str, NotDone]] = OF_TASKS
    #: The name of the texts.
    texts_field: ClassVar[str] = "input"

    model: str | None = None
    input: str | list[str | Token | list[Token]] | None = None
    messages: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    user: str | None = None

    def rows(self) -> ToRead:
        """BadField, if it is none or more than one of them."""
        if self.add_generation_prompt and self.continue_final_message:
            problem = "the last message goes on, or another begins: leave one of the two out"
            raise BadField("continue_final_message", problem)
        if self.messages is not None:
            if self.input is not None:
                raise BadField("messages", "stands beside input: send one of the two")
            return ToRead(conversations=[in_texts(conversation(self.messages))])
        given: Any = [self.input] if isinstance(self.input, str) else self.input
        if given is None:
            raise BadField("input", "is missing")
        if not given:
            raise BadField("input", "is empty")
        if all(isinstance(one, int) for one in given):
            return ToRead(tokens=[given])
        if len(given) > MOST_INPUTS:
            problem = f"has {len(given)} texts or lists of tokens; send at most {MOST_INPUTS}"
            raise BadField("input", problem)
        if all(isinstance(one, str) for one in given):
            return ToRead(given)
        if not all(isinstance(one, list) for one in given):
            raise BadField("input", "must hold texts, or tokens, or lists of tokens")
        for place, one in enumerate(given):
            if not one:
                raise BadField(f"input[{place}]", "is empty")
        return ToRead(tokens=given)


class ClassifyRequest(ReadRequest):
    """POST /classify, as vLLM has it."""


class EncodedRequest(ReadRequest):
    """A request that says in which form numbers are told."""

    width_field: ClassVar[str] = "dimensions"

    #: vLLM's `bytes` are nothing but numbers, with a header that says where each row is.
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] | None = None
    embed_dtype: Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"] | None = None
    endianness: Literal["native", "big", "little"] | None = None
    dimensions: Positive | None = None
    #: The name that `use_activation` had before.
    normalize: bool | None = None

    @property
    def width(self) -> int | None:
        return self.dimensions


class EmbeddingRequest(EncodedRequest):
    """POST /v1/embeddings."""


class PoolingRequest(EncodedRequest):
    """POST /pooling, as vLLM has it."""

    task: PoolingTask | None = None


class EmbedRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v2/embed, as Cohere has it."""

    not_done: ClassVar[Mapping[str, NotDone]] = OF_EMBED
    texts_field: ClassVar[str] = "texts"
    width_field: ClassVar[str] = "output_dimension"

    model: str | None = None
    texts: list[str]
    #: What the texts are for: an input of a model that makes different vectors of questions.
    input_type: str | None = None
    embedding_types: list[EmbeddingType] | None = None
    output_dimension: Positive | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    max_tokens: Positive | None = None

    @property
    def width(self) -> int | None:
        return self.output_dimension

    def rows(self) -> ToRead:
        """The texts."""
        if not self.texts:
            raise BadField("texts", "is empty")
        if len(self.texts) > MOST_INPUTS:
            raise BadField("texts", f"has {len(self.texts)} texts; send at most {MOST_INPUTS}")
        return ToRead(self.texts)

    def types(self) -> list[EmbeddingType]:
        """As which each vector is told, once each; without any said, as floats."""
        return list(dict.fromkeys(self.embedding_types or ("float",)))
