"""Which functions may an answer call, and how is a call named?"""

from __future__ import annotations

from dataclasses import dataclass, field

from wherry.llm.formats.calls import Functions


@dataclass(frozen=True, slots=True)
class AllowedCalls:
    """What a request lets its answers call."""

    functions: Functions = field(default_factory=dict)
    #: The most calls of an answer; None: any number. What goes beyond is left out.
    most: int | None = None
    #: The answer is constrained to be a call: bare JSON, whatever the model's own form is.
    forced: bool = False


def call_id(answer: str, number: int) -> str:
    """One for each call of an answer; unique as the answer's own id is."""
    return f"call_{answer.rpartition('-')[2]}_{number}"
