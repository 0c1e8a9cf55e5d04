"""server/v2/administration.py: the routes; what the settings do is for tests/unit/server."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

import wherry
from tests.http_exchange import Client, served
from wherry.server.calls.settings import TRACE_DEFAULTS


@wherry.model
def quiet(text: str) -> str:
    return text


@pytest.fixture
def client() -> Iterator[Client]:
    with served(quiet) as client:
        yield client


def test_the_log_is_told_and_changed(client: Client) -> None:
    told = client.get("/v2/logging").json
    assert set(told) == {
        "log_file",
        "log_info",
        "log_warning",
        "log_error",
        "log_verbose_level",
        "log_format",
    }
    changed = client.post("/v2/logging", {"log_verbose_level": 3, "log_warning": False}).json
    assert changed["log_verbose_level"] == 3
    assert client.get("/v2/logging").json == changed
    assert client.post("/v2/logging", {"log_warning": None, "log_file": None}).json == changed
    assert logging.getLogger("wherry").isEnabledFor(logging.DEBUG)
    assert client.post("/v2/logging").json == changed


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/v2/logging", b"{", 400, "failed to parse the request JSON"),
        ("/v2/logging", b"[]", 400, "expected object"),
        ("/v2/logging", {"log_info": "yes"}, 400, "log_info must be a bool"),
        ("/v2/logging", {"log_file": "x"}, 501, "log file location"),
        ("/v2/trace/setting", {"trace_rate": "x"}, 400, "trace_rate must be"),
        ("/v2/trace/setting", {"trace_file": "x"}, 501, "trace file location can not be updated"),
        ("/v2/models/quiet/trace/setting", {"x": "1"}, 400, "unknown trace setting 'x'"),
        ("/v2/models/nobody/trace/setting", {}, 400, "Request for unknown model : nobody"),
    ],
)
def test_a_wrong_setting_is_refused(
    client: Client, path: str, body: Any, status: int, text: str
) -> None:
    answer = client.post(path, body)
    assert answer.status == status
    assert text in answer.error


def test_traces_of_the_server_and_of_a_model(client: Client) -> None:
    assert client.get("/v2/trace/setting").json == TRACE_DEFAULTS
    client.post("/v2/trace/setting", {"trace_rate": "5"})
    changed = client.post("/v2/models/quiet/trace/setting", {"trace_count": "3"}).json
    assert changed == {**TRACE_DEFAULTS, "trace_rate": "5", "trace_count": "3"}
    assert client.get("/v2/models/quiet/trace/setting").json == changed
    assert client.get("/v2/trace/setting").json["trace_count"] == "-1"
    answer = client.get("/v2/models/nobody/trace/setting")
    assert (answer.status, answer.error) == (400, "Request for unknown model : nobody")
