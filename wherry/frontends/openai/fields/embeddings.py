"""What may stand in a request to /v1/embeddings?"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from wherry.frontends.openai.errors import BadField
from wherry.frontends.openai.fields.kinds import Whole


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/embeddings."""

    model: str | None = None
    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Whole | None = None
    user: msgspec.Raw = msgspec.Raw()

    def texts(self) -> list[str]:
        texts: Any = [self.input] if isinstance(self.input, str) else self.input
        if not texts or not all(isinstance(text, str) for text in texts):
            raise BadField("input", "must be a text or a list of texts; tokens are not supported")
        return list(texts)
