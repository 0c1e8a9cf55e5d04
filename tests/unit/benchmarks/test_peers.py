"""benchmarks.peers: which cells are taken, what is sent, and what is made of the runs."""

import random

import pytest

from benchmarks.peers.cells import all_cells, request, selected
from benchmarks.peers.table import CellResult, across, markdown, median_interval, ratio, rows
from wherry.server.grpc import proto


def test_every_cell_is_selected_by_its_own_name_and_no_two_share_one() -> None:
    names = [cell.name for cell in all_cells()]
    assert len(set(names)) == len(names)
    for cell in all_cells():
        assert cell in selected(cell.name)
    assert [cell.name for cell in selected("hello,v2/alone/grpc/16")] == [
        "hello/single/json/1", "hello/single/json/10", "hello/single/json/64", "v2/alone/grpc/16",
    ]  # fmt: skip


def test_a_name_of_no_cell_is_told_with_those_that_there_are() -> None:
    with pytest.raises(SystemExit, match="hello/single/json/10"):
        selected("helo")


@pytest.mark.parametrize("name", ["v2/echo/grpc/1", "big/big/grpc/1", "function/single/grpc/1"])
def test_the_grpc_message_is_the_request_that_its_cell_says(name: str) -> None:
    (cell,) = selected(name)
    frame = request(cell, "m").body
    assert frame[0] == 0
    assert int.from_bytes(frame[1:5]) == len(frame) - 5
    message = proto.load("v2.proto", "model_config.proto").messages["ModelInferRequest"]
    decoded = message.decode(frame[5:])
    assert decoded["model_name"] == "m"
    (tensor,) = decoded["inputs"]
    elements = {"X": 150_000 if cell.model == "big" else 16, "text": 1}[tensor["name"]]
    size = 1
    for length in tensor["shape"]:
        size *= length
    assert size == elements
    (raw,) = decoded["raw_input_contents"]
    assert len(raw) == (elements * 4 if tensor["name"] == "X" else 9)


@pytest.mark.parametrize("runs", [5, 7, 9, 12])
def test_an_interval_holds_the_true_median_in_nine_of_ten_series(runs: int) -> None:
    draw = random.Random(runs)
    held = 0
    for _ in range(2000):
        low, high = median_interval([draw.lognormvariate(0, 1) for _ in range(runs)])
        held += low <= 1 <= high
    assert held / 2000 > 0.89


def test_an_interval_of_few_values_is_all_of_them() -> None:
    assert median_interval([3, 1]) == (1, 3)
    assert median_interval([3, 1, 2, 5, 4]) == (1, 5)
    assert median_interval([9, 1, 2, 3, 4, 5, 6, 7, 8]) == (2, 8)


def _run(cpu_us: float) -> dict[str, float]:
    return {"cpu_us": cpu_us, "rate": 100, "p50_ms": 1, "p99_ms": 2, "foreign": 0.1, "errors": 0}


RESULT: CellResult = {
    "cell": "hello/single/json/1",
    "ideal": 200.0,
    "peers": {
        "wherry": {"runs": [_run(50), _run(60), _run(300)]},
        "Triton": {"runs": [_run(100), _run(100), _run(500)]},
        "MOSEC": {"why_not": "MOSEC has no such model"},
    },
}


def test_a_ratio_is_taken_round_by_round_so_that_a_noisy_round_does_not_show() -> None:
    assert ratio(RESULT, "wherry", "Triton") == "0.60 (0.50-0.60)"
    assert ratio(RESULT, "wherry", "MOSEC") == ""


def test_a_cell_that_cannot_run_says_why() -> None:
    lines = rows(RESULT, "Triton")
    assert [line["CPU us"] for line in lines] == [
        "60 (50-300)", "100 (100-500)", "MOSEC has no such model",
    ]  # fmt: skip
    assert [line.get("x Triton") for line in lines] == ["0.60 (0.50-0.60)", "1", None]
    assert lines[0]["of ideal"] == "50%"


def test_a_line_across_the_peers_compares_the_first_with_each() -> None:
    line = across(RESULT, ("wherry", "Triton"))
    assert markdown([line]).splitlines()[2].split(" | ") == [
        "| single/json/1", "60", "100", "0.60 (0.50-0.60)", "1.00 / 1.00", "2.0 / 2.0", "50% / 50%",
        "0.1 |",
    ]  # fmt: skip
