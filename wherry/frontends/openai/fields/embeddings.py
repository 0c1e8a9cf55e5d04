"""What may stand in a request to /v1/embeddings?"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from wherry.frontends.openai.errors import BadField
from wherry.frontends.openai.fields.kinds import Positive

#: Rows of one request, as OpenAI has it.
MOST_INPUTS: Final = 2048
#: A token, which is at least 0.
Token = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/embeddings."""

    model: str | None = None
    input: str | list[str | Token | list[Token]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Positive | None = None
    user: str | None = None

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
