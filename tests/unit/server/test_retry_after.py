"""A refusal says when to come back, on every route and for every reason."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import pytest

import wherry
from tests import grpc_calls, http_exchange
from tests.grpc_calls import words
from wherry.core.instances.dispatcher import Dispatcher
from wherry.core.instances.instance import Instance
from wherry.core.scheduler.model_batches import Acts
from wherry.core.values import errors
from wherry.core.values.request import InferRequest
from wherry.server.calls.admission import Admission

#: What a client is told to try again; a model that cannot be loaded cannot be later either.
REFUSALS = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, errors.WherryError)
    and cls.http_status in (429, 503)
    and cls is not errors.LoadFailed
]
TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}
CHAT = {"model": "say", "messages": [{"role": "user", "content": "a"}]}
ROUTES: Mapping[str, Mapping[str, Any]] = {
    "/v2/models/shout/infer": {"inputs": [TENSOR]},
    "/v2/models/shout/generate": {"text": "a"},
    "/v2/models/letters/generate_stream": {"text": "ab"},
    "/shout": {"text": "a"},
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"model": "say", "input": "a"},
    "/v1/messages": {**CHAT, "max_tokens": 1},
    "/v1/messages?streamed": {**CHAT, "max_tokens": 1, "stream": True},
    "/v1/chat/completions?streamed": {**CHAT, "stream": True},
}


@wherry.model(max_batch_size=8, route="/shout")
def shout(text: list[str]) -> list[str]:
    return [t.upper() for t in text]


@wherry.model
def letters(text: str) -> Iterator[str]:
    yield from text


@wherry.model
def say(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "yes"


def refusal(kind: type[errors.WherryError]) -> errors.WherryError:
    """One as it is raised without a word about when."""
    if kind is errors.QueueLimitExceeded:
        return errors.QueueLimitExceeded("", "m", 1)
    if kind is errors.QueueFull:
        return errors.QueueFull("m", 1)
    if kind is errors.TooManyBytes:
        return errors.TooManyBytes("the server", "max_queue_bytes", 1, 1, 1)
    if issubclass(kind, errors.QueueTimeout):
        return kind("m", 1.0)
    return kind("no")


def refuse(kind: type[errors.WherryError], *_: object) -> NoReturn:
    raise refusal(kind)


@pytest.fixture(scope="module")
def client() -> Iterator[http_exchange.Client]:
    with http_exchange.served(
        shout, letters, say, admission=Admission(max_in_flight=100)
    ) as client:
        yield client


@pytest.fixture(scope="module")
def calls() -> Iterator[grpc_calls.Client]:
    with grpc_calls.served(shout, admission=Admission(max_in_flight=100)) as calls:
        yield calls


@pytest.mark.parametrize("kind", REFUSALS, ids=lambda kind: kind.__name__)
def test_at_the_door_it_is_told_on_every_route(
    kind: type[errors.WherryError],
    client: http_exchange.Client,
    calls: grpc_calls.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client.app.admission, "check", partial(refuse, kind))
    monkeypatch.setattr(client.app.admission, "enter_small", lambda _: False)
    for route, body in ROUTES.items():
        answer = client.post(route, body)
        assert answer.status == kind.http_status, route
        assert float(answer.headers["retry-after"]) >= 1, route
    monkeypatch.setattr(calls.app._entry.admission, "check", partial(refuse, kind))
    call = calls.ask("ModelInfer", words("a"))
    assert call.code == kind.grpc_code
    assert float(dict(call.trailers)["grpc-retry-pushback-ms"]) >= 1000


@pytest.mark.parametrize("kind", REFUSALS, ids=lambda kind: kind.__name__)
def test_after_the_queue_it_is_told_on_every_route(
    kind: type[errors.WherryError],
    client: http_exchange.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(requests: Sequence[InferRequest], now: float) -> Acts[Instance]:
        return Acts(fail=[(one, refusal(kind)) for one in requests])

    for name in ("shout", "letters", "say"):
        runner = client.runtime.model(name).runner
        if isinstance(runner, Dispatcher):
            monkeypatch.setattr(runner, "_arrived", refused)
        else:
            monkeypatch.setattr(runner, "_enqueue", lambda *_: refusal(kind))
    for route, body in ROUTES.items():
        answer = client.post(route, body)
        assert answer.status == kind.http_status, route
        assert float(answer.headers["retry-after"]) >= 1, route


def test_who_asks_whether_it_is_ready_is_told_when_to_ask_again() -> None:
    with http_exchange.served(shout) as client:
        client.call(client.app.drain)
        for path in ("/readyz", "/v2/health/ready"):
            answer = client.get(path)
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
