"""Which sequences are in the next step, and how many tokens of each?

Every running sequence that decodes has its one token in every step. What the step may take
longer for is prompts: they are cut into chunks that fit, so that a long one never holds up those
who are being answered, and leaves half of the room to much shorter ones behind it. Blocks run out
only while sequences grow; then the one that came last is put back among the waiting and computed
again later (its blocks are still known, with luck).

Pure: no clock, no tensors. Time is told by `took`, after each step.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from math import ceil

from wherry.llm.kv_cache import KVCache
from wherry.llm.sequence import Sequence

#: Tokens of growth for which a sequence is given room in one piece.
GROWTH_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence for one step: `count` of them from `start` on."""

    sequence: Sequence
    start: int
    count: int

    @property
    def is_last(self) -> bool:
        """Does a new token follow it?"""
        return self.start + self.count == len(self.sequence.tokens)

    @property
    def asked(self) -> int:
        """Of so many of its tokens, the last ones, logits are wanted."""
        return self.count if self.sequence.reports_prompt else int(self.is_last)


class StepPace:
    """How much longer does a step take for each further token?

    A step's time is about `fixed + per_token * tokens`: the weights are read once whatever the
    batch. The quotient of the two says how many tokens come nearly for nothing, and that is all
    that is needed to say how large a chunk makes a step how much longer. Learnt by a fading
    least-squares line through the steps seen.
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

    def tokens_for(self, decoding: int, stretch: float) -> int:
        """How many more tokens make a step of `decoding` tokens `stretch` times as long?"""
        return int((stretch - 1.0) * (self.free_tokens + decoding))


class TokenScheduler:
    """The waiting and the running of one engine."""

    def __init__(
        self,
        cache: KVCache,
        *,
        max_running: int,
        max_step_tokens: int,
        pace: StepPace | None = None,
        max_stretch: float = 1.5,
        context_per_token: float = float("inf"),
    ) -> None:
        self.cache = cache
        self.max_running = max_running
        self.max_step_tokens = max(max_step_tokens, max_running)
        self.max_stretch = max_stretch
        #: Tokens of a context whose attention takes a prompt's token as long as all else together.
        self.context_per_token = context_per_token
        self.pace = pace or StepPace()
        #: In the order in which they should start.
        self.waiting: list[Sequence] = []
        #: In the order in which they started.
        self.running: list[Sequence] = []
        self.preemptions = 0

    def __repr__(self) -> str:
        return f"<TokenScheduler: {len(self.running)} running, {len(self.waiting)} waiting>"

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """It has ended, or its caller has left: its blocks are free at once."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.cache.close(sequence.table)

    def next_step(self) -> list[Chunk]:
        """What to compute now; nothing if there are no sequences. Tell `computed` afterwards."""
        chunks = [Chunk(s, s.computed, 1) for s in self._decoding()]
        budget = self._prompt_tokens(len(chunks))
        # Nobody's next token waits for a step without any: how long it takes is all the same.
        deep = self.context_per_token if chunks else float("inf")
        for sequence in self.running:
            if sequence.to_compute > 1 and budget > 0:
                budget -= self._add_chunk(chunks, sequence, budget, deep)
        while budget > 0 and self.waiting and len(self.running) < self.max_running:
            sequence = self.waiting[0]
            if not self._start(sequence):
                break
            budget -= self._add_chunk(chunks, sequence, budget, deep)
        return _filled(chunks, budget)

    def took(self, chunks: list[Chunk], seconds: float) -> None:
        """So long did the model take for a step."""
        work = [chunk.count * (1 + chunk.start / self.context_per_token) for chunk in chunks]
        self.pace.observe(sum(work), seconds)

    def computed(self, chunks: list[Chunk]) -> None:
        """These are in the cache now."""
        for chunk in chunks:
            sequence = chunk.sequence
            sequence.computed = chunk.start + chunk.count
            self.cache.learn(sequence.table, sequence.tokens, sequence.computed)

    # Parts

    def _decoding(self) -> list[Sequence]:
        """Those with one token to compute, each with room for it; who has none makes room."""
        for sequence in list(self.running):
            # An earlier one may have put this one back.
            while sequence in self.running and not self.cache.grow(
                sequence.table, min(len(sequence.tokens), sequence.computed + 1)
            ):
                self._preempt(self.running[-1])
        return [s for s in self.running if s.to_compute == 1]

    def _prompt_tokens(self, decoding: int) -> int:
        """Tokens of prompts that this step may hold beside those that decode.

        The more of those here wait for their first token, the longer the others may wait for
        their next.
        """
        most = self.max_step_tokens - decoding
        if not decoding:
            return most
        unstarted = len(self.running) - decoding + len(self.waiting)
        unstarted = min(unstarted, self.max_running - decoding)
        stretch = max(self.max_stretch, 1.0 + 2.0 * unstarted / decoding)
        return min(most, self.pace.tokens_for(decoding, stretch))

    def _start(self, sequence: Sequence) -> bool:
        """Give a waiting sequence room for all its tokens, and one block more for each that runs:
        else it would be put back at once."""
        cache = self.cache
        expected = min(sequence.max_length, len(sequence.tokens) + GROWTH_TOKENS)
        table, known = cache.open(sequence.tokens, expected, reuse=not sequence.reports_prompt)
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
        """As much of a prompt as fits; half of that, if it holds up a short one. What it takes of
        the budget: after a long context more than its tokens."""
        share = budget - budget // 2 if self._holds_up(sequence) else budget
        weight = 1 + sequence.computed / deep
        count = min(sequence.to_compute, max(1, int(share / weight)))
        chunks.append(Chunk(sequence, sequence.computed, count))
        return min(budget, ceil(count * weight))

    def _holds_up(self, sequence: Sequence) -> bool:
        """Is there a prompt behind it that could be computed now, and is half as long at most?

        Among equals, one after the other is better: the first does not wait for the last.
        """
        place = self.running.index(sequence)
        behind = [s for s in self.running[place + 1 :] if s.to_compute > 1]
        behind += self.waiting[: self.max_running - len(self.running)]
        return any(
            2 * other.to_compute <= sequence.to_compute and other.priority <= sequence.priority
            for other in behind
        )

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.cache.close(sequence.table)
        sequence.computed = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self.add(sequence)


def _filled(chunks: list[Chunk], budget: int) -> list[Chunk]:
    """What shorter prompts did not use goes to those that left it to them."""
    for place, chunk in enumerate(chunks):
        more = min(budget, chunk.sequence.to_compute - chunk.count)
        if more > 0:
            chunks[place] = Chunk(chunk.sequence, chunk.start, chunk.count + more)
            budget -= more
    return chunks


def _order(sequence: Sequence) -> tuple[int, int]:
    return (sequence.priority, sequence.id)
