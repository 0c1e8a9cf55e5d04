"""What may stand in a request to /v1/embeddings, or to Cohere's /v2/embed?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from wherry.frontends.openai.errors import BadField
from wherry.frontends.openai.fields.kinds import Positive
from wherry.frontends.openai.fields.not_done import OF_EMBED, OF_EMBEDDINGS, NotDone

#: Rows of one request, as OpenAI has it.
MOST_INPUTS: Final = 2048
#: A token, which is at least 0.
Token = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
#: As which a vector may be told; Cohere's `int8` and `uint8` need a range for each model.
EmbeddingType = Literal["float", "base64", "binary", "ubinary"]


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/embeddings."""

    not_done: ClassVar[Mapping[str, NotDone]] = OF_EMBEDDINGS
    #: The names of the texts, and of the numbers that a vector is to have.
    texts_field: ClassVar[str] = "input"
    width_field: ClassVar[str] = "dimensions"

    model: str | None = None
    input: str | list[str | Token | list[Token]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Positive | None = None
    user: str | None = None

    @property
    def width(self) -> int | None:
        return self.dimensions

    def rows(self) -> tuple[list[str], list[list[int]]]:
        """The texts, or the lists of tokens: one of the two is empty."""
        given: Any = [self.input] if isinstance(self.input, str) else self.input
        if not given:
            raise BadField("input", "is empty")
        if all(isinstance(one, int) for one in given):
            return [], [given]
        if len(given) > MOST_INPUTS:
            problem = f"has {len(given)} texts or lists of tokens; send at most {MOST_INPUTS}"
            raise BadField("input", problem)
        if all(isinstance(one, str) for one in given):
            return given, []
        if not all(isinstance(one, list) for one in given):
            raise BadField("input", "must hold texts, or tokens, or lists of tokens")
        for place, one in enumerate(given):
            if not one:
                raise BadField(f"input[{place}]", "is empty")
        return [], given


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

    @property
    def width(self) -> int | None:
        return self.output_dimension

    def rows(self) -> tuple[list[str], list[list[int]]]:
        """The texts; tokens are none."""
        if not self.texts:
            raise BadField("texts", "is empty")
        if len(self.texts) > MOST_INPUTS:
            raise BadField("texts", f"has {len(self.texts)} texts; send at most {MOST_INPUTS}")
        return self.texts, []

    def types(self) -> list[EmbeddingType]:
        """As which each vector is told, once each; without any said, as floats."""
        return list(dict.fromkeys(self.embedding_types or ("float",)))
