"""How does an HTTP request get the span that it is followed by?"""

import http.client
import json
from collections.abc import Iterator

import pytest

import wherry
from tests.fakes import until
from tests.otlp import Collector, collector
from tests.unit.server.asking import get
from wherry.server.server import Server
from wherry.testing import GatedModel, local_server

pytestmark = pytest.mark.slow


@wherry.model
def picky(text: str) -> str:
    if text == "bad":
        raise ValueError("no")
    return text


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collector() as collected:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collected.url)
        yield collected


def ask(server: Server, path: str, body: str, **headers: str) -> int:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    connection = http.client.HTTPConnection(host, int(port))
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("path", "text", "status", "kind", "failed"),
    [
        ("/v2/models/picky/generate", "good", 200, None, False),
        ("/v2/models/picky/generate", None, 400, "400", False),
        ("/v2/models/none/generate", "good", 404, "404", False),
        ("/nothing", "good", 404, "404", False),
        ("/v2/models/picky/generate", "bad", 500, "ModelFailed", True),
    ],
)
def test_a_span_has_failed_if_the_server_is_to_blame(
    collected: Collector, path: str, text: str | None, status: int, kind: str | None, failed: bool
) -> None:
    with local_server(picky) as server:
        body = "{" if text is None else json.dumps({"text": text})
        assert ask(server, path, body) == status
        assert get(f"{server.url}/v2/health/ready")[0] == 200  # has no span
    (span,) = [one for one in collected.spans if one.raw.kind == 2]
    assert span.attributes["http.response.status_code"] == status
    assert (span.attributes.get("error.type"), span.has_failed) == (kind, failed)
    told = [event for event in span.events if event[0] == "exception"]
    assert bool(told) is (status != 200)
    assert "Traceback" not in str(span.raw)


def test_a_client_that_leaves_and_one_that_is_too_late_have_failed_spans(
    collected: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")  # milliseconds
    gated = GatedModel()
    with local_server(gated) as server:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        connection = http.client.HTTPConnection(host, int(port))
        connection.request("POST", "/v2/models/gated/generate", '{"text": "a"}')
        gated.wait_started()
        late = ask(
            server, "/v2/models/gated/generate", '{"text": "b"}', **{"X-Request-Timeout": "0.01"}
        )
        assert late == 504
        connection.close()
        until(lambda: any("client left" in one.attributes.values() for one in collected.spans))
        gated.let_finish(2)
    kinds = {one.attributes["error.type"]: one for one in collected.spans if one.raw.kind == 2}
    assert sorted(kinds) == ["DeadlineExceeded", "client left"]
    assert all(one.has_failed for one in kinds.values())


def test_hostile_contexts_begin_traces_of_their_own(collected: Collector) -> None:
    with local_server(picky) as server:
        for given in ("00-" + "0" * 32 + "-b7ad6b7169203331-01", "x" * 4000, "00-1-2-3"):
            state = ",".join(f"k{n}=v" for n in range(600))
            headers = {"traceparent": given, "tracestate": state}
            assert ask(server, "/v2/models/picky/generate", '{"text": "a"}', **headers) == 200
    spans = [one for one in collected.spans if one.raw.kind == 2]
    assert [one.parent for one in spans] == ["", "", ""]
    assert len({one.trace for one in spans}) == 3
