"""Decode steps are recorded in a few sizes; what is none, or cannot be recorded, runs as it is."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from wherry.llm import cuda_graphs
from wherry.llm.cuda_graphs import DecodeGraphs, DecodeRow, Replay
from wherry.llm.padding import Room

SIZE, SPARE = 16, 1000
ROOM = Room(per_token=8, per_pair=1)


class Again:
    """A recording that computes again, from where it computed before."""

    def __init__(self) -> None:
        self.recorded = 0

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        self.recorded += 1
        return compute


def graphs(record: cuda_graphs.Record, seen: list[Tensor], room: Room = ROOM) -> DecodeGraphs:
    def decode(numbers: Tensor) -> Tensor:
        seen.append(numbers.clone())
        return numbers[:3].T.clone()

    return DecodeGraphs(
        decode,
        record,
        block_size=SIZE,
        spare_block=SPARE,
        room=room,
        device=torch.device("cpu"),
    )


def rows(*contexts: int) -> list[DecodeRow]:
    return [
        DecodeRow(100 + place, context - 1, [10 * place + n for n in range(-(-context // SIZE))])
        for place, context in enumerate(contexts)
    ]


def test_a_step_is_padded_with_sequences_that_write_to_no_ones_block() -> None:
    seen: list[Tensor] = []
    made = graphs(Again(), seen)
    logits = made.run(rows(1, 17, 40))
    assert logits is not None
    # token, position, slot: the last token's place in its last block
    assert logits.tolist() == [[100, 0, 0], [101, 16, 11 * SIZE], [102, 39, 22 * SIZE + 7]]
    numbers = seen[-1]
    assert numbers.shape == (3 + 256 // SIZE, 4)
    assert numbers[:4, 3].tolist() == [0, 0, SPARE * SIZE, SPARE]
    assert numbers[3:6, 2].tolist() == [20, 21, 22]


def test_steps_of_like_size_share_a_recording() -> None:
    record, seen = Again(), []  # type: tuple[Again, list[Tensor]]
    made = graphs(record, seen)
    for contexts in [(5,), (200,), (9, 9, 9), (9, 9, 9, 256), (300,), (512, 300)]:
        assert made.run(rows(*contexts)) is not None
    assert record.recorded == 4  # 1 and 4 of 256, 1 and 2 of 512
    made.prepare([1, 2, 4, 8])
    assert record.recorded == 6


def test_a_step_with_one_long_sequence_among_short_ones_is_not_padded_to_it() -> None:
    made = graphs(Again(), [])
    assert made.run(rows(8000, *[10] * 63)) is None
    assert made.run(rows(*[5000] * 8)) is not None
    assert made.run(rows(*[250] * 64)) is not None


def test_a_step_that_would_take_too_much_memory_is_not_recorded() -> None:
    made = graphs(Again(), [], Room(per_token=1000, per_pair=1, most=1 << 20))
    assert made.run(rows(*[200] * 8)) is None
    assert made.run(rows(*[200] * 4)) is not None


def test_recordings_are_bounded_and_the_least_used_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MOST_RECORDINGS", 2)
    record = Again()
    made = graphs(record, [])
    for contexts in [(1,), (1, 1), (1,), (1, 1, 1), (1,)]:
        made.run(rows(*contexts))
    assert record.recorded == 3
    made.run(rows(1, 1))
    assert record.recorded == 4


class Fails(Again):
    """Records, but not sizes with more sequences than there is memory for."""

    most = 1

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        if len(compute()) > self.most:
            self.recorded += 1
            raise RuntimeError("CUDA out of memory. Tried to allocate\nmore")
        return compute


def test_a_size_that_cannot_be_recorded_runs_without_and_is_tried_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    record = Fails()
    made = graphs(record, [])
    for step in range(3 * cuda_graphs.RETRY_STEPS + 2):
        assert made.run(rows(5, 6)) is None
        if step % 100 == 0:
            assert made.run(rows(7)) is not None  # others go on
    assert record.recorded == 2
    tries = [said.__dict__["steps_until_next_try"] for said in caplog.records]
    assert tries == [cuda_graphs.RETRY_STEPS, 2 * cuda_graphs.RETRY_STEPS]
    assert caplog.records[0].__dict__["reason"] == "CUDA out of memory. Tried to allocate"
    record.most = 2
    assert made.run(rows(5, 6)) is not None
    assert not made.failed


def test_what_fails_at_the_load_leaves_the_other_sizes() -> None:
    record = Fails()
    record.most = 2
    made = graphs(record, [])
    made.prepare([1, 2, 4])
    assert [made.run(rows(*[5] * count)) is not None for count in (1, 2, 3)] == [True, True, False]
