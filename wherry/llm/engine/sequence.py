"""What is the state of one generation?"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from wherry.llm.engine.constraint import TokenBits
from wherry.llm.engine.kv_cache import BlockTable
from wherry.llm.engine.sampling import Sampling

Tokens = npt.NDArray[np.int64]
_PLAIN: Final = Sampling()


class TokenLists:
    """The lists of one request; `ends` are the tokens that end its answers."""

    def __init__(self, sampling: Sampling = _PLAIN, ends: frozenset[int] = frozenset()) -> None:
        self.biased = array_of(sampling.logit_bias)
        self.biases = np.array([*sampling.logit_bias.values()], np.float32)
        self.ends = array_of(ends)
        self.allowed = array_of(sampling.allowed_token_ids)
        #: Which tokens are `allowed`, on the device, once a step has needed it.
        self.mask: Any = None


def array_of(tokens: Collection[int]) -> Tokens:
    return np.fromiter(tokens, np.int64, len(tokens))


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token. Log probabilities, if requested, are those of the model: before temperature,
    penalties and masks."""

    token: int
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()
    #: Of a prompt's token: 1 for the most probable one.
    rank: int = 0


class Constraint(Protocol):
    """The form that an answer must have (a grammar, a schema, a regular expression).

    One object for each sequence; it gets the sequence's tokens in order.
    """

    def mask(self, allowed: TokenBits) -> None:
        """Clear the bits of tokens that may not follow, in place: `allowed` has one for each of the
        vocabulary, of each byte the lowest first, and may have some more."""

    def accept(self, token: int) -> None:
        """Advance by the token that was chosen."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One generation: its prompt, the tokens generated so far, and its blocks in the KV cache."""

    id: int
    #: The prompt's tokens, then the generated ones. Within a step the last may be below 0: it is on
    #: the device alone, and ~token its place among those chosen in the step before.
    tokens: list[int]
    prompt_tokens: int
    sampling: Sampling
    #: Maximum of prompt and generated tokens: by the request, the model's context or the KV cache.
    max_length: int = 1 << 30
    #: Its index among the request's `n` answers.
    index: int = 0
    #: Its random numbers are a function of this and of the token's position.
    seed: int = 0
    #: Tokens that end the generation.
    ends: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    #: The key of its adapter; "": the model alone.
    adapter: str = ""
    #: The lists of its request, which its answers share.
    lists: TokenLists = field(default_factory=TokenLists)
    #: For penalties: a number of its first tokens, and a tensor of how often each token of
    #: the vocabulary is among them (sampler.py); None until they are needed.
    occurrences: tuple[int, Any] | None = None
    #: Number of leading tokens whose keys and values are in the KV cache.
    computed: int = 0
    table: BlockTable = field(default_factory=BlockTable)
    #: Tokens found in the prefix cache when the sequence was first scheduled.
    cached_tokens: int = 0
    preemptions: int = 0
    #: Steps of this sequence alone that ran out of memory.
    failures: int = 0
    #: Whether it was removed, as it has ended or was cancelled.
    ended: bool = False
    #: The error that its constraint raised.
    error: Exception | None = None
    #: Whether it chooses among more tokens than are sorted first; None: the sampler
    #: waits for the device to see it.
    sorts_all: bool | None = None
    #: Log probabilities of the prompt's tokens from the second on, as far as requested and
    #: computed.
    prompt_report: list[Sampled] = field(default_factory=list)

    @property
    def prefix_kind(self) -> str:
        """Sequences of the same kind, adapter and salt, may share a prefix."""
        salt = self.sampling.cache_salt
        return f"{self.adapter}/{salt}" if self.adapter or salt else ""

    @property
    def reports_prompt(self) -> bool:
        """Whether log probabilities of the prompt are still missing. They need a prefill without
        prefix cache, which only the first of a request's answers does."""
        reports = self.sampling.reports_prompt and self.index == 0
        return reports and len(self.prompt_report) < self.prompt_tokens - 1

    @property
    def to_compute(self) -> int:
        """Tokens whose keys and values are not computed yet: 1 in decode, usually more in
        prefill."""
        return len(self.tokens) - self.computed

    @property
    def generated_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    def __repr__(self) -> str:
        return f"<Sequence {self.id}: {self.prompt_tokens} + {self.generated_tokens} tokens>"
