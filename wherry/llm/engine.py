"""How does one step of all generations go: what is computed, what was chosen, which have ended?

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
from typing import Final

import torch
from torch import Tensor

from wherry.instances.device_errors import out_of_memory
from wherry.llm.checks import check_tokens, no_room
from wherry.llm.device_time import HostTimer, StepTimer
from wherry.llm.kv_cache import KVCache
from wherry.llm.lora import Adapters
from wherry.llm.sampler import prompt_report, sample
from wherry.llm.sampling import Sampling
from wherry.llm.scheduler import PROMPT_SHARE, Chunk, TokenScheduler
from wherry.llm.sequence import Constraint, Sampled, Sequence
from wherry.llm.step_tensors import on_device
from wherry.llm.token_lists import TokenLists
from wherry.values.errors import InvalidRequest, ModelFailed

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


class Engine:
    """Generates tokens with one model on one device.

        engine = Engine(run, cache, name="chat", vocabulary=49152, context_tokens=8192)
        sequences = engine.add(token_ids, Sampling(temperature=0.0, max_tokens=64))
        while engine.busy:
            for new in engine.step():
                print(new)

    `run` computes the chunks of a step and returns the logits that they request. All methods are
    for one thread.
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
    ) -> None:
        self.name = name
        #: What attaches adapters, if the network takes them.
        self.adapters: Adapters | None = None
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
        self._ends = ends
        self._timer = timer or HostTimer()
        self._ids = count(1)
        #: The further answers to a prompt start when the first has computed it: they use its
        #: blocks.
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
        priority: int = 5,
        constraints: Many[Constraint] = (),
        adapter: str = "",
    ) -> list[Sequence]:
        """Start `sampling.n` generations. InvalidRequest if the prompt cannot be used; that
        `sampling` is valid the caller has `checked`.

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
                priority=priority,
                max_length=len(prompt)
                + (room if sampling.max_tokens is None else min(room, sampling.max_tokens)),
                index=index,
                # Otherwise all answers would be the same.
                seed=seed + index * 0x9E3779B97F4A7C15,
                ends=ends,
                lists=lists,
                constraint=constraints[index] if constraints else None,
                adapter=adapter,
            )
            for index in range(sampling.n)
        ]
        self.scheduler.add(sequences[0])
        if len(sequences) > 1:
            self._followers[sequences[0]] = sequences[1:]
        return sequences

    def _check(self, prompt: Many[int], sampling: Sampling) -> None:
        """Raise InvalidRequest if the prompt cannot be used."""
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
        self.check_tokens(prompt)

    def check_tokens(self, tokens: Many[int]) -> None:
        """Raise InvalidRequest if a token is outside the vocabulary."""
        check_tokens(self.name, tokens, self.vocabulary)

    def remove(self, sequence: Sequence) -> None:
        """Stop a generation (cancelled, or ended by a stop string) and free its blocks."""
        self._let_follow(sequence)
        for followers in self._followers.values():
            if sequence in followers:
                followers.remove(sequence)
        self.scheduler.remove(sequence)

    @property
    def busy(self) -> bool:
        """Whether a generation waits or runs."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    def step(self) -> list[Event]:
        """Compute one step. Returns a new token for each sequence whose prefill is complete."""
        started = perf_counter()
        chunks = self.scheduler.next_step()
        if not chunks:
            return []
        finished = [chunk.sequence for chunk in chunks if chunk.is_last]
        self._timer.start()
        try:
            logits = self._run(chunks)
            self._timer.stop()
            logits = self._report_prompts(chunks, logits)
            chosen = self._chosen(logits, finished) if finished else []
        except Exception as error:
            if not out_of_memory(error):
                raise
            return self._found_no_memory(chunks, error)
        self.scheduler.computed(chunks)
        events = [self._advance(s, token) for s, token in zip(finished, chosen, strict=True)]
        self._prompt_tokens += sum([c.count for c in chunks if c.start < c.sequence.prompt_tokens])
        self._generated_tokens += sum([event.sampled is not None for event in events])
        # Waits for the device only where no token was chosen; else it would be given step after
        # step, and whoever comes would wait for all of them.
        seconds = self._timer.seconds()
        self.scheduler.took(chunks, seconds)
        self._steps += 1
        self._step_seconds += perf_counter() - started
        self._model_seconds += seconds
        return events

    def gauges(self) -> Mapping[str, float]:
        """Current counts, and totals that only grow (names ending in `_total`)."""
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

    def _report_prompts(self, chunks: Many[Chunk], logits: Tensor) -> Tensor:
        """Record log probabilities of prompts. Returns the remaining logits: those to sample
        from."""
        if not any(chunk.sequence.reports_prompt for chunk in chunks):
            return logits
        rows: list[int] = []
        end = 0
        for chunk in chunks:
            begin, end = end, end + chunk.logits
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

    def _chosen(self, logits: Tensor, sequences: Many[Sequence]) -> Many[Sampled | Exception]:
        """A token for each of these sequences. One whose constraint or sampling raises ends alone:
        the others' tokens do not depend on who is beside them."""
        try:
            return sample(logits, sequences)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - of any constraint; found by asking each alone
            if len(sequences) == 1:
                return [error]
            rows = zip(logits, sequences, strict=True)
            return [choice for row, one in rows for choice in self._chosen(row[None], [one])]

    def _found_no_memory(self, chunks: list[Chunk], error: Exception) -> list[Event]:
        """Nothing is computed and nobody ends, but who cannot be computed even alone."""
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
        failed.__cause__ = error.with_traceback(None)  # whose frames hold what was computed
        return [self._failed(never, failed)]

    def _failed(self, sequence: Sequence, error: Exception) -> Event:
        self.remove(sequence)
        return Event(sequence, None, "error", error)

    def _advance(self, sequence: Sequence, sampled: Sampled | Exception) -> Event:
        """Append a token; remove the sequence if it ends."""
        if isinstance(sampled, Exception):
            return self._failed(sequence, sampled)
        token = sampled.token
        if sequence.sampling.max_tokens == 0:
            self._let_follow(sequence)
            self.scheduler.remove(sequence)
            return Event(sequence, None, "length")
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
