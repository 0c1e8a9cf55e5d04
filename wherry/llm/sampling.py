"""How is the next token chosen, and when does a generation end: what can a request ask for?"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from wherry.llm.constraint import AnswerForm
from wherry.values.errors import InvalidRequest

#: Most log probabilities that may be asked for beside the chosen token's.
MAX_LOGPROBS: Final = 20
#: What a request may ask to be looked at with every token: characters of stop texts, tokens.
MOST_STOP_CHARACTERS: Final = 1024
MOST_TOKENS_NAMED: Final = 1024


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request's wishes. Values out of range are refused as InvalidRequest by `checked`."""

    #: Most tokens to generate; None: until the model ends by itself, or its context is full.
    #: 0: none, where only the prompt is of interest (`echo`).
    max_tokens: int | None = None
    #: No end of the text and no stop before so many tokens.
    min_tokens: int = 0
    #: 0: always the most probable token.
    temperature: float = 1.0
    #: Only the most probable tokens that have this probability together.
    top_p: float = 1.0
    #: Only so many of the most probable tokens; 0: all.
    top_k: int = 0
    #: Only tokens at least so probable, relative to the most probable one.
    min_p: float = 0.0
    #: Above 1: tokens of the prompt and of the answer become less likely.
    repetition_penalty: float = 1.0
    #: Taken from the logit of each token that the answer holds, once.
    presence_penalty: float = 0.0
    #: Taken from the logit of each token of the answer, as often as it occurs there.
    frequency_penalty: float = 0.0
    #: The same seed gives the same text, whatever else is in the batch; None: a random one.
    seed: int | None = None
    #: Added to the logits of tokens, by token id.
    logit_bias: dict[int, float] = {}
    #: Report the log probability of each token, and of so many alternatives; None: do not.
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    #: The prompt stands in front of each answer, and its tokens in front of `logprobs`.
    echo: bool = False
    #: How many answers to generate.
    n: int = 1
    #: Texts that end the answer; they are not part of it.
    stop: tuple[str, ...] = ()
    #: Tokens that end the answer; they are not part of its text.
    stop_token_ids: tuple[int, ...] = ()
    #: Go on where the model would end.
    ignore_eos: bool = False
    #: Keep the stop text in the answer.
    include_stop: bool = False
    #: Leave special tokens out of the text.
    skip_special_tokens: bool = True
    #: Put before a prompt that is text what the checkpoint has before each text.
    add_special_tokens: bool = True
    #: What the answer must look like; None: anything.
    constraint: AnswerForm | None = None

    @property
    def reports_prompt(self) -> bool:
        """Are log probabilities of the prompt's own tokens asked for?"""
        return self.echo and self.logprobs is not None

    def checked(self, model: str, vocabulary: int) -> Sampling:
        """This, or InvalidRequest that names the model and the field."""

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
