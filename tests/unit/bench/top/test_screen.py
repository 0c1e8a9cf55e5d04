"""cli/top: what is shown, whatever a server tells and however small the terminal is."""

import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.bench.top.screen import SORTS, Snapshot, clean, screen
from wherry.core.observability.numbers import Numbers


def model(name: str, **told: Any) -> dict[str, Any]:
    return {
        "name": name,
        "version": "1",
        "state": "READY",
        "requests_per_second": 12.5,
        "failures_per_second": 0.0,
        "request_seconds": {"p50": 0.01, "p95": 0.02, "p99": 0.03},
        "queue_seconds": {"p95": 0.004},
        "queued_requests": 3,
        "window_seconds": 5.0,
        "instances": [{"name": f"{name}_0", "state": "idle", "resident_bytes": 2e9}],
        **told,
    }


def at(*models: dict[str, Any], **server: Any) -> Snapshot:
    server = {"name": "wherry", "version": "0.1.0", "started_at": 40.0, **server}
    return Snapshot(msgspec.convert({"at": 100.0, "server": server, "models": models}, Numbers))


def shown(look: Snapshot, width: int = 160, **how: Any) -> list[str]:
    return [text.plain for text in screen(look, url="http://there", width=width, **how)]


def cells(look: Snapshot, first: str, **how: Any) -> dict[str, str]:
    """The cells of the row that begins with this, by their heads: from right to left, by place."""
    lines = shown(look, **how)
    (row,) = [line for line in lines if line.startswith(first)]
    heads = next(line for line in reversed(lines[: lines.index(row)]) if "  " in line)
    words = [word for word in heads.split("  ") if word]
    values = [word for word in row.split("  ") if word]
    return dict(zip(map(str.strip, words), map(str.strip, values), strict=True))


def test_a_model_is_a_row_with_its_rates_times_and_instances() -> None:
    told = model(
        "m",
        batch_sizes=[[1, 10], [4, 10]],
        cut_reasons={"idle": 15, "full": 4, "delay": 1},
        instances=[{"state": "running"}, {"state": "not ready", "reason": "it ended"}],
    )
    assert cells(at(told), "m:1") == {
        "model": "m:1",
        "requests/s": "12.5",
        "p50 ms": "10",
        "p95 ms": "20",
        "p99 ms": "30",
        "queue": "3",
        "wait p95 ms": "4",
        "rows/batch": "2.5",
        "left because": "idle 75 %, full 20 %",
        "up": "1/2",
        "memory": "-",
    }


def test_the_server_is_one_line_if_there_is_room() -> None:
    process = {"cpu_share": 0.12, "resident_bytes": 5e7}
    machine = {"cpu_share": 0.5, "memory_used_bytes": 4e9, "memory_total_bytes": 8e9}
    look = at(
        model("m"), draining=True, requests_in_flight=7, refused=2, process=process,
        machine=machine, fronts=[{"connections": 3, "calls": 1}] * 2,
        loop_stall={"longest_seconds": 0.25},
    )  # fmt: skip
    assert shown(look, 300)[0] == (
        "wherry 0.1.0 at http://there  draining  up 60 s  7 in flight  2 refused"
        "  event loop stalls up to 250 ms  process 12 % CPU, 50 MB  machine 50 % CPU, 4 GB of 8 GB"
        "  2 fronts, 8 connections  rates of the last 5 s"
    )


def test_batches_are_those_since_the_look_before() -> None:
    before = at(model("m", batch_sizes=[[1, 1000]], cut_reasons={"idle": 1000}))
    now = at(model("m", batch_sizes=[[1, 1000], [8, 5]], cut_reasons={"idle": 1000, "full": 5}))
    row = cells(dataclasses.replace(now, before=before.polled), "m:1")
    assert (row["rows/batch"], row["left because"]) == ("8", "full 100 %")
    again = at(
        model("m", batch_sizes=[[1, 1000], [8, 5]], cut_reasons={"idle": 1000, "full": 5}),
        started_at=99.0,
    )
    row = cells(dataclasses.replace(again, before=before.polled), "m:1")
    assert row["rows/batch"] == "1.03"


