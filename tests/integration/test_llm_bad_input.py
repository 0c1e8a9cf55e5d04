"""What can a request to a language model do to the server and to others? Nothing but be refused."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest

import wherry
from tests.fakes import TIMEOUT, until
from tests.unit.llm.engine import tiny
from wherry.llm import LLM
from wherry.llm.engine.constraint import Matcher
from wherry.llm.engine.engine import Engine, Event
from wherry.llm.engine.request import Detokenizer
from wherry.llm.openai.chat_request import ChatRequest
from wherry.llm.openai.completions import CompletionRequest

pytestmark = pytest.mark.timeout(120)

HELLO = [{"role": "user", "content": "word1"}]
BODIES: dict[str, tuple[type[msgspec.Struct], dict[str, Any]]] = {
    "chat/completions": (ChatRequest, {"messages": HELLO}),
    "completions": (CompletionRequest, {"prompt": "word1"}),
}
#: Of each JSON type some values: none is right for all fields, and most are wrong for any.
VALUES: tuple[Any, ...] = (
    True, 0, -1, 7, 2**63, -(2**70), 0.5, -1e308, "", "word1", "\x00", [], [[]], [{}], [None],
    ["word1"], [1.5], {}, {"a": 1}, {"type": "x"}, {"1": []},
)  # fmt: skip
LONG = {"max_tokens": 100, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wherry.Server]:
    folder = tiny.make(tmp_path_factory.mktemp("llm") / "tiny")
    chat = LLM(
        folder, name="chat", cache_gb=0.01, max_step_tokens=16, max_running=4, threads=1,
        isolation="thread",
    )  # fmt: skip
    with wherry.Server(chat, port=0) as server:
        # The thread that reads grammars starts with the first one, and is the server's.
        form = {"constraint": {"choice": ["!"]}}
        list(server.runtime.stream("chat", prompt="?", parameters=form))
        yield server


@pytest.fixture
def client(server: wherry.Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{server.url}/v1/", timeout=60) as client:
        yield client


def gauges(server: wherry.Server) -> dict[str, float]:
    (found,) = server.runtime.model("chat").runner.gauges().values()
    return dict(found)


def in_flight(server: wherry.Server) -> int:
    """Requests that are unanswered and whose client has not left."""
    text = httpx.get(f"{server.url}/metrics").text
    (found,) = re.findall(r"^wherry_requests_in_flight (\S+)$", text, re.MULTILINE)
    return round(float(found))


def idle(server: wherry.Server) -> bool:
    now = gauges(server)
    return not (now["running"] or now["waiting"] or now["kv_cache_usage"])


def refused(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize("path", BODIES)
def test_a_value_of_any_type_in_any_field_is_taken_or_refused_by_its_name(
    server: wherry.Server, client: httpx.Client, path: str
) -> None:
    kind, body = BODIES[path]
    wrong, taken = [], 0
    for field in kind.__struct_fields__:
        for value in VALUES:
            limits = {} if field.startswith("max_") else {"max_tokens": 2}
            answer = client.post(path, json={**body, **limits, field: value})
            if answer.status_code == 200:
                taken += 1
                continue
            error = refused(answer)
            param = str(error["param"])
            named = param == field or param.startswith((f"{field}[", f"{field}."))
            if not (named and answer.status_code == (404 if error["code"] else 400)):
                wrong.append((field, value, answer.status_code, error))
    assert wrong == []
    assert 0.1 < taken / len(VALUES) / len(kind.__struct_fields__) < 0.4
    assert client.post(path, json={**body, "max_tokens": 2}).status_code == 200
    until(lambda: idle(server))


# One that fails within a step of the engine


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> dict[str, Any]:
    """A part of the engine's step that raises, and the fields of a request that it raises for."""
    error = RuntimeError("a bug")

    def mask(self: Matcher, allowed: Any) -> None:
        raise error

    def accept(self: Matcher, token: int) -> None:
        raise error

    def push(self: Detokenizer, token: int) -> str:
        if token == 65:
            raise error
        return plain_push(self, token)

    plain_push = Detokenizer.push
    if request.param == "its text":
        monkeypatch.setattr(Detokenizer, "push", push)
        return {"allowed_token_ids": [65]}
    monkeypatch.setattr(Matcher, request.param, {"mask": mask, "accept": accept}[request.param])
    return {"structured_outputs": {"choice": ["word1"]}}


