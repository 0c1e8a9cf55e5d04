"""What is generated for one request, and what of it is not sent yet?"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from wherry.llm.engine.delta import Delta, Reports
from wherry.llm.engine.prompt import TokenizedPrompt
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.sequence import Sampled
from wherry.llm.engine.sequence import Sequence as Generation
from wherry.llm.engine.tokenizer import Tokenizer
from wherry.llm.formats.answer_text import ModelStyle
from wherry.llm.formats.thoughts import overlap

#: A UTF-8 character has at most four bytes and a token at least one: waiting longer cannot help.
_LONGEST_CHARACTER = 4
_BROKEN = "\ufffd"


class Detokenizer:
    """Turns tokens into text, in pieces that never end within a character.

    The text of a token depends on its neighbours (a space, a combining accent), so new tokens are
    decoded together with some tokens before them.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        #: Tokens whose text was returned, decoded again as context for the next ones, and tokens
        #: whose text was not.
        self._shown = list(context[-_LONGEST_CHARACTER:])
        self._shown_text = decode(self._shown) if self._shown else ""
        self._held: list[int] = []
        #: The last tokens, any number of them, if they had no text, as special tokens that are
        #: skipped.
        self._silent: list[int] = []

    def push(self, token: int) -> str:
        """Add a token. The text that is complete now; "" if a character is still incomplete."""
        self._held.append(token)
        text = self._decode(self._shown + self._silent + self._held)
        if text.endswith(_BROKEN) and len(self._held) < _LONGEST_CHARACTER:
            return ""
        return self._show(text)

    def flush(self) -> str:
        """The remaining text at the end; incomplete characters become U+FFFD."""
        if not self._held:
            return ""
        return self._show(self._decode(self._shown + self._silent + self._held))

    def _show(self, text: str) -> str:
        new = text[len(self._shown_text) :]
        behind, self._held = self._silent + self._held, []
        if new:
            self._shown, self._silent = behind, []
            self._shown_text = self._decode(self._shown)
        else:
            self._silent = behind[-_LONGEST_CHARACTER:]
        return new


class StopTexts:
    """Finds the first of several stop strings in a text that arrives in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        #: The stop string that was found.
        self.found: str | None = None

    def push(self, piece: str, *, may_stop: bool = True) -> str:
        """Add a piece of text. The text that can be sent; nothing more after `found` is set.

        Without `may_stop` no stop string ends in this piece; one may begin there.
        """
        if not self._stops:
            return piece
        text = self._held + piece
        if may_stop and (found := self._first_end(text)) is not None:
            end, self.found = found
            self._held = ""
            return text[: end - len(self.found)]
        keep = max(overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text held back, at the end of the generation."""
        held, self._held = self._held, ""
        return held

    def _first_end(self, text: str) -> tuple[int, str] | None:
        """The end of the stop string that ends first after the text held back, and the longest of
        these: which one is found must not depend on the pieces."""
        ends = []
        for stop in self._stops:
            begin = text.find(stop, max(0, len(self._held) + 1 - len(stop)))
            if begin >= 0:
                ends.append((begin + len(stop), stop))
        return min(ends, key=lambda end: (end[0], -len(end[1])), default=None)


@dataclass(slots=True)
class GeneratedAnswer:
    sequence: Generation
    text: Detokenizer
    stops: StopTexts
    #: Tokens whose text is left out.
    hidden: frozenset[int] = frozenset()
    done: bool = False
    pending_text: list[str] = field(default_factory=list)
    pending_tokens: list[int] = field(default_factory=list)
    pending_logprobs: list[dict[str, Any]] = field(default_factory=list)

    def append(self, sampled: Sampled, reason: str, reports: Reports) -> str:
        """Append one token. Returns the finish reason, "" if it goes on."""
        token, sampling = sampled.token, self.sequence.sampling
        self.pending_tokens.append(token)
        if sampled.logprob is not None:
            self.pending_logprobs.append(reports.token(sampled))
        ended_by_token = reason == "stop"
        text = ""
        if not ended_by_token or (sampling.include_stop and token in sampling.stop_token_ids):
            text = "" if token in self.hidden else self.text.push(token)
        if reason:
            text += self.text.flush()
        shown = ""
        if text:
            may_stop = self.sequence.generated_tokens > sampling.min_tokens
            shown = self.stops.push(text, may_stop=may_stop)
        if self.stops.found is not None:
            if sampling.include_stop:
                shown += self.stops.found
            reason = "stop"
        elif reason:
            shown += self.stops.flush()
        if shown:
            self.pending_text.append(shown)
        return reason

    def delta(self, reason: str, usage: dict[str, int], details: dict[str, Any]) -> Delta:
        delta = Delta(
            self.sequence.index,
            "".join(self.pending_text),
            self.pending_tokens,
            reason,
            self.pending_logprobs,
            usage,
            details,
        )
        self.pending_text, self.pending_tokens, self.pending_logprobs = [], [], []
        return delta

    def stop_reason(self, finish_reason: str) -> str | int | None:
        if finish_reason != "stop" or self.stops.found is not None:
            return self.stops.found if finish_reason else None
        last = self.sequence.tokens[-1]
        return last if last in self.sequence.sampling.stop_token_ids else None


