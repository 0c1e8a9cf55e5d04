"""What do the lists of tokens that a request brings add to logits, and leave to be chosen?

They are read once, for all steps of all its answers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wherry.llm.engine.sampling import Sampling

Tokens = npt.NDArray[np.int64]
NONE: Final = Sampling()


class TokenLists:
    """The lists of one request; `ends` are the tokens that end its answers."""

    def __init__(self, sampling: Sampling = NONE, ends: frozenset[int] = frozenset()) -> None:
        self.biased = array_of(sampling.logit_bias)
        self.biases = np.array([*sampling.logit_bias.values()], np.float32)
        self.ends = array_of(ends)
        words = sampling.bad_words_ids
        self._allowed = array_of(sampling.allowed_token_ids)
        self._banned = array_of([word[0] for word in words if len(word) == 1])
        last: dict[tuple[int, ...], list[int]] = {}
        for word in words:
            if len(word) > 1:
                last.setdefault(word[:-1], []).append(word[-1])
        #: The tokens that complete a bad word, by those in front of them, and how many these are.
        self._last = {before: array_of(tokens) for before, tokens in last.items()}
        self._lengths = sorted({len(before) for before in last})
        #: The tensor of `left`, on the device, once a step has needed it.
        self.mask: Any = None

    @property
    def narrow(self) -> bool:
        """Whether some tokens may be left out."""
        return bool(self._allowed.size or self._banned.size or self._last)

    def left(self, vocabulary: int) -> npt.NDArray[np.bool_]:
        """Which tokens are left whatever the text is."""
        left = np.full(vocabulary, not self._allowed.size)
        left[self._allowed] = True
        left[self._banned] = False
        return left

    def completing(self, tokens: Sequence[int], generated: int) -> list[Tokens]:
        """The tokens that would complete a bad word behind these, of which the last ones are
        `generated`."""
        ends = (tuple(tokens[-n:]) for n in self._lengths if n <= generated)
        return [self._last[end] for end in ends if end in self._last]


def array_of(tokens: Collection[int]) -> Tokens:
    return np.fromiter(tokens, np.int64, len(tokens))
