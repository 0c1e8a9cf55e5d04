"""The host gives the device a step before it reads what the one before has chosen."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.properties import seeds
from wherry.llm.engine.engine import Engine
from wherry.llm.engine.kv_cache import KVCache
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.scheduler import Chunk
from wherry.llm.engine.sequence import Sequence

VOCABULARY = 300
END, BLOCK = 7, 4


class Device:
    """A network whose logits are a function of all tokens up to one, which it keeps as a cache
    does, by block and place. It has a clock of its own, as a GPU has."""

    def __init__(self, *, seconds: float = 0.0, flat: bool = False) -> None:
        self.seconds, self.flat = seconds, flat
        self.cache: dict[tuple[int, int], int] = {}
        self.chosen: list[int] = []
        self.now = self.free_at = 0.0
        self.rows = self.unknown = 0
        self.fits: Callable[[Many[Chunk]], bool] = lambda chunks: True

    def keep(self, chosen: Tensor) -> None:
        self.chosen = chosen.tolist()

    def run(self, chunks: Many[Chunk]) -> Tensor:
        if not self.fits(chunks):
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.free_at = max(self.now, self.free_at) + self.seconds
        rows = []
        for chunk in chunks:
            blocks = chunk.sequence.table.blocks
            places = [(blocks[p // BLOCK], p % BLOCK) for p in range(chunk.start + chunk.count)]
            given = chunk.sequence.tokens[chunk.start : chunk.start + chunk.count]
            assert all(token >= 0 for token in given[:-1])
            self.unknown += given[-1] < 0
            known = [token if token >= 0 else self.chosen[~token] for token in given]
            self.cache.update(zip(places[chunk.start :], known, strict=True))
            text = [self.cache[place] for place in places]
            rows += [
                row_after(text[:end], flat=self.flat)
                for end in range(len(text) - chunk.logits + 1, len(text) + 1)
            ]
        self.rows += len(rows)
        return torch.stack(rows) if rows else torch.zeros(0, VOCABULARY)

    # As a timer

    def start(self) -> None: ...

    def stop(self) -> Callable[[], float]:
        end = self.free_at

        def seconds() -> float:
            self.now = max(self.now, end)
            return self.seconds

        return seconds


ROWS = 2.0 * torch.randn(997, VOCABULARY, generator=torch.Generator().manual_seed(1))


def row_after(text: Many[int], *, flat: bool = False) -> Tensor:
    row = ROWS[sum(token * (place + 3) for place, token in enumerate(text)) % len(ROWS)]
    return row * 0.01 if flat else row


class Odd:
    """A form: odd tokens, none of them twice in a row."""

    def __init__(self, fails_after: int) -> None:
        self.last, self.left = 0, fails_after

    def mask(self, allowed: Any) -> None:
        if not self.left:
            raise RuntimeError("broken")
        allowed &= 0xAA
        allowed[self.last >> 3] &= ~(1 << (self.last & 7)) & 0xFF

    def accept(self, token: int) -> None:
        assert token % 2
        assert token != self.last
        self.last, self.left = token, self.left - 1


def engine(device: Device, *, ahead: bool, **options: Any) -> Engine:
    sizes = {"max_running": 8, "max_step_tokens": 24, "prompt_share": 1.0, **options}
    return Engine(
        device.run, KVCache(32, BLOCK), name="m", vocabulary=VOCABULARY, context_tokens=120,
        ends=frozenset({END}), timer=device, keep=device.keep if ahead else None, **sizes,
    )  # fmt: skip


def wishes(dice: random.Random) -> dict[str, Any]:
    some: list[dict[str, Any]] = [
        {"temperature": 0.0}, {"top_p": 0.8}, {"top_k": 5}, {"min_p": 0.1, "temperature": 0.5},
        {"presence_penalty": 0.7, "repetition_penalty": 1.3}, {"min_tokens": 6},
        {"logprobs": 3}, {"prompt_logprobs": 2},
        {"allowed_token_ids": (3, 4, 9)}, {"stop_token_ids": (11, 12, 13)}, {"n": 3},
        {"max_tokens": 1},
    ]  # fmt: skip
    return {"seed": dice.randrange(99), **dice.choice(some), **dice.choice(some)}


def texts(seed: int, device: Device, *, ahead: bool) -> dict[tuple[int, int], list[Any]]:
    """What each answer of random requests is, which come, leave, are preempted, end and fail."""
    dice, memory = random.Random(seed), random.Random(seed)
    device.fits = lambda chunks: memory.random() > 0.03 or sum(c.count for c in chunks) < 3
    made = engine(device, ahead=ahead)
    keys: dict[Sequence, tuple[int, int]] = {}
    leaves: dict[Sequence, int] = {}
    found: dict[tuple[int, int], list[Any]] = {}

    def step() -> None:
        for event in made.step():
            said = event.sampled and (event.sampled.token, event.sampled.alternatives)
            own = found[keys[event.sequence]]
            own.append((said, event.finish_reason, str(event.error)))
            if len(own) == leaves[event.sequence] and not event.finish_reason:
                made.remove(event.sequence)
        made.cache.check()
        assert all(token >= 0 for one in keys for token in one.tokens)

    for request in range(30):
        prompt = [dice.randrange(VOCABULARY) for _ in range(dice.randrange(1, 40))]
        wish = Sampling(**{"max_tokens": dice.randrange(1, 30), **wishes(dice)})
        forms = [Odd(dice.randrange(1, 40)) for _ in range(wish.n)] if dice.random() < 0.2 else []
        for one in made.add(prompt, wish, constraints=forms):
            keys[one] = request, one.index
            leaves[one] = dice.randrange(1, 15) if dice.random() < 0.2 else 0
            found[request, one.index] = []
        for _ in range(dice.randrange(4)):
            step()
    while made.busy:
        step()
    step()  # what is still on its way is no one's
    assert made.cache.used_blocks == 0
    gauges = made.gauges()
    assert gauges["preemptions_total"] > 0
    assert gauges["generation_tokens_total"] == sum(
        said is not None for one in found.values() for said, *_ in one
    )
    return found


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("seed", seeds(3))
def test_each_answer_is_the_one_of_a_host_that_waits(seed: int, flat: bool) -> None:
    """With flat probabilities many rows are sorted as a whole: known when a step has passed."""
    waits, ahead = Device(flat=flat), Device(flat=flat)
    assert texts(seed, ahead, ahead=True) == texts(seed, waits, ahead=False)
    assert ahead.unknown > 100 > waits.unknown == 0


@pytest.mark.parametrize("host", [0.002, 0.009])
def test_a_step_takes_the_longer_of_hosts_and_devices_time(host: float) -> None:
    took = []
    for ahead in (False, True):
        device = Device(seconds=0.01)
        made = engine(device, ahead=ahead)
        for number in range(6):
            made.add([number, 1, 2], Sampling(max_tokens=100, seed=1, ignore_eos=True))
        for _ in range(80):
            made.step()
            device.now += host
        took.append(device.now)
    assert took[0] == pytest.approx(80 * (0.01 + host))
    assert took[1] == pytest.approx(80 * 0.01, rel=0.05)


def test_an_end_that_is_known_beforehand_computes_nothing_in_vain() -> None:
    device = Device()
    made = engine(device, ahead=True)
    made.add([1, 2, 3], Sampling(temperature=0.0, max_tokens=9, ignore_eos=True))
    while made.busy:
        made.step()
    assert device.rows == 9


def test_at_most_one_step_is_on_its_way() -> None:
    device = Device(seconds=0.01)
    made = engine(device, ahead=True)
    made.add([1] * 100, Sampling(max_tokens=3))
    for _ in range(4):  # of a prompt: none of them chooses a token
        made.step()
        assert device.free_at <= device.now + 0.011
