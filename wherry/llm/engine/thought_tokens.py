"""How many tokens of an answer are the model's thoughts?"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from wherry.llm.engine.tokenizer import Tokenizer
from wherry.llm.formats.model_style import ModelStyle

#: Tokens that hold the mark which begins thoughts, if an answer begins with it.
FIRST_TOKENS: Final = 32


@dataclass(frozen=True, slots=True)
class ThoughtTokens:
    """Counts those between two marks, with the marks. `begin` "": the prompt has begun them."""

    begin: str
    end: str
    decode: Callable[[Sequence[int]], str]
    encode: Callable[[str], Sequence[int]]

    @classmethod
    def behind(
        cls, prompt_end: str, style: ModelStyle, tokenizer: Tokenizer
    ) -> ThoughtTokens | None:
        """What counts those of an answer to a prompt that ends like this; None: it has none."""
        marks = style.thoughts_of(prompt_end)
        if marks is None or not marks[1]:
            return None
        decode = partial(tokenizer.decode, skip_special=False)
        return cls(*marks, decode, partial(tokenizer.encode, special=False))

    def count(self, tokens: Sequence[int]) -> int:
        """Return the number of an answer's first tokens that are thoughts: all, if they do not
        end."""
        if not self.decode(tokens[:FIRST_TOKENS]).lstrip().startswith(self.begin):
            return 0
        mark = self.encode(self.end)
        if len(mark) == 1:
            return tokens.index(mark[0]) + 1 if mark[0] in tokens else len(tokens)

        def ended(count: int) -> bool:
            return self.end in self.decode(tokens[:count])

        return min(bisect_left(range(len(tokens) + 1), True, key=ended), len(tokens))
