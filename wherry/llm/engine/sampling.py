"""Which sampling parameters can a request set, and which values are valid?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from wherry.core.api import ConfigError, InvalidRequest, PromptTooLong
from wherry.llm.engine.constraint import AnswerForm

#: Maximum of `logprobs`: alternatives beside the chosen token.
MAX_LOGPROBS: Final = 20
#: Limits of the values compared with each token: characters of stop strings, tokens in a list.
MOST_STOP_CHARACTERS: Final = 1024
MOST_STOPS: Final = 64
MOST_TOKENS_NAMED: Final = 1024
#: Limit of the tokens to which a choice is restricted: a vocabulary has no more.
MOST_TOKENS_ALLOWED: Final = 1 << 18

#: Log probabilities in the answer to one request: 100 MB.
MOST_LOGPROBS: Final = 1 << 20

_Check = tuple[bool, str, str]
Alternatives = Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)]

#: The most tokens in each list of them.
TOKEN_LISTS: Final = {
    "stop_token_ids": MOST_TOKENS_NAMED,
    "allowed_token_ids": MOST_TOKENS_ALLOWED,
}


#: Names in generation_config.json, and ours.
RECOMMENDED: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def defaults_of(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters in the content of a generation_config.json. ConfigError names one whose value
    is not valid."""
    named = ((ours, generation_config.get(name)) for name, ours in RECOMMENDED.items())
    found = {ours: value for ours, value in named if value is not None}
    if found.get("top_k") == -1:
        del found["top_k"]
    try:
        msgspec.convert(found, Sampling).checked("generation_config.json", vocabulary=1)
    except (msgspec.ValidationError, InvalidRequest) as error:
        raise ConfigError(f"generation_config.json: {error}") from None
    return found


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sampling parameters that one request sets. None: not set, so the checkpoint's default
    (`generation_config.json`) holds."""

    #: Maximum number of generated tokens; None: up to the context's end. 0 only with `echo`, for
    #: the prompt alone.
    max_tokens: int | None = None
    #: Reduce a `max_tokens` that exceeds the context, instead of refusing it.
    clip_max_tokens: bool = False
    #: Minimum number of generated tokens.
    min_tokens: int = 0
    #: 0: always the most probable token.
    temperature: float | None = None
    #: Sample from the smallest set of most probable tokens whose probabilities sum to this.
    top_p: float | None = None
    #: Sample from this number of most probable tokens; 0: from all.
    top_k: int | None = None
    #: Minimum probability of a token, relative to the most probable one.
    min_p: float | None = None
    #: Above 1 makes tokens of the prompt and of the answer less likely.
    repetition_penalty: float | None = None
    #: Subtracted once from the logit of each token that occurs in the answer.
    presence_penalty: float = 0.0
    #: The same, once for each occurrence.
    frequency_penalty: float = 0.0
    #: The same seed gives the same text in any batch; None: a random seed.
    seed: int | None = None
    #: Added to the logits of tokens, by token id.
    logit_bias: dict[int, float] = {}
    #: Report log probabilities: of each token and of this many alternatives; None: none.
    logprobs: Alternatives | None = None
    #: `logprobs` of the prompt's tokens.
    prompt_logprobs: Alternatives | None = None
    #: Report the tokens of the prompt.
    report_prompt_tokens: bool = False
    #: Put the prompt before each answer, and its tokens before `logprobs`.
    echo: bool = False
    #: Number of answers.
    n: int = 1
    #: Stop strings; not part of the answer unless `include_stop`.
    stop: tuple[str, ...] = ()
    #: Tokens that end the answer; not part of its text unless `include_stop`.
    stop_token_ids: tuple[int, ...] = ()
    #: The only tokens that may be chosen, including end-of-text; empty: all. Ignored where no token
    #: would be left.
    allowed_token_ids: tuple[int, ...] = ()
    #: Ignore the model's end-of-text tokens.
    ignore_eos: bool = False
    #: Keep the stop text in the answer.
    include_stop: bool = False
    #: Leave special tokens out of the text.
    skip_special_tokens: bool = True
    #: Add the tokenizer's own tokens, such as BOS. None: to a `prompt` only, since chat templates
    #: contain them.
    add_special_tokens: bool | None = None
    #: Keep only this many tokens of the prompt; 0: as many as fit.
    truncate_prompt: int | None = None
    #: The end of the prompt that `truncate_prompt` cuts off.
    truncation_side: Literal["left", "right"] = "left"
    #: The form of the answer (schema, grammar, ...); None: unconstrained.
    constraint: AnswerForm | None = None
    #: Maximum number of reasoning tokens, after which reasoning is ended; None: no limit.
    thinking_budget: int | None = None
    #: Name of a LoRA adapter; "": the model alone.
    adapter: str = ""
    #: Share cached prefixes only with requests of the same salt.
    cache_salt: str = ""

    @property
    def reports_prompt(self) -> bool:
        """Whether the prompt's log probabilities are requested."""
        return self.prompt_logprobs is not None or (self.echo and self.logprobs is not None)

    @property
    def prompt_alternatives(self) -> int:
        """Number of alternatives reported for each token of the prompt."""
        return max(self.prompt_logprobs or 0, (self.logprobs or 0) if self.echo else 0)

    def resolved(self, defaults: Mapping[str, Any]) -> Sampling:
        """Return a Sampling in which unset parameters have these defaults, or no effect."""
        non_default = {name: getattr(self, name) for name in self.__struct_fields__}
        non_default = {name: value for name, value in non_default.items() if value is not None}
        made = {**defaults, **non_default}
        if "max_tokens" in defaults and "max_tokens" not in non_default:
            made["max_tokens"] = max(made["max_tokens"], self.min_tokens)
        return Sampling(**made)


