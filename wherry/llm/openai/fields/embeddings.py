"""What may stand in a request to /v1/embeddings?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

import msgspec

from wherry.llm.engine.chat_form import in_texts
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.fields.beside import FieldsBeside
from wherry.llm.openai.fields.chat_messages import conversation
from wherry.llm.openai.fields.kinds import Positive
from wherry.llm.openai.fields.not_done import OF_TASKS, NotDone

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
    #: The first so many numbers of each vector, scaled to length 1.
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
