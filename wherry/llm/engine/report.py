"""What is told of tokens beside their text: log probabilities, of an answer and of its prompt?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from wherry.llm.engine.delta import Delta
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.sequence import Sampled
from wherry.llm.engine.tokenizer import Tokenizer

#: Tokens whose text is remembered: making it takes 6 us, and a report may have 21 of a token.
PIECES: Final = 1 << 14


class Reports:
    """Describes tokens of one vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._piece = lru_cache(PIECES)(tokenizer.piece)

    def token(self, sampled: Sampled, most: int | None = None) -> dict[str, Any]:
        """A token and its alternatives, as an entry of `Delta.logprobs`; at most so many
        alternatives."""
        top = [self._entry(token, logprob) for token, logprob in sampled.alternatives[:most]]
        return {**self._entry(sampled.token, sampled.logprob), "top": top}

    def first(self, token: int) -> dict[str, Any]:
        """The first token of a prompt in the same form: nothing predicts it."""
        return {**self._entry(token, None), "top": []}

    def prompt(
        self, tokens: Sequence[int], ranked: Sequence[dict[str, Any]], sampling: Sampling
    ) -> dict[str, Any]:
        """What is told of a prompt with the first piece of its answers: `Delta.details`. `ranked`
        are its tokens from the second on."""
        details: dict[str, Any] = {"prompt_tokens": len(tokens)}
        if sampling.report_prompt_tokens:
            details["prompt_token_ids"] = list(tokens)
        if sampling.prompt_logprobs is not None:
            details["prompt_logprobs"] = [None, *ranked]
        return details

    def count(self, tokens: Sequence[int], context: int, *, names: bool) -> Delta:
        """How many tokens a prompt has, and which."""
        usage = {"prompt_tokens": len(tokens), "context_tokens": context}
        details = {"token_strs": self._tokenizer.names(tokens)} if names else {}
        return Delta(0, "", list(tokens), "stop", [], usage, details)

    def ranked(self, sampled: Sampled, most: int) -> dict[str, Any]:
        """A token and its alternatives by their numbers, as vLLM gives them."""
        found = [(sampled.token, sampled.logprob, sampled.rank)]
        top = sampled.alternatives[:most]
        found += [(token, logprob, 1 + place) for place, (token, logprob) in enumerate(top)]
        return {
            str(token): {
                "logprob": logprob,
                "rank": rank,
                "decoded_token": self._piece(token)[0],
            }
            for token, logprob, rank in found
        }

    def _entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        text, raw = self._piece(token)
        return {"token": text, "id": token, "logprob": logprob, "bytes": list(raw)}