def test_a_language_model_has_a_row_of_its_own() -> None:
    generation = {
        "running": 2, "waiting": 5, "tokens_per_second": 100.0, "prompt_tokens_per_second": 50.0,
        "first_response_seconds": {"p50": 0.1, "p95": 0.2}, "kv_cache_usage": 0.25,
        "next_response_seconds": {"p50": 0.01, "p95": 0.02}, "prefix_hit_share": None,
        "preemptions": 1,
    }  # fmt: skip
    lines = shown(at(model("chat", generation=generation)))
    (row,) = [line.split() for line in lines[lines.index("") + 3 :] if line.startswith("chat:1")]
    assert row == ["chat:1", "100", "50", "2", "5", "100", "200", "10", "20", "25", "%", "-", "1"]


def test_what_is_wrong_comes_first_and_then_the_errors_the_latest_first() -> None:
    errors = [
        {"at": 40.0, "kind": "ModelFailed", "message": "old", "count": 1},
        {"at": 90.0, "kind": "QueueFull", "message": "new", "count": 17},
    ]
    look = at(model("a", errors=errors), model("b", state="UNAVAILABLE", reason="no file"))
    lines = shown(look)
    assert lines[lines.index("errors") + 1 :] == [
        "b:1 is unavailable: no file",
        "10 s ago  a:1  QueueFull x17: new",
        "60 s ago  a:1  ModelFailed: old",
    ]


@pytest.mark.parametrize(
    ("sort", "order"),
    [("n", "abc"), ("r", "bac"), ("l", "cab"), ("w", "acb"), ("f", "cba")],
)
def test_models_are_sorted_by_the_key(sort: str, order: str) -> None:
    look = at(
        model("a", requests_per_second=2.0, queued_requests=9, request_seconds={"p99": 0.2}),
        model("b", requests_per_second=3.0, queued_requests=0, request_seconds={"p99": 0.1},
              totals={"failures": {"BACKEND": 1}}),
        model("c", requests_per_second=1.0, queued_requests=1, request_seconds={"p99": 0.3},
              failures_per_second=1.0),
    )  # fmt: skip
    assert "".join(row[0] for row in shown(look, sort=sort) if row[1:3] == ":1") == order


def test_of_too_many_models_as_many_as_fit_are_shown_and_the_rest_is_counted() -> None:
    errors = [{"at": float(i), "kind": "K", "message": "m"} for i in range(16)]
    look = at(*(model(f"m{i}", errors=errors) for i in range(50)))
    lines = shown(look, height=20, keys=True)
    assert len(lines) == 20
    assert lines[-1].startswith("q quit")
    assert len([line for line in lines if line.startswith("and ")]) == 2
    assert len(shown(look)) > 50 * 17


def test_a_model_that_is_not_loaded_and_a_server_without_models_are_shown() -> None:
    bare = {"name": "new", "version": "", "state": "LOADING", "reason": "", "kind": ""}
    assert cells(at(bare), "new")["state"] == "loading"
    assert "no models" in shown(at())


TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["\x1b]0;x\x07", "[red]a[/]", "\x9b2J", "\u202eb", "日本語" * 9, "e\u0301", "\n"]
    ),
)
NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))


@given(
    names=st.lists(TEXTS, max_size=4),
    text=TEXTS,
    value=NUMBERS,
    width=st.integers(-1, 200),
    height=st.none() | st.integers(0, 40),
    sort=st.sampled_from(list(SORTS)),
)
def test_whatever_is_told_fits_the_terminal_and_none_of_it_is_obeyed(
    names: list[str], text: str, value: float | None, width: int, height: int | None, sort: str
) -> None:
    models = [
        {
            "name": name, "version": text, "state": text, "reason": text, "cut_reasons": {text: 1},
            "errors": [{"at": value or 0.0, "kind": text, "message": text, "count": value or 0.0}],
            "instances": [{"name": name, "state": text, "reason": text, "resident_bytes": value}],
            "generation": {"running": value}, "requests_per_second": value,
        }
        for name in names
    ]  # fmt: skip
    server = {
        "name": text, "version": text, "started_at": value,
        "machine": {"cpu_share": value, "memory_used_bytes": value, "memory_total_bytes": value},
    }  # fmt: skip
    lines = screen(
        at(*models, **server), url=text, width=width, height=height, sort=sort, trouble=text,
        keys=True,
    )  # fmt: skip
    assert height is None or len(lines) <= max(1, height)
    for line in lines:
        assert line.cell_len <= max(1, width)
        assert line.plain.isprintable()
        assert {str(span.style) for span in line.spans} <= {"", "dim", "bold", "bold red", "red"}


def test_a_text_of_a_megabyte_costs_no_more_than_its_beginning() -> None:
    assert len(clean("\x00" * 10**6)) < 5000
