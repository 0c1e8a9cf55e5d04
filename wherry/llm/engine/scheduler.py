"""Which sequences are in the next step, and with how many tokens each?

Every sequence in decode has one token in every step. Prompts are cut into chunks (chunked prefill)
that take a fixed share of the step's duration, so that neither delays the other without bound; a
long prompt leaves half of its room to much shorter ones behind it. If no block is free when a
sequence grows, the newest is preempted: it waits again and is recomputed later (its blocks may
still be in the prefix cache).

Pure: no clock and no tensors. `took` reports the duration of each step.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from math import ceil, inf
from operator import attrgetter

from wherry.llm.engine.kv_cache import KVCache
from wherry.llm.engine.sequence import Sequence

#: Tokens of growth for which a sequence gets contiguous room.
GROWTH_TOKENS = 512
#: Share of a step's duration that is for prompts. A prompt of many steps has its first token
#: 1 / share times as late as with prompts first, and the gaps of the others are 1 / (1 - share)
#: times as long as without it (docs/decisions/0046-prompts-share-of-a-step.md).
PROMPT_SHARE = 2 / 3
#: Steps after one that ran out of memory until twice as much is tried again.
STEPS_OF_CAUTION = 64
#: The most steps of a sequence alone that run out of memory; each has half of the last's tokens.
MOST_FAILURES = 16
#: Sequences are numbered as they arrive.
_ARRIVAL = attrgetter("id")


@dataclass(frozen=True, slots=True)
class Chunk:
    """`count` tokens of one sequence, from `start` on, in one step."""

    sequence: Sequence
    start: int
    count: int

    @property
    def is_last(self) -> bool:
        """Whether the chunk ends with the sequence's last token, so that a new token is sampled."""
        return self.start + self.count == len(self.sequence.tokens)

    @property
    def logits(self) -> int:
        """The number of its last tokens whose logits are needed."""
        return self.count if self.sequence.reports_prompt else int(self.is_last)


class StepPace:
    """Estimates how the duration of a step grows with its tokens.

    The model is `fixed + per_token * tokens`, since the weights are read once whatever the batch.
    The quotient of the two is the number of tokens that doubles the duration. Fitted by least
    squares over the steps, with exponentially fading weights.
    """

    def __init__(self, free_tokens: float = 16.0, fading: float = 0.98) -> None:
        self.free_tokens = free_tokens
        self._fading = fading
        self._weight = self._tokens = self._seconds = self._squares = self._products = 0.0

    def observe(self, tokens: float, seconds: float) -> None:
        keep = self._fading
        self._weight = keep * self._weight + 1.0
        self._tokens = keep * self._tokens + tokens
        self._seconds = keep * self._seconds + seconds
        self._squares = keep * self._squares + tokens * tokens
        self._products = keep * self._products + tokens * seconds
        spread = self._weight * self._squares - self._tokens**2
        slope = self._weight * self._products - self._tokens * self._seconds
        if spread > 0.01 * self._tokens**2 and slope > 0:
            per_token = slope / spread
            fixed = (self._seconds - per_token * self._tokens) / self._weight
            self.free_tokens = min(512.0, max(1.0, fixed / per_token))

    def tokens_beside(self, decoding: float, share: float) -> float:
        """How many tokens more take `share` (below 1) of the duration of a step that has `decoding`
        tokens already."""
        return share / (1.0 - share) * (self.free_tokens + decoding)


