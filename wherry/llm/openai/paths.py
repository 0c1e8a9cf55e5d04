"""On which paths is OpenAI's form of errors read?"""

from __future__ import annotations

from typing import Final

#: Where Jina, Cohere, vLLM and SageMaker have what others have below /v1.
BESIDE_V1: Final = frozenset(
    (
        "/tokenize", "/detokenize", "/score", "/rerank", "/v2/rerank", "/invocations",
    )
)  # fmt: skip


def speaks_openai(path: str) -> bool:
    """Whether a refusal on this path has OpenAI's form."""
    return path.startswith("/v1/") or path in BESIDE_V1