@pytest.mark.parametrize("poison", ["mask", "accept", "its text"], indirect=True)
@pytest.mark.parametrize("stream", [False, True])
def test_one_that_fails_within_a_step_ends_alone(
    server: wherry.Server, client: httpx.Client, poison: dict[str, Any], stream: bool
) -> None:
    other = {"prompt": "word7 word8", **LONG}
    alone = client.post("completions", json=other).json()["choices"][0]["text"]
    with client.stream("POST", "completions", json={**other, "stream": True}) as going:
        events = going.iter_lines()
        first = next(events)
        body = {"prompt": "word1", **LONG, **poison, "stream": stream}
        answer = client.post("completions", json=body)
        lines = [first, *events]
    assert answer.status_code == 500  # nothing was sent yet
    assert refused(answer)["type"] == "server_error"
    told = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in told) == alone
    until(lambda: idle(server))


# One that leaves


class Turnstile:
    """Lets the engine make one step for each `turn`, or any number once it is open."""

    def __init__(self) -> None:
        self._turns = threading.Semaphore(0)
        self._open = threading.Event()
        self.waits = threading.Event()

    def turn(self) -> None:
        self._turns.release()

    def open(self) -> None:
        self._open.set()
        self._turns.release()

    def pass_through(self) -> None:
        if not self._open.is_set():
            self.waits.set()
            self._turns.acquire()
            self.waits.clear()


@pytest.fixture
def turnstile(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turnstile]:
    turnstile, step = Turnstile(), Engine.step

    def held(self: Engine) -> list[Event]:
        if self.busy:
            turnstile.pass_through()
        return step(self)

    monkeypatch.setattr(Engine, "step", held)
    yield turnstile
    turnstile.open()


def sent(server: wherry.Server, **fields: Any) -> socket.socket:
    """A connection with a request on its way."""
    address = urlsplit(server.url)
    connection = socket.create_connection((str(address.hostname), int(address.port or 0)), TIMEOUT)
    body = json.dumps({**LONG, **fields}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: {len(body)}"
    connection.sendall(f"{head}\r\n\r\n".encode() + body)
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_leaves_while_its_prompt_is_computed_gives_its_blocks_back(
    server: wherry.Server, turnstile: Turnstile, stream: bool
) -> None:
    before = gauges(server)["prompt_tokens_total"]
    with sent(server, prompt="word1 " * 20, stream=stream):  # in chunks of 16 tokens
        until(turnstile.waits.is_set)
        turnstile.turn()
        until(lambda: gauges(server)["prompt_tokens_total"] > before)
        assert not idle(server)
    until(lambda: in_flight(server) == 0)
    turnstile.open()
    until(lambda: idle(server))
    assert gauges(server)["prompt_tokens_total"] - before < 60


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_leaves_while_it_generates_gives_its_blocks_back(
    server: wherry.Server, stream: bool
) -> None:
    before = gauges(server)["generation_tokens_total"]
    with sent(server, prompt="word1", stream=stream, max_tokens=250):
        until(lambda: gauges(server)["generation_tokens_total"] > before)
    until(lambda: idle(server))


def test_one_that_leaves_while_it_waits_is_never_computed(
    server: wherry.Server, turnstile: Turnstile
) -> None:
    before = gauges(server)["generation_tokens_total"]
    with ExitStack() as others:
        for _ in range(4):  # as many as run at once
            others.enter_context(sent(server, prompt="word7", stream=True, max_tokens=20))
        until(turnstile.waits.is_set)
        with sent(server, prompt="word1 " * 30):
            until(lambda: in_flight(server) == 5)
        until(lambda: in_flight(server) == 4)
        turnstile.open()
        until(lambda: in_flight(server) == 0)
    until(lambda: idle(server))
    assert gauges(server)["generation_tokens_total"] - before == 80


# A long one


def test_a_prompt_of_ten_megabytes_is_refused_and_leaves_nothing(
    server: wherry.Server, client: httpx.Client
) -> None:
    for prompt in ("word1 " * 1_700_000, " " * 10**7, "\u00e9\U0001f600" * 10**6):
        answer = client.post("completions", json={"prompt": prompt})
        error = refused(answer)
        assert (answer.status_code, error["param"]) == (400, "prompt")
        assert error["code"] == "context_length_exceeded"
    assert idle(server)
