"""What does the log say of each HTTP request?"""

import logging
import urllib.request

import pytest

import wherry
from tests.unit.server.asking import get, upper
from wherry.testing import local_server


def test_the_log_tells_of_each_model_and_of_each_request_if_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.INFO),
        local_server(upper, access_log=True) as server,
        wherry.Client(server.url) as client,
    ):
        client.infer("upper", text="x")
        get(f"{server.url}/v2/health/ready")
        get(f"{server.url}/nothing")
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("model ready") == 1
    assert messages.count("ready") == 1
    (ready,) = [r for r in caplog.records if r.getMessage() == "model ready"]
    assert (ready.model, ready.device, ready.instances) == ("upper", "cpu", 1)  # type: ignore[attr-defined]
    access = [r for r in caplog.records if r.name == "wherry.access"]
    assert [(r.getMessage(), r.status) for r in access] == [  # type: ignore[attr-defined]
        ("GET /v2/models/upper/config", 200),
        ("POST /v2/models/upper/infer", 200),
        ("GET /nothing", 404),
    ]


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("given", "logged"),
    [
        (TRACE, TRACE),
        (TRACE.upper(), None),
        ("00-0af7651916cd43dd-b7ad6b7169203331-01", None),
        ("x" * 5000, None),
        (None, None),
    ],
)
def test_the_access_log_has_the_trace_that_a_request_belongs_to(
    caplog: pytest.LogCaptureFixture, given: str | None, logged: str | None
) -> None:
    headers = {} if given is None else {"traceparent": given, "X-Request-Id": "mine"}
    with caplog.at_level(logging.INFO), local_server(upper, access_log=True) as server:
        request = urllib.request.Request(f"{server.url}/v2", headers=headers)
        urllib.request.urlopen(request).close()
    (access,) = [r for r in caplog.records if r.name == "wherry.access"]
    assert getattr(access, "traceparent", None) == logged
    assert getattr(access, "request_id", None) == (None if given is None else "mine")
