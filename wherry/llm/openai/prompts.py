"""What does one request ask of a model: which prompts has it, and what do all of them share?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wherry.core.api import value_bytes
from wherry.llm.engine.sampling import MOST_LOGPROBS
from wherry.llm.openai.errors import BadField

#: The model's inputs for one row.
Inputs = dict[str, Any]

#: What all prompts of a request share counts once for each of them, as each is a request to the
#: model, which may run in another process; together it may be so much.
MOST_SHARED_BYTES: Final = 16 * 2**20
#: Tokens of an answer that the request does not bound.
LEAST_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class Prompts:
    """The model's inputs for each prompt of a request, and those that all of them share."""

    own: Sequence[Inputs]
    shared: Inputs
    #: Bytes of the inputs of each prompt, the shared ones among them.
    nbytes: Sequence[int]

    @classmethod
    def of(cls, own: Sequence[Inputs], shared: Inputs, field: str = "") -> Prompts:
        """Measure them, which takes as long as reading them did. BadField, for the field of the
        prompts, if they are too many for what they share."""
        once = value_bytes(shared)
        if len(own) > 1 and len(own) * once > MOST_SHARED_BYTES:
            most = MOST_SHARED_BYTES // once
            raise BadField(
                field,
                f"holds {len(own)}, and the fields that hold for each of them have {once} bytes;"
                f" send at most {most or 1} at a time beside these",
            )
        parameters = shared.get("parameters") or {}
        if len(own) > 1 and (logprobs := _logprobs(own, parameters)) > MOST_LOGPROBS:
            raise BadField(
                field,
                f"holds {len(own)}, with up to {logprobs} log probabilities together; send at most"
                f" {MOST_LOGPROBS * len(own) // logprobs or 1} at a time",
            )
        return cls(own, shared, [once + value_bytes(each) for each in own])

    @classmethod
    def single(cls, inputs: Inputs) -> Prompts:
        """One prompt, by all its inputs."""
        return cls.of([{}], inputs)


def _logprobs(own: Sequence[Inputs], parameters: Mapping[str, Any]) -> int:
    """How many log probabilities are asked for, at most: a token is a character at least."""
    answers, most = parameters.get("n") or 1, parameters.get("logprobs")
    each = 0 if most is None else answers * (1 + most)
    of_a_token = each if parameters.get("echo") else 0
    if (ranked := parameters.get("prompt_logprobs")) is not None:
        of_a_token += 1 + ranked
    tokens = sum(len(one.get("prompt") or one.get("token_ids") or "") for one in own)
    return of_a_token * tokens + each * (parameters.get("max_tokens") or LEAST_TOKENS) * len(own)
