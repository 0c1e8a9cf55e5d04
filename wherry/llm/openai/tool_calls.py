"""Which functions may an answer call, and how is a call named?"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

from wherry.llm.formats.calls import Functions


@dataclass(frozen=True, slots=True)
class AllowedCalls:
    """What a request lets its answers call."""

    functions: Functions = field(default_factory=dict)
    #: The most calls of an answer; None: any number. What goes beyond is left out.
    most: int | None = None
    #: The answer is constrained to be a call: bare JSON, whatever the model's own form is.
    forced: bool = False


def call_id(answer: str, number: int, family: str) -> str:
    """One for each call of an answer, which is named by its id and its index; as unique as that.
    Templates of Mistral's models refuse all but nine letters and digits."""
    digest = blake2b(f"{answer}/{number}".encode(), digest_size=12).hexdigest()
    return digest[:9] if family == "mistral" else f"call_{digest}"
