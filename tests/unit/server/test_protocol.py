"""server/protocol.py: coroutines of a package as handlers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import wherry
from tests.fakes import TIMEOUT
from tests.http_exchange import Client, served
from tests.plugins import install
from wherry.server.calls.admission import Admission
from wherry.server.http.exchange import HttpRequest
from wherry.server.http.route import Route
from wherry.server.protocol import HttpProtocol
from wherry.testing import GatedModel

ended = threading.Event()


class Echo(HttpProtocol):
    def routes(self) -> Mapping[str, Route]:
        return {"/echo/{model}": self.route(POST=self.echo), "/wrong": self.route(GET=self.wrong)}

    def error(self, status: int, message: str) -> bytes:
        return json.dumps({"number": status, "text": message}).encode()

    async def echo(self, model: str, request: HttpRequest) -> bytes:
        try:
            answer: str = await self.runtime.ainfer(model, bytes(request.body).decode())
            return answer.encode()
        finally:
            ended.set()

    async def wrong(self, request: HttpRequest) -> bytes:
        raise RuntimeError("a secret")


@pytest.fixture
def model() -> GatedModel:
    ended.clear()
    return GatedModel()


@pytest.fixture
def client(model: GatedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Client]:
    install(monkeypatch, tmp_path, "wherry.protocols", {"echo": f"{__name__}:Echo"})
    with served(model, admission=Admission(max_in_flight=1)) as client:
        yield client


def test_a_client_that_leaves_cancels_the_coroutine(client: Client, model: GatedModel) -> None:
    path = f"/echo/{model.name}"
    left = client.begin("POST", path, b"a")
    assert model.wait_started() == ["a"]
    assert client.app.admission.in_flight == 1
    client.call(left.leave)
    assert ended.wait(TIMEOUT)
    client.call(lambda: None)
    assert client.app.admission.in_flight == 0
    model.let_finish(2)
    assert client.post(path, b"b").body == b"b"
    assert not left.status


def test_refusals_and_errors_have_the_protocols_form(client: Client, model: GatedModel) -> None:
    path = f"/echo/{model.name}"
    waiting = client.begin("POST", path, b"a")
    assert model.wait_started() == ["a"]
    refused = client.post(path, b"b")
    assert (refused.status, refused.json["number"]) == (429, 429)
    assert "retry-after" in refused.headers
    model.let_finish()
    waiting.answered.result(TIMEOUT)
    missing = client.post("/echo/nothing", b"b")
    assert (missing.status, missing.json["number"]) == (404, 404)
    wrong = client.get("/wrong")
    assert wrong.status == 500
    assert "secret" not in wrong.json["text"]


def test_a_models_own_path_is_before_a_protocols(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @wherry.model(route="/wrong")
    def own(text: str) -> str:
        return text.upper()

    install(monkeypatch, tmp_path, "wherry.protocols", {"echo": f"{__name__}:Echo"})
    with served(own) as client:
        assert client.post("/wrong", {"text": "a"}).status == 200
