"""server/triton_start.py: the lines that scripts wait for."""

from __future__ import annotations

from wherry.runtime.control import ModelStatus
from wherry.server.triton_start import model_table, started


def test_each_service_that_listens_has_a_line_behind_the_models() -> None:
    urls = {"metrics": "http://0.0.0.0:8002", "http": "http://[::1]:8000", "management": "x://y"}
    events = [event for event, _ in started([], "0.0.0.0:8001", urls)]
    assert events == [
        "models",
        "Started GRPCInferenceService at 0.0.0.0:8001",
        "Started HTTPService at [::1]:8000",
        "Started Metrics Service at 0.0.0.0:8002",
    ]
    urls = {"http": "https://127.0.0.1:8000"}
    assert [event for event, _ in started([], "", urls)][1:] == [
        "Started HTTPService at 127.0.0.1:8000"
    ]


def test_the_table_has_a_row_for_each_version_and_lines_for_each_line_of_a_reason() -> None:
    index = [
        ModelStatus("add_sub", "1", "READY"),
        ModelStatus("broken", "1", "UNAVAILABLE", "no weights\n\nAt:\n  model.py"),
        ModelStatus("never loaded"),
    ]
    assert model_table(index).splitlines() == [
        "+---------+---------+-------------------------+",
        "| Model   | Version | Status                  |",
        "+---------+---------+-------------------------+",
        "| add_sub | 1       | READY                   |",
        "| broken  | 1       | UNAVAILABLE: no weights |",
        "|         |         |                         |",
        "|         |         | At:                     |",
        "|         |         |   model.py              |",
        "+---------+---------+-------------------------+",
    ]


def test_without_models_the_table_has_its_head_as_tritons() -> None:
    assert model_table([]).splitlines() == [
        "+-------+---------+--------+",
        "| Model | Version | Status |",
        "+-------+---------+--------+",
        "+-------+---------+--------+",
    ]
