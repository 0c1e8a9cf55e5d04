"""The model's own code on ready batches: which cells, and which size is recommended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wherry
from wherry.bench.offline import Cell, Offline, batches, length_of, recommended
from wherry.core.values.errors import ConfigError
from wherry.testing import ManualClock


@wherry.model
def words(text: str) -> Iterator[str]:
    yield from text.split()


def cell(size: int, seconds_per_row: float) -> Cell:
    return Cell(
        batch_size=size, rows="r", order="sorted", seconds_per_row=seconds_per_row, measured=1
    )


def test_the_smallest_size_that_is_nearly_the_best_is_recommended() -> None:
    cells = [cell(1, 1.0), cell(8, 0.104), cell(16, 0.101), cell(32, 0.1)]
    assert recommended(cells).batch_size == 8
    assert recommended([cell(1, 1.0), cell(2, 2.0)]).batch_size == 1


@given(st.lists(st.text(), min_size=1, max_size=60), st.integers(1, 9), st.booleans())
def test_every_row_is_in_one_batch_and_sorted_ones_are_alike(
    texts: list[str], size: int, in_order: bool
) -> None:
    rows = [{"text": text} for text in texts]
    made = batches(rows, size, in_order=in_order)
    flat = [row for batch in made for row in batch]
    assert sorted(map(length_of, flat)) == sorted(map(length_of, rows))
    assert all(len(batch) == size for batch in made[:-1])
    if in_order:
        assert list(map(length_of, flat)) == sorted(map(length_of, rows))
    else:
        assert flat == rows


def test_seconds_per_row_come_from_whole_passes_over_all_rows() -> None:
    clock = ManualClock()
    seen: list[int] = []

    @wherry.model(name="timed", max_batch_size=4)
    def timed(text: list[str]) -> list[str]:
        seen.append(len(text))
        clock.advance(1.0 + 0.5 * len(text))
        return text

    rows = [{"text": "x" * n} for n in range(8)]
    with Offline(timed, timed.config(), wherry.Device()) as offline:
        found = offline.measure(rows, 4, name="r", in_order=False, seconds=7.0, clock=clock)
    assert found is not None
    assert found.seconds_per_row == pytest.approx((1.0 + 2.0) / 4)
    assert found.measured == 16
    assert found.error == pytest.approx(0.0)
    assert seen == [4] * 5  # one unmeasured, two passes of two


def test_an_interrupted_cell_is_none() -> None:
    @wherry.model(name="quick", max_batch_size=4)
    def quick(text: list[str]) -> list[str]:
        return text

    with Offline(quick, quick.config(), wherry.Device()) as offline:
        found = offline.measure(
            [{"text": "a"}], 1, name="r", in_order=True, seconds=60, interrupted=lambda: True
        )
    assert found is None


def test_a_stream_has_no_seconds_per_row() -> None:
    with pytest.raises(ConfigError, match="streams"):
        Offline(words, words.config(), wherry.Device())
