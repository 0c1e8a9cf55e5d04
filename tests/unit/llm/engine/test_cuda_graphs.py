"""Decode steps are recorded by the number of sequences, and replayed whatever else is in a step."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.llm.engine import tiny
from tests.unit.llm.engine.test_devices import META, Copies
from tests.unit.llm.engine.test_paged_attention import in_place
from wherry.llm.engine import cuda_graphs
from wherry.llm.engine.cuda_graphs import DecodeGraphs, DecodeRow, Record, Replay, sizes
from wherry.llm.engine.device import to_device
from wherry.llm.engine.kv_cache import KVCache
from wherry.llm.engine.model import Shape
from wherry.llm.engine.runner import ModelRunner, Recorded
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.scheduler import TokenScheduler
from wherry.llm.engine.sequence import Sequence
from wherry.llm.engine.step_inputs import Attends, StepInputs

SIZE, SPARE, WIDTH = 16, 1000, 8


class Again:
    """A recording that computes again, from where it computed before."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        self.recorded += 1

        def replay() -> Tensor:
            self.replayed += 1
            return compute()

        return replay


class Steps:
    """What a network is given in a decode step, as the host would read it."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.contexts: list[list[int]] = []

    def __call__(self, numbers: Tensor, table: Tensor) -> Tensor:
        _, positions, slots, lines = numbers.tolist()
        self.sizes.append(len(positions))
        self.contexts = [
            table[line, : position // SIZE + 1].tolist()
            for line, position in zip(lines, positions, strict=True)
        ]
        for blocks, position, slot in zip(self.contexts, positions, slots, strict=True):
            assert slot == blocks[-1] * SIZE + position % SIZE
        return numbers[:3].T.clone()


def graphs(record: Record, decode: Steps, most: int = 64) -> DecodeGraphs:
    made = DecodeGraphs(
        decode,
        record,
        block_size=SIZE,
        spare_block=SPARE,
        most_blocks=WIDTH,
        device=torch.device("cpu"),
    )
    made.prepare(most)
    return made


def rows(*contexts: int) -> list[DecodeRow]:
    return [
        DecodeRow(
            place, 100 + place, context - 1, [10 * place + n for n in range(-(-context // SIZE))]
        )
        for place, context in enumerate(contexts)
    ]


def test_a_step_is_padded_with_sequences_that_write_to_no_ones_block() -> None:
    steps = Steps()
    made = graphs(Again(), steps)
    logits = made.run(rows(1, 17, 40))
    assert logits is not None
    # token, position, slot: the last token's place in its last block
    assert logits.tolist() == [[100, 0, 0], [101, 16, 11 * SIZE], [102, 39, 22 * SIZE + 7]]
    assert steps.contexts == [[0], [10, 11], [20, 21, 22], [SPARE]]


@pytest.mark.parametrize("most", [1, 2, 5, 8, 9, 64, 100, 256])
def test_sizes_end_with_the_most_and_pad_little(most: int) -> None:
    found = [*sizes(most)]
    assert found == sorted({*found})
    assert found[-1] == most
    for count in range(1, most + 1):
        size = min(size for size in found if size >= count)
        assert size - count < max(4, min(8, count))


def test_all_sizes_are_recorded_at_the_load_and_none_while_serving() -> None:
    record = Again()
    made = graphs(record, Steps(), most=20)
    assert record.recorded == len([*sizes(20)])
    for count in range(1, 21):
        assert made.run(rows(*[7 * count % 120 + 1] * count)) is not None
    assert record.recorded == len([*sizes(20)])
    assert made.run(rows(*[3] * 21)) is None


def test_the_table_follows_sequences_that_grow_come_go_and_are_preempted() -> None:
    steps, dice = Steps(), random.Random(1)
    made = graphs(Again(), steps, most=6)
    free = [*range(900)]
    dice.shuffle(free)
    live: dict[int, list[int]] = {}
    positions: dict[int, int] = {}
    number = 0
    for _ in range(400):
        while len(live) < 6 and dice.random() < 0.5:
            number += 1
            positions[number] = dice.randrange(40)
            live[number] = [free.pop() for _ in range(positions[number] // SIZE + 1)]
        here = [one for one in live if dice.random() < 0.8]
        dice.shuffle(here)
        if here:
            step = [DecodeRow(one, 1, positions[one], live[one]) for one in here]
            assert made.run(step) is not None
            assert steps.contexts[: len(here)] == [live[one] for one in here]
        for one in here:
            positions[one] += 1
            if positions[one] == WIDTH * SIZE or dice.random() < 0.03:
                free += live.pop(one)
            elif dice.random() < 0.05:  # preempted, and computed again elsewhere
                count = len(live[one])
                free = [*live[one], *free]
                live[one] = [free.pop() for _ in range(count)]
            if one in live and positions[one] // SIZE == len(live[one]):
                live[one].append(free.pop())


def test_a_step_sends_what_is_new_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def counted(lists: Any, device: torch.device) -> Any:
        sent.append(len(lists[1]))
        return to_device(lists, device)

    monkeypatch.setattr("wherry.llm.engine.cuda_graphs.to_device", counted)
    made, step = graphs(Again(), Steps()), rows(*[100] * 40)
    for _ in range(20):
        made.run(step)
        step = [row._replace(position=row.position + 1) for row in step]
        for row in step:
            if row.position // SIZE == len(row.blocks):
                row.blocks.append(500)
    assert sent[0] == 40 * 7
    assert sum(sent[1:]) == 40  # a block more of each
    assert sent.count(0) == 18


class Fails(Again):
    """Records, but not sizes with more sequences than there is memory for."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.tried = most, 0

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        self.tried += 1
        if len(compute()) > self.most:
            raise RuntimeError("CUDA out of memory. Tried to allocate\nmore")
        return super().__call__(compute)


