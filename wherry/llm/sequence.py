"""What is known of one generation while it goes on?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

from wherry.llm.kv_cache import BlockTable
from wherry.llm.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token, and the log probabilities if they were asked for: before temperature, penalties
    and masks, as the model has them."""

    token: int
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()


class Constraint(Protocol):
    """What an answer must look like: a grammar, a schema, a regular expression.

    One object for each sequence, asked in the order of its tokens.
    """

    def mask(self, logits: Any) -> None:
        """Set what must not follow to minus infinity, in place: one row of logits (a tensor)."""

    def accept(self, token: int) -> None:
        """This token was chosen."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and what was generated so far."""

    id: int
    #: The prompt's tokens, then the generated ones.
    tokens: list[int]
    prompt_tokens: int
    sampling: Sampling
    #: 1 runs first; among equals in order of arrival.
    priority: int = 5
    #: Most tokens it may come to have: its own limit, the model's or the cache's.
    max_length: int = 1 << 30
    #: Which of its request's answers it is.
    index: int = 0
    #: What its random numbers come from, together with their places.
    seed: int = 0
    #: Tokens that end it.
    ends: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    #: How often each token occurs in the answer; kept only if a penalty asks for it.
    occurrences: Counter[int] = field(default_factory=Counter)
    #: Tokens whose keys and values are in the cache.
    computed: int = 0
    table: BlockTable = field(default_factory=BlockTable)
    #: Tokens that did not have to be computed when it started first.
    cached_tokens: int = 0
    preemptions: int = 0
    #: How probable the prompt's tokens are, from the second on, as far as that was asked and is
    #: known.
    prompt_report: list[Sampled] = field(default_factory=list)

    @property
    def reports_prompt(self) -> bool:
        """Are log probabilities of its prompt still missing? Only computing it tells them. The
        first of a request's answers does that for the others."""
        asked = self.sampling.reports_prompt and self.index == 0
        return asked and len(self.prompt_report) < self.prompt_tokens - 1

    @property
    def to_compute(self) -> int:
        """Tokens that the model has not seen: 1 while it decodes, more while it prefills."""
        return len(self.tokens) - self.computed

    @property
    def generated_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    def __repr__(self) -> str:
        return f"<Sequence {self.id}: {self.prompt_tokens} + {self.generated_tokens} tokens>"