class Sampling(Parameters, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling parameters of one generation.

    For example:

        Sampling(temperature=0.0, max_tokens=64, stop=("END",)).checked("chat", vocabulary=49152)
    """

    #: 0: always the most probable token.
    temperature: float = 1.0
    #: Sample from the smallest set of most probable tokens whose probabilities sum to this.
    top_p: float = 1.0
    #: Sample from this number of most probable tokens; 0: from all.
    top_k: int = 0
    #: Minimum probability of a token, relative to the most probable one.
    min_p: float = 0.0
    #: Above 1 makes tokens of the prompt and of the answer less likely.
    repetition_penalty: float = 1.0

    def checked(self, model: str, vocabulary: int) -> Sampling:
        """Return self if all values are valid for this vocabulary; else raise InvalidRequest."""
        for fine, field, rule in (*self._numbers(), *self._lists(), *self._tokens(vocabulary)):
            if not fine:
                value = repr(getattr(self, field))
                value = value if len(value) <= 100 else f"{value[:100]}..."
                raise InvalidRequest(
                    f"model {model!r}: {field} must be {rule}; it is {value}", field=field
                )
        return self

    # Whether a field is valid, its name, and the rule

    def _numbers(self) -> Iterator[_Check]:
        least, most = 0 if self.echo else 1, self.max_tokens
        yield (
            most is None or most >= least,
            "max_tokens",
            f"at least {least}" if self.echo else "at least 1, or 0 with echo",
        )
        yield self.min_tokens >= 0, "min_tokens", "at least 0"
        yield most is None or self.min_tokens <= most, "min_tokens", "at most max_tokens"
        yield 0 <= self.temperature <= 100, "temperature", "between 0 and 100"
        yield 0 < self.top_p <= 1, "top_p", "above 0 and at most 1"
        yield 0 <= self.top_k < 2**31, "top_k", "at least 1, or 0 for all tokens, below 2^31"
        yield 0 <= self.min_p <= 1, "min_p", "between 0 and 1"
        penalty = self.repetition_penalty
        yield 0.01 <= penalty <= 100, "repetition_penalty", "between 0.01 and 100"
        for field in ("presence_penalty", "frequency_penalty"):
            yield -100 <= getattr(self, field) <= 100, field, "between -100 and 100"
        yield 1 <= self.n <= 128, "n", "between 1 and 128"
        fine = self.seed is None or -(2**63) <= self.seed < 2**64
        yield fine, "seed", "a whole number of 64 bits"
        fine = self.thinking_budget is None or self.thinking_budget >= 0
        yield fine, "thinking_budget", "at least 0"
        fine = self.truncate_prompt is None or self.truncate_prompt >= 0
        yield fine, "truncate_prompt", "at least 0"

    def _lists(self) -> Iterator[_Check]:
        most = MOST_STOP_CHARACTERS
        fine = len(self.stop) <= MOST_STOPS and all(self.stop) and sum(map(len, self.stop)) <= most
        rule = f"at most {MOST_STOPS} texts, none empty, of {most} characters together"
        yield fine, "stop", rule
        fine = len(self.logit_bias) <= MOST_TOKENS_NAMED
        yield fine, "logit_bias", f"of at most {MOST_TOKENS_NAMED} tokens"
        for field, most in TOKEN_LISTS.items():
            yield len(getattr(self, field)) <= most, field, f"at most {most} tokens"

    def _tokens(self, vocabulary: int) -> Iterator[_Check]:
        for field in TOKEN_LISTS:
            tokens: tuple[int, ...] = getattr(self, field)
            fine = not tokens or 0 <= min(tokens) <= max(tokens) < vocabulary
            yield fine, field, f"between 0 and {vocabulary - 1}"
        yield (
            all(
                0 <= token < vocabulary and -1000 <= bias <= 1000
                for token, bias in self.logit_bias.items()
            ),
            "logit_bias",
            f"token ids below {vocabulary} with numbers between -1000 and 1000",
        )


def check_tokens(model: str, tokens: Sequence[int], vocabulary: int, field: str = "prompt") -> None:
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
    """InvalidRequest if the request sets more tokens than `context` can hold with any prompt."""
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
    """The number of tokens to which a request's prompt is truncated; None: it is not truncated.
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
    """`sampling` if the answer's log probabilities stay below their limit. A maximum of tokens that
    is not set, or may be clipped, is lowered for that. InvalidRequest if they exceed it."""
    fixed, each = 0, 0
    if sampling.prompt_logprobs is not None:
        fixed = prompt_tokens * (1 + sampling.prompt_logprobs)
    if sampling.logprobs is not None:
        each = sampling.n * (1 + sampling.logprobs)
        fixed += prompt_tokens * each if sampling.echo else 0
    most = (MOST_LOGPROBS - fixed) // (each or 1)
    free = sampling.max_tokens is None or sampling.clip_max_tokens
    if most < (1 if free or not each else sampling.max_tokens or 0):
        field = "logprobs" if each else "prompt_logprobs"
        raise InvalidRequest(
            f"model {model!r}: {field}: an answer has at most {MOST_LOGPROBS} log probabilities, of"
            " all its texts, tokens and alternatives; request fewer, or fewer tokens",
            field=field,
        )
    if free and each:
        return msgspec.structs.replace(sampling, max_tokens=min(sampling.max_tokens or most, most))
    return sampling
