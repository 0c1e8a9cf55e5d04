"""What is generated for one request, and what of it was not sent yet?"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from wherry.llm.engine.delta import Delta
from wherry.llm.engine.detokenizer import Detokenizer, StopTexts
from wherry.llm.engine.prompt import TokenizedPrompt
from wherry.llm.engine.report import Reports
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.sequence import Sampled
from wherry.llm.engine.sequence import Sequence as Generation
from wherry.llm.engine.thought_tokens import ThoughtTokens
from wherry.llm.engine.tokenizer import Tokenizer


@dataclass(slots=True)
class GeneratedAnswer:
    """One of a request's answers, and its output that was not sent yet."""

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
        """What was not sent yet, which is sent with this."""
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
        """The stop text or the stop token of the request that has ended the answer."""
        if finish_reason != "stop" or self.stops.found is not None:
            return self.stops.found if finish_reason else None
        last = self.sequence.tokens[-1]
        return last if last in self.sequence.sampling.stop_token_ids else None


@dataclass(slots=True, eq=False)
class EngineRequest:
    """A request of the engine with its answers, whose pieces it makes."""

    sampling: Sampling
    stream: bool
    #: The prompt, if it was given as text.
    prompt: str
    #: The request is for the tokens of the prompt only.
    only_count: bool = False
    #: Of a chat whose answer has no form of its own: how it writes calls and thoughts, and
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
    #: Whether its first piece was sent, which tells of the prompt.
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
        """The tokens of the prompt and of all answers."""
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
        """Describe what a step has computed of the prompt: of all of it at once would hold up
        everybody."""
        sampling = self.sampling
        if self.begun or not sampling.reports_prompt:
            return
        report = self.prompt_report
        if (most := sampling.prompt_logprobs) is not None:
            self.ranked += [reports.ranked(one, most) for one in report[len(self.ranked) :]]
        if sampling.echo and (most := sampling.logprobs) is not None:
            self.echoed += [reports.token(one, most) for one in report[len(self.echoed) :]]

    def send(self, answer: GeneratedAnswer, reason: str, reports: Reports) -> None:
        """Make a piece of what was not sent of an answer, which ends with `reason` if it has."""
        details: dict[str, Any] = {}
        if not self.begun:
            self.begun = True
            details = reports.prompt(self.tokens, self.ranked, self.sampling)
            if self.style:
                details["style"] = self.style
        if (stop := answer.stop_reason(reason)) is not None:
            details["stop_reason"] = stop
        self.deltas.append(answer.delta(reason, self.usage if self.done else {}, details))

    @property
    def done(self) -> bool:
        return self.answers is not None and all(answer.done for answer in self.answers)
