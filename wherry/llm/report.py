"""What is told of tokens beside their text: log probabilities, of an answer and of its prompt?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wherry.llm.delta import Delta
from wherry.llm.sampling import Sampling
from wherry.llm.sequence import Sampled
from wherry.llm.tokenizer import Tokenizer


class Reports:
    """Describes tokens of one vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def token(self, sampled: Sampled, most: int | None = None) -> dict[str, Any]:
        """A token and its alternatives, as an entry of `Delta.logprobs`; at most so many
        alternatives."""
        top = [self._entry(token, logprob) for token, logprob in sampled.alternatives[:most]]
        return {**self._entry(sampled.token, sampled.logprob), "top": top}

    def echo(
        self, tokens: Sequence[int], report: Sequence[Sampled], most: int
    ) -> list[dict[str, Any]]:
        """The tokens of a prompt in the same form; nothing predicts the first one."""
        first = {**self._entry(tokens[0], None), "top": []}
        return [first, *(self.token(sampled, most) for sampled in report)]

    def prompt(
        self, tokens: Sequence[int], report: Sequence[Sampled], sampling: Sampling
    ) -> dict[str, Any]:
        """What is told of a prompt with the first piece of its answers: `Delta.details`."""
        details: dict[str, Any] = {"prompt_tokens": len(tokens)}
        if sampling.report_prompt_tokens:
            details["prompt_token_ids"] = list(tokens)
        if sampling.prompt_logprobs is not None:
            most = sampling.prompt_logprobs
            details["prompt_logprobs"] = [None, *(self._ranked(one, most) for one in report)]
        return details

    def count(self, tokens: Sequence[int], context: int, *, names: bool) -> Delta:
        """How many tokens a prompt has, and which."""
        usage = {"prompt_tokens": len(tokens), "context_tokens": context}
        details = {"token_strs": self._tokenizer.names(tokens)} if names else {}
        return Delta(0, "", list(tokens), "stop", [], usage, details)

    def _ranked(self, sampled: Sampled, most: int) -> dict[str, Any]:
        """A token and its alternatives by their numbers, as vLLM gives them."""
        found = [(sampled.token, sampled.logprob, sampled.rank)]
        top = sampled.alternatives[:most]
        found += [(token, logprob, 1 + place) for place, (token, logprob) in enumerate(top)]
        return {
            str(token): {
                "logprob": logprob,
                "rank": rank,
                "decoded_token": self._tokenizer.piece(token)[0],
            }
            for token, logprob, rank in found
        }

    def _entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        text, raw = self._tokenizer.piece(token)
        return {"token": text, "id": token, "logprob": logprob, "bytes": list(raw)}
