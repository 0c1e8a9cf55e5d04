"""The same plan on a model in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wherry
from wherry.bench.local import Cell, Local, Offline, batches, length_of, recommended
from wherry.bench.plan import Bursts, Closed, Load, Plan, Rate
from wherry.bench.session import Measured, measure
from wherry.bench.targets import Sending
from wherry.core.values.errors import ConfigError
from wherry.testing import GatedModel, ManualClock


@wherry.model(max_batch_size=8, examples=[{"text": "a"}, {"text": "b"}])
def echo(text: list[str]) -> list[str]:
    if "bad" in text:
        raise ValueError("a bad row")
    return text


@wherry.model
def words(text: str) -> Iterator[str]:
    yield from text.split()


def run(load: Load, *, rows: int = 1, sending: Sending | None = None, **plan: Any) -> Measured:
    with wherry.Runtime(echo) as runtime:
        return measure(Local(runtime, sending or Sending()), Plan(load=load, **plan), rows=rows)


def test_callers_are_threads_that_share_batches() -> None:
    point = run(Closed(callers=4, loops=25)).point
    assert (point.figures.ok, point.figures.failed) == (100, 0)
    assert point.server is not None
    assert point.server.requests == 100
    assert point.server_cores is not None


@pytest.mark.parametrize("load", [Rate(rate=2000), Bursts(size=10, every=0.005)])
def test_open_loads_count_from_the_intended_start(load: Load) -> None:
    found = run(load, requests=50)
    assert found.point.figures.ok == 50
    assert (found.table.sent >= found.table.intended).all()


def test_rows_of_a_request_are_counted() -> None:
    point = run(Closed(callers=1), rows=5, requests=10).point
    assert point.server is not None
    assert point.server.rows == 50
    assert point.figures.rows_per_second == pytest.approx(5 * point.figures.requests_per_second)


def test_a_model_may_be_named_with_the_version_that_a_call_means() -> None:
    found = run(Closed(callers=1), sending=Sending(model="echo:1"), requests=2)
    assert found.point.figures.ok == 2
    with wherry.Runtime(echo) as runtime:
        runtime.load(echo, version="2")
        with pytest.raises(ConfigError, match="calls the highest version of 'echo', not 1"):
            Local(runtime, Sending(model="echo:1"))


def test_a_model_that_raises_is_an_error_with_its_message(tmp_path: Any) -> None:
    (tmp_path / "bad.txt").write_text("bad\ngood\n")
    point = run(
        Closed(callers=1), requests=10, sending=Sending(inputs=str(tmp_path / "bad.txt"))
    ).point
    assert point.figures.errors == {"ModelFailed": 5}
    assert point.figures.ok == 5
    assert "a bad row" in point.samples["ModelFailed"]


def test_streams_have_their_pieces() -> None:
    with wherry.Runtime(words) as runtime:
        found = measure(
            Local(runtime, Sending(text=None)), Plan(load=Closed(callers=2), requests=6)
        ).point.figures
        with pytest.raises(ConfigError, match="one row a request"):
            measure(Local(runtime, Sending()), Plan(load=Closed(callers=1), requests=1), rows=2)
    assert found.first_token is not None
    assert found.inter_token is not None
    assert found.tokens_out_per_second > 0


def test_an_interrupted_run_keeps_what_there_is_and_counts_nothing_more() -> None:
    gated = GatedModel()
    stop = threading.Event()

    def let_three_pass() -> None:
        for _ in range(3):
            gated.wait_started()
            gated.let_finish()
        gated.wait_started()
        stop.set()

    with wherry.Runtime(gated) as runtime:
        helper = threading.Thread(target=let_three_pass)
        helper.start()
        found = measure(
            Local(runtime, Sending()),
            Plan(load=Closed(callers=1), duration=60),
            interrupted=stop.is_set,
        )
        gated.open()
        helper.join()
    assert found.point.interrupted
    assert (found.point.figures.ok, found.point.figures.failed) == (3, 0)
    assert "interrupted" in found.point.notes[0]


def test_a_model_that_never_answers_is_a_timeout_and_the_run_ends() -> None:
    gated = GatedModel()
    with wherry.Runtime(gated) as runtime:
        found = measure(
            Local(runtime, Sending()),
            Plan(load=Closed(callers=2), duration=0.3, timeout=0.1),
        )
        gated.open()
    assert found.point.figures.errors == {"timeout": 2}


def test_one_of_several_models_must_be_named() -> None:
    with wherry.Runtime(echo, words) as runtime:
        with pytest.raises(ConfigError, match="echo, words"):
            Local(runtime, Sending())
        assert Local(runtime, Sending(model="words")).streams


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
    from tests.unit.bench.test_local import words

    with pytest.raises(ConfigError, match="streams"):
        Offline(words, words.config(), wherry.Device())
