"""How does one step of all generations run: what is computed, what was chosen, which have ended?

    schedule -> run the model -> choose tokens -> see which have ended

Tokens in, tokens out: text is above this. Everything here is called by one thread.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import Any, Final

from torch import Tensor

from wherry.core.api import InvalidRequest, ModelFailed, out_of_memory
from wherry.llm.engine.device import HostTimer, StepTimer, on_device
from wherry.llm.engine.kv_cache import KVCache
from wherry.llm.engine.lora import Adapters
from wherry.llm.engine.sampler import AGAIN, NONE, NextTokens, choose, prompt_report
from wherry.llm.engine.sampling import Sampling, check_tokens, no_room
from wherry.llm.engine.scheduler import PROMPT_SHARE, Chunk, TokenScheduler
from wherry.llm.engine.sequence import Constraint, Sampled, Sequence, TokenLists

log = logging.getLogger("wherry")

#: Each of `n` answers copies the prompt's token list: at most 8 MiB for a request.
MOST_COPIED_TOKENS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Event:
    """A new token of a sequence, and "stop" or "length" if it has ended.

    `sampled` is None if the request was about the prompt alone, or if choosing the token has failed
    with `error`; it has ended then.
    """

    sequence: Sequence
    sampled: Sampled | None
    finish_reason: str = ""
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that was sent to the device and is not read yet."""

    chunks: list[Chunk]
    #: The sequences for which tokens are chosen.
    sequences: list[Sequence]
    choice: NextTokens | None
    seconds: Callable[[], float]

    def expect(self) -> None:
        """Continue sequences whose tokens are only on the device, unless they are sure to end."""
        for place, sequence in enumerate(self.sequences):
            if not sequence.ended and len(sequence.tokens) + 1 < sequence.max_length:
                sequence.tokens.append(~place)

    def forget(self) -> None:
        """Remove tokens that are still expected: they will be chosen again."""
        for sequence in self.sequences:
            if sequence.tokens[-1] < 0:
                sequence.tokens.pop()


