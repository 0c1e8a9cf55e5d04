"""Which sampling parameters can a request set, and which values are valid?"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from wherry.llm.constraint import AnswerForm
from wherry.values.errors import InvalidRequest

#: Maximum of `logprobs`: alternatives beside the chosen token.
MAX_LOGPROBS: Final = 20
#: Limits of what is compared with each token: characters of stop strings, tokens in a list.
MOST_STOP_CHARACTERS: Final = 1024
MOST_TOKENS_NAMED: Final = 1024


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sampling parameters of one request. `checked` refuses values out of range."""

    #: Maximum of generated tokens. None: until the end of the text or of the context. 0 only with
    #: `echo`: the request is about the prompt alone.
    max_tokens: int | None = None
    #: The generation does not end or stop before this number of tokens.
    min_tokens: int = 0
    #: 0 always chooses the most probable token.
    temperature: float = 1.0
    #: Sample from the smallest set of most probable tokens whose probabilities sum to this.
    top_p: float = 1.0
    #: Sample from this number of most probable tokens; 0: from all.
    top_k: int = 0
    #: Minimum probability of a token, relative to the most probable one.
    min_p: float = 0.0
    #: Above 1 makes tokens of the prompt and of the answer less likely.
    repetition_penalty: float = 1.0
    #: Subtracted once from the logit of each token that occurs in the answer.
    presence_penalty: float = 0.0
    #: Subtracted from the logit of each token of the answer for each of its occurrences.
    frequency_penalty: float = 0.0
    #: The same seed gives the same text in any batch; None: a random seed.
    seed: int | None = None
    #: Added to the logits of tokens, by token id.
    logit_bias: dict[int, float] = {}
    #: Report the log probability of each token and of this number of alternatives; None: report
    #: none.
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    #: Put the prompt before each answer, and its tokens before `logprobs`.
    echo: bool = False
    #: Number of answers.
    n: int = 1
    #: Stop strings; not part of the answer unless `include_stop`.
    stop: tuple[str, ...] = ()
    #: Tokens that end the answer; not part of its text unless `include_stop`.
    stop_token_ids: tuple[int, ...] = ()
    #: Ignore the model's end-of-text tokens.
    ignore_eos: bool = False
    #: Keep the stop text in the answer.
    include_stop: bool = False
    #: Leave special tokens out of the text.
    skip_special_tokens: bool = True
    #: Add the tokens that the tokenizer puts before a text (such as BOS) to `prompt`.
    add_special_tokens: bool = True
    #: The form of the answer (schema, grammar, ...); None: unconstrained.
    constraint: AnswerForm | None = None

    @property
    def reports_prompt(self) -> bool:
        """Whether log probabilities of the prompt's tokens are requested."""
        return self.echo and self.logprobs is not None

    def checked(self, model: str, vocabulary: int) -> Sampling:
        """Return self if all values are valid for a vocabulary of this size; else raise
        InvalidRequest with model and field."""

        def require(fine: bool, field: str, rule: str) -> None:
            if not fine:
                value = repr(getattr(self, field))
                value = value if len(value) <= 100 else f"{value[:100]}..."
                raise InvalidRequest(
                    f"model {model!r}: {field} must be {rule}; it is {value}", field=field
                )

        least = 0 if self.echo else 1
        require(
            self.max_tokens is None or self.max_tokens >= least,
            "max_tokens",
            f"at least {least}" if self.echo else "at least 1, or 0 with echo",
        )
        require(self.min_tokens >= 0, "min_tokens", "at least 0")
        most = self.max_tokens
        require(most is None or self.min_tokens <= most, "min_tokens", "at most max_tokens")
        require(0 <= self.temperature <= 100, "temperature", "between 0 and 100")
        require(0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        require(0 <= self.top_k < 2**31, "top_k", "at least 1, or 0 for all tokens, below 2^31")
        require(0 <= self.min_p <= 1, "min_p", "between 0 and 1")
        require(
            0.01 <= self.repetition_penalty <= 100, "repetition_penalty", "between 0.01 and 100"
        )
        for field in ("presence_penalty", "frequency_penalty"):
            require(-100 <= getattr(self, field) <= 100, field, "between -100 and 100")
        require(1 <= self.n <= 128, "n", "between 1 and 128")
        require(
            self.seed is None or -(2**63) <= self.seed < 2**64, "seed", "a whole number of 64 bits"
        )
        require(
            len(self.stop) <= 64
            and all(self.stop)
            and sum(map(len, self.stop)) <= MOST_STOP_CHARACTERS,
            "stop",
            f"at most 64 texts, none empty, of {MOST_STOP_CHARACTERS} characters together",
        )
        require(
            len(self.stop_token_ids) <= MOST_TOKENS_NAMED,
            "stop_token_ids",
            f"at most {MOST_TOKENS_NAMED} tokens",
        )
        require(
            len(self.logit_bias) <= MOST_TOKENS_NAMED,
            "logit_bias",
            f"of at most {MOST_TOKENS_NAMED} tokens",
        )
        require(
            all(0 <= token < vocabulary for token in self.stop_token_ids),
            "stop_token_ids",
            f"between 0 and {vocabulary - 1}",
        )
        require(
            all(
                0 <= token < vocabulary and -1000 <= bias <= 1000
                for token, bias in self.logit_bias.items()
            ),
            "logit_bias",
            f"token ids below {vocabulary} with numbers between -1000 and 1000",
        )
        return self