@dataclass(slots=True, eq=False)
class EngineRequest:
    sampling: Sampling
    stream: bool
    #: The prompt, if it is a text.
    prompt: str
    #: Whether the request is for the tokens of the prompt only.
    only_count: bool = False
    #: Of a chat whose answer has no requested form: how it writes calls and thoughts, and
    #: whether it may call.
    has_style: bool = False
    may_call: bool = False
    style: dict[str, Any] = field(default_factory=dict)
    #: None: the model does not think.
    thoughts: ThoughtTokens | None = None
    #: None until the prompt is tokenized.
    answers: list[GeneratedAnswer] | None = None
    reading: Future[TokenizedPrompt] | None = None
    tokens: list[int] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    error: Exception | None = None
    #: Whether its first piece was sent, which reports the prompt.
    begun: bool = False
    #: The prompt's tokens from the second on, as far as they are computed and described: as
    #: entries of their own, and as those of an echo.
    ranked: list[dict[str, Any]] = field(default_factory=list)
    echoed: list[dict[str, Any]] = field(default_factory=list)

    @property
    def prompt_report(self) -> list[Sampled]:
        """Log probabilities of the prompt's tokens from the second on, if they are requested."""
        return self.answers[0].sequence.prompt_report if self.answers else []

    @property
    def usage(self) -> dict[str, int]:
        assert self.answers
        sequences = [answer.sequence for answer in self.answers]
        first = sequences[0]
        usage = {
            "prompt_tokens": first.prompt_tokens,
            "completion_tokens": sum(s.generated_tokens for s in sequences),
            "cached_tokens": first.cached_tokens,
        }
        if (thoughts := self.thoughts) is not None:
            usage["reasoning_tokens"] = sum(
                thoughts.count(s.tokens[s.prompt_tokens :]) for s in sequences
            )
        return usage

    def echo(self, answer: GeneratedAnswer, reports: Reports, tokenizer: Tokenizer) -> None:
        """Put the prompt, and its log probabilities if requested, before the answer's first
        piece."""
        whole = self.prompt and self.sampling.truncate_prompt is None
        answer.pending_text = [
            self.prompt if whole else tokenizer.decode(self.tokens, skip_special=False)
        ]
        if self.sampling.logprobs is not None:
            answer.pending_logprobs = [reports.first(self.tokens[0]), *self.echoed]

    def describe_prompt(self, reports: Reports) -> None:
        """Describe the part of the prompt that a step has computed: describing all of it at once
        would delay the other requests."""
        sampling = self.sampling
        if self.begun or not sampling.reports_prompt:
            return
        report = self.prompt_report
        if (most := sampling.prompt_logprobs) is not None:
            self.ranked += [reports.ranked(one, most) for one in report[len(self.ranked) :]]
        if sampling.echo and (most := sampling.logprobs) is not None:
            self.echoed += [reports.token(one, most) for one in report[len(self.echoed) :]]

    def send(self, answer: GeneratedAnswer, reason: str) -> None:
        """Make a piece of the unsent part of an answer, which has ended if there is a `reason`."""
        details: dict[str, Any] = {}
        if not self.begun:
            self.begun = True
            details["prompt_tokens"] = len(self.tokens)
            if self.sampling.report_prompt_tokens:
                details["prompt_token_ids"] = list(self.tokens)
            if self.sampling.prompt_logprobs is not None:
                details["prompt_logprobs"] = [None, *self.ranked]
            if self.style:
                details["style"] = self.style
        if (stop := answer.stop_reason(reason)) is not None:
            details["stop_reason"] = stop
        self.deltas.append(answer.delta(reason, self.usage if self.done else {}, details))

    @property
    def done(self) -> bool:
        return self.answers is not None and all(answer.done for answer in self.answers)


#: Tokens that hold the mark which begins thoughts, if an answer begins with it.
FIRST_TOKENS: Final = 32


@dataclass(frozen=True, slots=True)
class ThoughtTokens:
    """Counts tokens between two marks, with the marks. `begin` "": the prompt has begun them."""

    begin: str
    end: str
    decode: Callable[[Sequence[int]], str]
    encode: Callable[[str], Sequence[int]]

    @classmethod
    def behind(
        cls, prompt_end: str, style: ModelStyle, tokenizer: Tokenizer
    ) -> ThoughtTokens | None:
        """Counts those of an answer to a prompt that ends like this; None: it has none."""
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