class Engine:
    """Generate tokens with one model on one device. Not thread-safe.

        engine = Engine(run, cache, name="chat", vocabulary=49152, context_tokens=8192)
        sequences = engine.add(token_ids, Sampling(temperature=0.0, max_tokens=64))
        while engine.busy:
            for new in engine.step():
                print(new)

    `run` computes the chunks of a step and returns the requested logits. If it accepts tokens that
    are only on the device, `keep` receives them, and a step returns the tokens of the one before
    while the device computes.
    """

    def __init__(
        self,
        run: Callable[[Many[Chunk]], Tensor],
        cache: KVCache,
        *,
        name: str,
        vocabulary: int,
        context_tokens: int,
        ends: frozenset[int] = frozenset(),
        max_running: int = 64,
        max_step_tokens: int = 512,
        prompt_share: float = PROMPT_SHARE,
        context_per_token: float = float("inf"),
        timer: StepTimer | None = None,
        keep: Callable[[Tensor], None] | None = None,
    ) -> None:
        self.name = name
        #: Attaches adapters, if the network takes them.
        self.adapters: Adapters | None = None
        #: Computes the steps, if its weights can be moved to the host and back.
        self.network: Any = None
        self.vocabulary = vocabulary
        self.cache = cache
        self.scheduler = TokenScheduler(
            cache,
            max_running=max_running,
            max_step_tokens=max_step_tokens,
            prompt_share=prompt_share,
            context_per_token=context_per_token,
        )
        #: Maximum of prompt and generated tokens.
        self.context_tokens = min(context_tokens, cache.total_blocks * cache.block_size)
        self._run = run
        self._keep = keep
        self._unread: _Step | None = None
        self._ends = ends
        self._timer = timer or HostTimer()
        self._ids = count(1)
        #: Further answers to a prompt start when the first has computed it: they use its blocks.
        self._followers: dict[Sequence, list[Sequence]] = {}
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._steps = 0
        self._step_seconds = 0.0
        self._model_seconds = 0.0

    def add(
        self,
        prompt: Many[int],
        sampling: Sampling,
        *,
        constraints: Many[Constraint] = (),
        adapter: str = "",
    ) -> list[Sequence]:
        """Start `sampling.n` generations; `sampling` must be `checked`. Raises InvalidRequest if
        the prompt cannot be used.

        `constraints` is empty or has one for each answer. `adapter` is the key of one, or "".
        """
        self._check(prompt, sampling)
        room = self.context_tokens - len(prompt)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        ends = frozenset(sampling.stop_token_ids)
        formed = constraints and (sampling.thinking_budget is None or sampling.constraint)
        if formed or not sampling.ignore_eos:
            ends |= self._ends  # a form also ends where it allows no token
        lists = TokenLists(sampling, ends)
        sequences = [
            Sequence(
                id=next(self._ids),
                tokens=list(prompt),
                prompt_tokens=len(prompt),
                sampling=sampling,
                max_length=len(prompt)
                + (room if sampling.max_tokens is None else min(room, sampling.max_tokens)),
                index=index,
                # Otherwise all answers would be the same.
                seed=seed + index * 0x9E3779B97F4A7C15,
                ends=ends,
                lists=lists,
                constraint=constraints[index] if constraints else None,
                sorts_all=None if self._keep is None else False,
                adapter=adapter,
            )
            for index in range(sampling.n)
        ]
        self.scheduler.add(sequences[0])
        if len(sequences) > 1:
            self._followers[sequences[0]] = sequences[1:]
        return sequences

    def _check(self, prompt: Many[int], sampling: Sampling) -> None:
        if not prompt:
            raise InvalidRequest(f"model {self.name!r}: the prompt is empty", field="prompt")
        if self.context_tokens - len(prompt) < (0 if sampling.max_tokens == 0 else 1):
            raise no_room(self.name, len(prompt), self.context_tokens)
        if sampling.n > 1 and sampling.n * len(prompt) > MOST_COPIED_TOKENS:
            raise InvalidRequest(
                f"model {self.name!r}: n must be at most {MOST_COPIED_TOKENS // len(prompt) or 1}"
                f" for a prompt of {len(prompt)} tokens; it is {sampling.n}",
                field="n",
            )
        check_tokens(self.name, prompt, self.vocabulary)

    def remove(self, sequence: Sequence) -> None:
        """Stop a generation (cancelled, or ended by a stop string) and free its blocks."""
        self._let_follow(sequence)
        for followers in self._followers.values():
            if sequence in followers:
                followers.remove(sequence)
        self.scheduler.remove(sequence)

    @property
    def busy(self) -> bool:
        """Whether a generation is waiting or running."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    def step(self) -> list[Event]:
        """Compute one step. Returns a token for each sequence whose prefill is complete."""
        started = perf_counter()
        before, self._unread = self._unread, None
        if before is not None:
            before.expect()
        chunks = self.scheduler.next_step()
        try:
            try:
                if chunks:
                    self._timer.start()
                    logits = self._run(chunks)
                    seconds = self._timer.stop()
            finally:  # even if this step fails
                events = [] if before is None else self._read(before)
            if chunks:
                self._unread = self._choose(chunks, logits, seconds)
        except Exception as error:
            if not out_of_memory(error):
                raise
            events += self._found_no_memory([c for c in chunks if _goes_on(c.sequence)], error)
        if before is not None:
            before.forget()
        elif self._keep is None and self._unread is not None:
            events, self._unread = events + self._read(self._unread), None
        self._step_seconds += perf_counter() - started
        return events

    def gauges(self) -> Mapping[str, float]:
        """Return current counts, and totals (names ending in `_total`) that only grow."""
        cache, scheduler = self.cache, self.scheduler
        return {
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting) + sum(map(len, self._followers.values())),
            "kv_cache_usage": cache.used_blocks / cache.total_blocks,
            "kv_blocks": cache.total_blocks,
            "kv_block_size": cache.block_size,
            "kv_blocks_used": cache.used_blocks,
            "prompt_tokens_total": self._prompt_tokens,
            "generation_tokens_total": self._generated_tokens,
            "prefix_cache_queries_total": cache.looked_up_tokens,
            "prefix_cache_hits_total": cache.hit_tokens,
            "preemptions_total": scheduler.preemptions,
            "steps_total": self._steps,
            "step_seconds_total": self._step_seconds,
            "model_seconds_total": self._model_seconds,
        }

    # Parts

    def _choose(self, chunks: list[Chunk], logits: Tensor, seconds: Callable[[], float]) -> _Step:
        ahead = self._keep is not None
        going = [c for c in chunks if _goes_on(c.sequence)] if ahead else chunks
        if len(going) < len(chunks) or any(c.sequence.reports_prompt for c in chunks):
            logits = self._report_prompts(chunks, logits)
        chosen = [chunk.sequence for chunk in going if chunk.is_last]
        choice = choose(logits, chosen) if chosen else None
        if choice is not None and self._keep is not None:
            self._keep(choice.tokens)
        self.scheduler.computed(going)
        return _Step(chunks, chosen, choice, seconds)

    def _report_prompts(self, chunks: Many[Chunk], logits: Tensor) -> Tensor:
        """Record log probabilities of prompts. Returns the remaining logits: those to sample
        from."""
        rows: list[int] = []
        end = 0
        for chunk in chunks:
            begin, end = end, end + chunk.logits
            if not _goes_on(chunk.sequence):
                continue
            if chunk.is_last:
                rows.append(end - 1)
            sequence = chunk.sequence
            if sequence.reports_prompt:
                # After a preemption the prompt is computed again: skip what was recorded.
                known = len(sequence.prompt_report) - chunk.start
                tokens = sequence.tokens[chunk.start + 1 : chunk.start + chunk.count + 1]
                most = sequence.sampling.prompt_alternatives
                unknown = logits[begin + known : end]
                sequence.prompt_report += prompt_report(unknown, tokens[known:], most)
        return logits.index_select(0, on_device(rows, logits.device))

    def _read(self, step: _Step) -> list[Event]:
        """The tokens that a step has chosen. Waits for a step without tokens, too: else steps would
        queue up on the device, and a new request would wait for all of them."""
        chunks, seconds, events = step.chunks, step.seconds(), []
        tokens = step.choice.read() if step.choice is not None else []
        for sequence, sampled in zip(step.sequences, tokens, strict=True):
            if sequence.ended:
                continue
            if sampled.token == AGAIN:
                sequence.sorts_all = True
                last = len(sequence.tokens) - 1 - (sequence.tokens[-1] < 0)
                sequence.computed = min(sequence.computed, last)
            else:
                events.append(self._advance(sequence, sampled))
        self._prompt_tokens += sum([c.count for c in chunks if c.start < c.sequence.prompt_tokens])
        self._generated_tokens += sum([event.sampled is not None for event in events])
        self.scheduler.took(chunks, seconds)
        self._steps += 1
        self._model_seconds += seconds
        return events

    def _found_no_memory(self, chunks: list[Chunk], error: Exception) -> list[Event]:
        """Nothing is computed; only a sequence that cannot be computed even alone ends."""
        if not chunks:
            return []
        never = self.scheduler.found_no_memory(chunks)
        reason = (str(error) or type(error).__name__).partition("\n")[0][:300]
        log.warning(
            "out of memory in a step: less at once from here on",
            extra={"model": self.name, "sequences": len(chunks), "reason": reason},
        )
        if never is None:
            return []
        failed = ModelFailed(
            f"model {self.name!r}: no memory for {len(never.tokens)} tokens of context even with"
            f" nothing beside them: {reason}; lower cache_gb or context_tokens, or give the model a"
            " device with more free memory"
        )
        failed.__cause__ = error.with_traceback(None)  # its frames hold what was computed
        return [self._failed(never, failed)]

    def _failed(self, sequence: Sequence, error: Exception) -> Event:
        self.remove(sequence)
        return Event(sequence, None, "error", error)

    def _advance(self, sequence: Sequence, sampled: Sampled) -> Event:
        token = sampled.token
        if token == NONE and sequence.error is None:
            sequence.error = ModelFailed(
                "no token can follow: the model's logits are not numbers, or all are excluded"
            )
        if sequence.error is not None:
            return self._failed(sequence, sequence.error)
        if sequence.sampling.max_tokens == 0:
            self._let_follow(sequence)
            self.scheduler.remove(sequence)
            return Event(sequence, None, "length")
        if sequence.tokens[-1] < 0:  # it was expected
            sequence.tokens.pop()
        sequence.tokens.append(token)
        if sequence.constraint is not None:
            try:
                sequence.constraint.accept(token)
            except Exception as error:  # noqa: BLE001 - of any constraint; only this one ends
                return self._failed(sequence, error)
        self._let_follow(sequence)
        reason = ""
        if token in sequence.ends:
            reason = "stop"
        elif len(sequence.tokens) >= sequence.max_length:
            reason = "length"
        if reason:
            self.scheduler.remove(sequence)
        return Event(sequence, sampled, reason)

    def _let_follow(self, sequence: Sequence) -> None:
        for follower in self._followers.pop(sequence, ()):
            self.scheduler.add(follower)


def _goes_on(sequence: Sequence) -> bool:
    """Whether its chunk in a step that is on the device is still needed."""
    return not sequence.ended and sequence.tokens[-1] >= 0
