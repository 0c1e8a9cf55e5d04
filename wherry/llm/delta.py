"""What does a language model answer, piece by piece, whatever engine runs it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wherry.values.errors import InvalidRequest


@dataclass(slots=True)
class Delta:
    """A further piece of an answer."""

    #: Which of the request's `n` answers.
    index: int
    text: str
    #: The tokens since the last piece, those that have no text included.
    token_ids: list[int]
    #: "" while it goes on; then "stop" (the model's end, or a stop that was asked for) or "length".
    finish_reason: str
    #: For each of the tokens, if asked for: {"token", "id", "logprob", "bytes", "top": [...]}; with
    #: `echo` for the prompt's before them, of which the first has None as its logprob.
    logprobs: list[dict[str, Any]]
    #: With the end of the last answer: {"prompt_tokens", "completion_tokens", "cached_tokens"}.
    usage: dict[str, int]

    @classmethod
    def empty(cls, index: int) -> Delta:
        """The beginning of an answer that is collected until it is whole."""
        return cls(index, "", [], "", [], {})

    def extend(self, further: Delta) -> None:
        """Append a further piece of the same answer."""
        self.text += further.text
        self.token_ids += further.token_ids
        self.logprobs += further.logprobs
        self.finish_reason = further.finish_reason


def check_one_prompt(model: str, prompt: str, messages: Sequence[Any], ids: Sequence[int]) -> None:
    """InvalidRequest unless a request has exactly one of the three forms of a prompt."""
    if [bool(prompt), bool(messages), bool(ids)].count(True) != 1:
        problem = f"model {model!r}: give one of prompt, messages and token_ids"
        raise InvalidRequest(problem, field="prompt")