class TokenScheduler:
    def __init__(
        self,
        cache: KVCache,
        *,
        max_running: int,
        max_step_tokens: int,
        pace: StepPace | None = None,
        prompt_share: float = PROMPT_SHARE,
        context_per_token: float = float("inf"),
    ) -> None:
        self.cache = cache
        self.max_running = max_running
        self.max_step_tokens = max(max_step_tokens, max_running)
        #: Share of a step's duration that is for prompts, 0 to 1, while others are in decode.
        self.prompt_share = prompt_share
        #: The context length at which a prefill token takes twice as long.
        self.context_per_token = context_per_token
        self.pace = pace or StepPace()
        #: In the order in which they should start.
        self.waiting: list[Sequence] = []
        #: In the order in which they started.
        self.running: list[Sequence] = []
        self.preemptions = 0
        #: Tokens of a step, and running sequences, that fit into memory.
        self._token_limit = self.max_step_tokens
        self._running_limit = inf
        self._steps_of_caution = 0

    def __repr__(self) -> str:
        return f"<TokenScheduler: {len(self.running)} running, {len(self.waiting)} waiting>"

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_ARRIVAL)

    def remove(self, sequence: Sequence) -> None:
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        sequence.ended = True
        self._free(sequence)

    def next_step(self) -> list[Chunk]:
        """The chunks of the next step; empty if there are no sequences. Call `computed`
        afterwards."""
        chunks = [Chunk(s, s.computed, 1) for s in self._decoding()]
        budget = self._prompt_tokens(chunks)
        # Without a sequence in decode the duration of the step does not matter.
        deep = self.context_per_token if chunks else float("inf")
        for sequence in self.running:
            if sequence.to_compute > 1 and budget > 0:
                budget -= self._add_chunk(chunks, sequence, budget, deep)
        most = min(self.max_running, self._running_limit)
        while budget > 0 and self.waiting and len(self.running) < most:
            sequence = self.waiting[0]
            if not self._start(sequence):
                break
            budget -= self._add_chunk(chunks, sequence, budget, deep)
        return _filled(chunks, budget)

    def took(self, chunks: list[Chunk], seconds: float) -> None:
        """Report how long the model took for a step, in seconds."""
        self.pace.observe(self._work(chunks), seconds)

    def computed(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            sequence = chunk.sequence
            sequence.computed = chunk.start + chunk.count
            self.cache.register(sequence.table, sequence.tokens, sequence.computed)
        if self._steps_of_caution:
            self._steps_of_caution -= 1
            if not self._steps_of_caution:
                self._limit(2 * self._token_limit, 2 * self._running_limit)

    def found_no_memory(self, chunks: list[Chunk]) -> Sequence | None:
        """Note that a step could not be computed for lack of memory: the next has half of its
        tokens. Returns a sequence that cannot be computed even alone."""
        stateful = [c.sequence for c in chunks if c.sequence.table.held is not None]
        for sequence in stateful:  # its state may be that of some token of this step
            self._preempt(sequence)
        tokens, alone = sum([c.count for c in chunks]), chunks[0].sequence
        if len(chunks) == 1:
            alone.failures += 1
            if tokens == 1 or alone.failures >= MOST_FAILURES:
                return alone
        if stateful and len(chunks) > 1:
            self._limit(self._token_limit, len(chunks) // 2)
        else:
            self._limit(tokens // 2, self._running_limit)
        return None

    # Parts

    def _limit(self, tokens: int, running: float) -> None:
        self._token_limit = min(tokens, self.max_step_tokens)
        self._running_limit = running if running < self.max_running else inf
        limited = self._token_limit < self.max_step_tokens or running < self.max_running
        self._steps_of_caution = STEPS_OF_CAUTION * limited

    def _decoding(self) -> list[Sequence]:
        """The sequences in decode, each with a block for its token. Preempts others if there is
        none."""
        for sequence in list(self.running):
            # May have been preempted for an earlier sequence.
            while sequence in self.running and not self.cache.grow(
                sequence.table, min(len(sequence.tokens), sequence.computed + 1)
            ):
                self._preempt(max(self.running, key=_ARRIVAL))
        decoding = [s for s in self.running if s.to_compute == 1]
        while len(decoding) > self._token_limit:
            newest = max(decoding, key=_ARRIVAL)
            decoding.remove(newest)
            self._preempt(newest)
        return decoding

    def _prompt_tokens(self, decoding: list[Chunk]) -> int:
        """How many prefill tokens the step may have beside these: they take the prompts' share of
        its duration; at least one, so that every prompt is completed."""
        most = self._token_limit - len(decoding)
        if not decoding or self.prompt_share >= 1:
            return most
        tokens = self.pace.tokens_beside(self._work(decoding), self.prompt_share)
        return min(most, max(1, round(tokens)))

    def _work(self, chunks: list[Chunk]) -> float:
        """The tokens of these chunks, those after a long context counted more than once."""
        return sum([c.count * (1 + c.start / self.context_per_token) for c in chunks])

    def _start(self, sequence: Sequence) -> bool:
        """Start a waiting sequence if there are blocks for all its tokens, and one more for each
        running sequence. With less it would soon be preempted."""
        cache = self.cache
        expected = min(sequence.max_length, len(sequence.tokens) + GROWTH_TOKENS)
        table, known = cache.open(
            sequence.tokens,
            expected,
            reuse=not sequence.reports_prompt,
            kind=sequence.prefix_kind,
        )
        spare = len(self.running) * cache.block_size if self.running else 0
        needed = cache.blocks_for(len(sequence.tokens) + spare) - len(table.blocks)
        if needed > cache.available_blocks or not cache.grow(table, len(sequence.tokens)):
            cache.close(table)
            cache.hit_tokens -= known
            cache.looked_up_tokens -= len(sequence.tokens)
            return False
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.table, sequence.computed = table, known
        if not sequence.preemptions:
            sequence.cached_tokens = known
        return True

    def _add_chunk(self, chunks: list[Chunk], sequence: Sequence, budget: int, deep: float) -> int:
        """Add as much of a prompt as fits, or half of that if it delays a much shorter one. Returns
        the budget used: more than its tokens after a long context."""
        share = budget - budget // 2 if self._holds_up(sequence) else budget
        weight = 1 + sequence.computed / deep
        count = min(sequence.to_compute, max(1, int(share / weight)))
        chunks.append(Chunk(sequence, sequence.computed, count))
        return min(budget, ceil(count * weight))

    def _holds_up(self, sequence: Sequence) -> bool:
        """Whether a prompt behind it could be computed now and is at most half as long.

        Prompts of about the same length run one after the other: sharing would only delay the
        first.
        """
        place = self.running.index(sequence)
        behind = [s for s in self.running[place + 1 :] if s.to_compute > 1]
        behind += self.waiting[: self.max_running - len(self.running)]
        return any(2 * other.to_compute <= sequence.to_compute for other in behind)

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self.add(sequence)

    def _free(self, sequence: Sequence) -> None:
        self.cache.close(sequence.table)
        sequence.occurrences = None


def _filled(chunks: list[Chunk], budget: int) -> list[Chunk]:
    """Give the budget that shorter prompts left over to the prompts that were halved for them."""
    for place, chunk in enumerate(chunks):
        more = min(budget, chunk.sequence.to_compute - chunk.count)
        if more > 0:
            chunks[place] = Chunk(chunk.sequence, chunk.start, chunk.count + more)
            budget -= more
    return chunks
