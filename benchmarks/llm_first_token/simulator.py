"""How do first tokens and gaps come out of the real scheduler on a simulated machine?"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from wherry.llm.engine.kv_cache import KVCache
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.scheduler import Chunk, TokenScheduler
from wherry.llm.engine.sequence import Sequence

BLOCK = 16
BLOCKS = 6000
RUNNING = 64
STEP_TOKENS = 512


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """How long a step takes: `fixed` seconds, and `each` for a token at the start of a context."""

    name: str
    fixed: float
    each: float
    #: The context at which a token takes twice as long.
    context_per_token: float
    #: Tokens are free until they take as long as the fixed part: reading weights hides products.
    hides: bool = False

    def seconds(self, chunks: list[Chunk]) -> float:
        tokens = sum([c.count * (1 + c.start / self.context_per_token) for c in chunks])
        if self.hides:
            return max(self.fixed, self.each * tokens)
        return self.fixed + self.each * tokens


#: SmolLM2-135M in float32 on one core, as measured; a model of 8e9 weights on a large GPU.
CPU = SimulatedMachine("CPU", 0.040, 0.002, 1750)
GPU = SimulatedMachine("GPU", 0.008, 0.00004, 30_000)
#: Nearly no fixed part; a fixed part that hides the products.
LINEAR = SimulatedMachine("linear", 0.004, 0.002, 1750)
ROOF = SimulatedMachine("roof", 0.006, 0.00004, 30_000, hides=True)


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float
    prompt: list[int]
    new_tokens: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Prompts of a kind: "short" (20-100 tokens), "shared" (the same, behind one of three system
    prompts of 400), "long" (600-2,500) or "mixed" (100 in the median, every tenth 1,500-4,000).
    """

    prompts: str
    #: Up to 11 at the same moment.
    bursts: bool = False

    @property
    def name(self) -> str:
        return self.prompts + (", bursts" if self.bursts else "")

    def arrivals(self, seed: int, count: int, rate: float) -> list[Arrival]:
        """`count` requests, `rate` a second; all at once if it is 0."""
        dice, at = random.Random(seed), 0.0
        made: list[Arrival] = []
        while len(made) < count:
            together = dice.randint(1, 11) if self.bursts else 1
            at += dice.expovariate(rate / (6 if self.bursts else 1)) if rate else 0.0
            for _ in range(min(together, count - len(made))):
                answer = int(dice.lognormvariate(4.2, 0.7))
                made.append(Arrival(at, self._prompt(dice), min(400, max(2, answer))))
        return made

    def _prompt(self, dice: random.Random) -> list[int]:
        match self.prompts:
            case "short":
                return _tokens(dice, dice.randint(20, 100))
            case "shared":
                system = _tokens(random.Random(dice.randrange(3)), 400)
                return system + _tokens(dice, dice.randint(20, 100))
            case "long":
                return _tokens(dice, dice.randint(600, 2500))
        if dice.random() < 0.1:
            return _tokens(dice, dice.randint(1500, 4000))
        return _tokens(dice, 5 + min(1000, int(dice.lognormvariate(4.5, 0.8))))


def _tokens(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(1000, 40_000) for _ in range(count)]


@dataclass(slots=True)
class Played:
    """Seconds to each first token, and between any two tokens of an answer; when all had ended."""

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    ended: float = 0.0


class SharedScheduler(TokenScheduler):
    """The scheduler as it is, with a share of the step for prompts."""

    def __init__(self, machine: SimulatedMachine, share: float) -> None:
        super().__init__(
            KVCache(BLOCKS, BLOCK),
            max_running=RUNNING,
            max_step_tokens=STEP_TOKENS,
            prompt_share=share,
            context_per_token=machine.context_per_token,
        )


class FormerScheduler(SharedScheduler):
    """The rule before: half as long again, longer as more wait for each one in decode."""

    def _prompt_tokens(self, decoding: list[Chunk]) -> int:
        count = len(decoding)
        most = self.max_step_tokens - count
        if not count:
            return most
        waiting = min(len(self.running) - count + len(self.waiting), self.max_running - count)
        stretch = max(1.5, 1.0 + 2.0 * waiting / count)
        return min(most, int((stretch - 1.0) * (self.pace.free_tokens + count)))


def play(scheduler: TokenScheduler, machine: SimulatedMachine, arrivals: list[Arrival]) -> Played:
    """Run all requests to their ends, in simulated seconds."""
    played, now, coming = Played(), 0.0, 0
    latest: dict[int, float] = {}
    while coming < len(arrivals) or scheduler.running or scheduler.waiting:
        while coming < len(arrivals) and arrivals[coming].at <= now:
            one = arrivals[coming]
            length = len(one.prompt)
            scheduler.add(
                Sequence(
                    coming, [*one.prompt], length, Sampling(), max_length=length + one.new_tokens
                )
            )
            coming += 1
        chunks = scheduler.next_step()
        if not chunks:
            now = arrivals[coming].at
            continue
        seconds = machine.seconds(chunks)
        now += seconds
        scheduler.took(chunks, seconds)
        sampled = [chunk.sequence for chunk in chunks if chunk.is_last]
        scheduler.computed(chunks)
        for sequence in sampled:
            sequence.tokens.append(0)
            if sequence.id in latest:
                played.gaps.append(now - latest[sequence.id])
            else:
                played.first.append(now - arrivals[sequence.id].at)
            latest[sequence.id] = now
            if len(sequence.tokens) >= sequence.max_length:
                scheduler.remove(sequence)
    played.ended = now
    return played
