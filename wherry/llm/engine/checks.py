"""Why is a request refused, whatever engine would run it?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from wherry.core.api import InvalidRequest, PromptTooLong
from wherry.llm.engine.sampling import Parameters, Sampling

#: Log probabilities in the answer to one request: 100 MB.
MOST_LOGPROBS: Final = 1 << 20


def check_one_prompt(model: str, prompt: str, messages: Sequence[Any], ids: Sequence[int]) -> None:
    """Raise InvalidRequest unless exactly one of the three forms of a prompt is given."""
    if [bool(prompt), bool(messages), bool(ids)].count(True) != 1:
        problem = f"model {model!r}: give one of prompt, messages and token_ids"
        raise InvalidRequest(problem, field="prompt")


def check_task(model: str, task: str) -> None:
    """Raise InvalidRequest if there is no such task."""
    if task not in ("generate", "tokenize", "detokenize"):
        raise InvalidRequest(
            f"model {model!r}: task must be 'generate', 'tokenize' or 'detokenize',"
            f" not {task[:40]!r}",
            field="task",
        )


def check_tokens(model: str, tokens: Sequence[int], vocabulary: int, field: str = "prompt") -> None:
    """Raise InvalidRequest if a token is outside the vocabulary."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise InvalidRequest(
            f"model {model!r}: token ids must be between 0 and {vocabulary - 1}", field=field
        )


def no_room(model: str, prompt_tokens: int, context: int) -> PromptTooLong:
    """The error of a prompt that leaves none of the `context` tokens for an answer."""
    return PromptTooLong(
        # Clients recognise OpenAI's words: they shorten the prompt and try again.
        f"model {model!r}: the prompt has {prompt_tokens} tokens, which leaves none for an answer:"
        f" this model's maximum context length is {context} tokens",
        field="prompt",
    )


def check_room(model: str, parameters: Parameters, context: int) -> None:
    """InvalidRequest if more tokens are asked for than `context` can hold, whatever the prompt."""
    for field in ("min_tokens", "max_tokens"):
        requested = getattr(parameters, field) or 0
        if field == "max_tokens" and parameters.clip_max_tokens:
            continue
        if requested > context:
            raise InvalidRequest(
                f"model {model!r}: {field} must be at most {context}, this model's maximum context"
                f" length; it is {requested}",
                field=field,
            )


def tokens_to_keep(model: str, parameters: Parameters, context: int) -> int | None:
    """The number of tokens to which a request has its prompt truncated; None: it has not.
    InvalidRequest if they do not fit into `context` tokens."""
    keep = parameters.truncate_prompt
    if keep is not None and not 0 <= keep < context:
        raise InvalidRequest(
            f"model {model!r}: truncate_prompt must be at most {context - 1}, which leaves room for"
            f" one token; it is {keep}",
            field="truncate_prompt",
        )
    return max(1, context - (parameters.max_tokens or 1)) if keep == 0 else keep


def bounded(model: str, sampling: Sampling, prompt_tokens: int = 0) -> Sampling:
    """The same if an answer may have as many log probabilities as it asks for; where its maximum
    of tokens is not set, or may be clipped, with that of which it may. InvalidRequest if it may
    not."""
    told, each = 0, 0
    if sampling.prompt_logprobs is not None:
        told = prompt_tokens * (1 + sampling.prompt_logprobs)
    if sampling.logprobs is not None:
        each = sampling.n * (1 + max(sampling.logprobs, len(sampling.logprob_token_ids)))
        told += prompt_tokens * each if sampling.echo else 0
    most = (MOST_LOGPROBS - told) // (each or 1)
    free = sampling.max_tokens is None or sampling.clip_max_tokens
    if most < (1 if free or not each else sampling.max_tokens or 0):
        field = "logprobs" if each else "prompt_logprobs"
        raise InvalidRequest(
            f"model {model!r}: {field}: an answer has at most {MOST_LOGPROBS} log probabilities, of"
            " all its texts, tokens and alternatives; ask for fewer, or for fewer tokens",
            field=field,
        )
    if free and each:
        return msgspec.structs.replace(sampling, max_tokens=min(sampling.max_tokens or most, most))
    return sampling