def test_a_size_that_cannot_be_recorded_runs_without_and_is_tried_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    record = Fails(most=1)
    made = graphs(record, Steps(), most=2)
    for step in range(3 * cuda_graphs.RETRY_STEPS + 1):
        assert made.run(rows(5, 6)) is None
        if step % 100 == 0:
            assert made.run(rows(7)) is not None  # others go on
    tries = [said.__dict__["steps_until_next_try"] for said in caplog.records]
    assert tries == [cuda_graphs.RETRY_STEPS, 2 * cuda_graphs.RETRY_STEPS]
    assert caplog.records[0].__dict__["reason"] == "CUDA out of memory. Tried to allocate"
    record.most = 2
    assert made.run(rows(5, 6)) is not None
    assert not made.failed


def test_a_size_that_failed_is_padded_to_a_larger_one() -> None:
    class Four(Again):
        def __call__(self, compute: Callable[[], Tensor]) -> Replay:
            if len(compute()) == 4:
                raise RuntimeError("another instance is loading")
            return super().__call__(compute)

    steps = Steps()
    made = graphs(Four(), steps)
    assert made.run(rows(5, 6, 7)) is not None
    assert steps.sizes[-1] == 8


class Rows:
    """A network whose logits are numbers of each row: its token and its position."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def forward(self, step: StepInputs, attention: Attends) -> Tensor:
        made = torch.stack([step.tokens, step.positions], 1).float()
        return made.index_select(0, step.logit_rows)


@pytest.mark.parametrize(("running", "median"), [(5, 300), (64, 300), (200, 800)])
def test_decode_rows_of_random_chats_are_replayed(running: int, median: int) -> None:
    """Poisson arrivals, lognormal lengths, some with an adapter or a report of the prompt."""
    from transformers import LlamaConfig

    shape = Shape.of(LlamaConfig(**{**tiny.SIZES, "max_position_embeddings": 4096}))
    record, dice = Again(), random.Random(running + median)
    runner = ModelRunner(
        Rows(shape),
        cache_tokens=1 << 17,
        block_size=16,
        dtype=torch.float32,
        device=torch.device("cpu"),
        paged=True,
        recorded=Recorded(record, in_place),
    )
    runner.prepare(running)
    cache = KVCache((1 << 17) // 16, 16)
    scheduler = TokenScheduler(cache, max_running=running, max_step_tokens=512, prompt_share=0.5)
    decodes = number = 0
    for _ in range(100):
        while dice.random() < 0.3 and len(scheduler.waiting) < 5:
            number += 1
            prompt = [dice.randrange(250) for _ in range(min(2000, _lognormal(dice, median)))]
            wish = Sampling(prompt_logprobs=0) if number % 9 == 0 else Sampling()
            most = min(4000, len(prompt) + _lognormal(dice, 30))
            adapter = "a" if number % 7 == 0 else ""
            scheduler.add(
                Sequence(number, prompt, len(prompt), wish, max_length=most, adapter=adapter)
            )
        chunks = scheduler.next_step()
        if not chunks:
            continue
        before, logits = record.replayed, runner.run(chunks)
        expected = [
            (c.sequence.tokens[place], place)
            for c in chunks
            for place in range(c.start + c.count - c.logits, c.start + c.count)
        ]
        assert logits.tolist() == [[*map(float, pair)] for pair in expected]
        plain = [c for c in chunks if c.count == c.logits == 1 and not c.sequence.adapter]
        decodes += bool(plain)
        assert record.replayed - before == bool(plain)
        scheduler.computed(chunks)
        for chunk in chunks:
            if chunk.is_last:
                chunk.sequence.tokens.append(dice.randrange(250))
                if len(chunk.sequence.tokens) >= chunk.sequence.max_length:
                    scheduler.remove(chunk.sequence)
    assert record.replayed >= 0.95 * decodes > 50


def _lognormal(dice: random.Random, median: float) -> int:
    return max(1, round(median * dice.lognormvariate(0.0, 0.8)))


def test_what_a_step_sends_does_not_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    made = DecodeGraphs(
        lambda numbers, table: torch.empty(numbers.shape[1], 3, device=META),
        Again(),
        block_size=SIZE,
        spare_block=SPARE,
        most_blocks=WIDTH,
        device=META,
    )
    made.prepare(8)
    with monkeypatch.context() as patched:
        Copies(patched)
        logits = made.run(rows(1, 17, 40))
    assert logits is not None
    assert logits.device == META
    assert logits.shape == (3, 3)
