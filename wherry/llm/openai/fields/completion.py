"""What may stand in a request to /v1/completions, and which prompts are in it?"""

from __future__ import annotations

from typing import Any, Final

from wherry.llm.openai.errors import BadField
from wherry.llm.openai.fields.generating import Request
from wherry.llm.openai.fields.kinds import Alternatives, Whole
from wherry.llm.openai.prompts import Prompts

#: Each is a request of its own to the model.
MAX_PROMPTS: Final = 1024


class CompletionRequest(Request):
    """POST /v1/completions."""

    prompt: str | list[str | Whole | list[Whole]]
    #: 16 if not given; 0 only with `echo`.
    max_tokens: Whole | None = None
    logprobs: Alternatives | None = None
    #: Only the value of `n`.
    best_of: int | None = None
    #: Refused, unless it is empty.
    suffix: str | None = None
    #: False: without what the checkpoint puts before a text.
    add_special_tokens: bool | None = None

    def inputs(self) -> Prompts:
        """The model's inputs for each prompt."""
        texts = self.prompts()
        own = [{"prompt" if isinstance(one, str) else "token_ids": one} for one in texts]
        return Prompts.of(own, {"parameters": self.sampling()}, "prompt")

    def prompts(self) -> list[str | list[int]]:
        """One or several, each a text or tokens."""
        value: Any = self.prompt
        kinds = {str} if isinstance(value, str) else {type(part) for part in value}
        if len(kinds) > 1:
            raise BadField("prompt", "must hold texts, or tokens, or lists of tokens")
        prompts = [value] if isinstance(value, str) or kinds == {int} else list(value)
        if not prompts or not all(prompts):
            raise BadField("prompt", "is empty")
        if len(prompts) > MAX_PROMPTS:
            raise BadField("prompt", f"holds {len(prompts)} prompts; send at most {MAX_PROMPTS}")
        return prompts

    def sampling(self) -> dict[str, Any]:
        if self.suffix:
            raise BadField("suffix", "text after the gap is not supported")
        if self.best_of not in (None, self.n or 1):
            raise BadField("best_of", "only the value of n is supported")
        if self.logprob_token_ids is not None and self.logprobs is None:
            raise BadField("logprob_token_ids", "it needs logprobs")
        sampling = super().sampling()
        if self.add_special_tokens is False:
            sampling["add_special_tokens"] = False
        if self.max_tokens is not None:
            sampling["max_tokens"] = self.max_tokens
        if self.logprobs is not None:
            sampling["logprobs"] = self.logprobs
        if self.echo and not self.echoes():
            sampling["echo"] = True
        return sampling

    def echoes(self) -> list[str]:
        """The prompts, if that is all there is to an echo; else it is the model's to make: of
        tokens, with log probabilities, of what truncation leaves, or without an answer."""
        simple = (self.logprobs, self.truncate_prompt_tokens) == (None, None)
        if not self.echo or not simple or self.max_tokens == 0:
            return []
        return [prompt for prompt in self.prompts() if isinstance(prompt, str)]
