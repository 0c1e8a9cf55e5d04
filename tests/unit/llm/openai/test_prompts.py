"""What all prompts of a request share is measured once, and counted once for each of them."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

import wherry
from tests.fakes import TIMEOUT, until
from tests.http_exchange import MemoryExchange, served
from wherry.core.runtime.loaded_model import LoadedModel
from wherry.core.values.request import InferRequest, value_bytes
from wherry.llm.openai.completions import CompletionRequest
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.generation_request import ModelCall
from wherry.llm.openai.reading import decoded
from wherry.server.calls.admission import Admission
from wherry.server.calls.parameters import Forwarding, HeaderForwarding
from wherry.server.v2.common import Common

USER = [{"role": "user", "content": "Hi"}]
echo_rows: list[str] = []


@wherry.model
def echo(prompt: str) -> str:
    echo_rows.append(prompt)
    return prompt


@wherry.model(priority_levels=5, default_priority=1)
def chat(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield str(messages[-1]["content"])


def test_what_prompts_share_is_one_object_and_counts_for_each() -> None:
    shared = {"parameters": {"allowed_token_ids": [1] * 1000}}
    prompts = ModelCall.of([{"prompt": "a"}, {"prompt": "b"}], shared, "prompt")
    assert prompts.inputs is shared
    assert prompts.nbytes == [value_bytes(shared) + value_bytes({"prompt": "a"})] * 2


def test_a_large_field_beside_many_prompts_is_refused_before_it_is_multiplied() -> None:
    tokens = [1] * 10_000
    body = msgspec.json.encode({"prompt": ["a"] * 300, "allowed_token_ids": tokens})
    with pytest.raises(BadField, match=r"prompt: holds 300, .*; send at most \d+ at a time") as no:
        decoded(body, CompletionRequest).call()
    assert no.value.field == "prompt"
    one = msgspec.json.encode({"prompt": ["a"], "allowed_token_ids": tokens})
    assert len(decoded(one, CompletionRequest).call().own) == 1


def test_log_probabilities_are_counted_over_all_prompts() -> None:
    def read(**fields: object) -> int:
        body = {"prompt": ["a"] * 100, "logprobs": 20, **fields}
        return len(decoded(msgspec.json.encode(body), CompletionRequest).call().own)

    assert read() == read(n=4, max_tokens=100) == 100
    with pytest.raises(BadField, match=r"prompt: holds 100, with up to 2\d{6} .*; send at most 49"):
        read(n=10, max_tokens=100)
    assert read(n=128, max_tokens=1000, logprobs=None) == 100
    tokens = [[65] * 1000] * 100
    assert read(prompt=tokens) == read(prompt=tokens, logprobs=None, prompt_logprobs=5) == 100
    for more in ({"logprobs": 5, "echo": True, "n": 2}, {"logprobs": None, "prompt_logprobs": 20}):
        for prompt in (tokens, ["a" * 1000] * 100):
            with pytest.raises(BadField, match="log probabilities together; send at most"):
                read(prompt=prompt, max_tokens=1, **more)


def test_prompts_that_are_too_much_together_are_refused_and_hold_nothing() -> None:
    admission = Admission(max_bytes=10 * 2**20)
    body = {"prompt": ["a" * 4 * 2**20] * 3}
    with served(echo, common=Common(admission=admission)) as client:
        refused = client.post("/v1/completions", body)
        assert (refused.status, admission.in_flight) == (503, 0)
        assert "max_queue_bytes" in refused.json["error"]["message"]
        until(lambda: admission.held_bytes == 0)
        assert echo_rows == []  # none of them was run
        assert client.post("/v1/completions", {"prompt": ["a", "b"]}).status == 200


@pytest.mark.parametrize(
    ("path", "body", "requests"),
    [
        ("/v1/chat/completions", {"messages": USER, "priority": 2}, 1),
        ("/v1/chat/completions", {"messages": USER, "priority": 2, "stream": True}, 1),
        ("/v1/messages", {"messages": USER, "max_tokens": 3}, 1),
        ("/v1/responses", {"input": "Hi"}, 1),
        ("/v1/completions", {"model": "echo", "prompt": ["a", "b"]}, 2),
    ],
)
def test_a_chat_has_the_headers_tenant_priority_and_traces_of_any_call(
    path: str, body: dict[str, Any], requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: list[InferRequest] = []

    def follow(_: LoadedModel, request: InferRequest, *__: Any, **___: Any) -> None:
        followed.append(request)

    def with_key(exchange: MemoryExchange) -> None:
        exchange.request.caller = "ada"

    forwarding = Forwarding(http=HeaderForwarding("^x-user-"))
    with served(chat, echo, forwarding=forwarding) as client:
        entry = client.app._entry
        monkeypatch.setattr(entry.traces, "follow", follow)
        monkeypatch.setattr(entry.trace_settings, "on", True)
        headers = {"x-user-id": "u", "x-request-timeout": "5"}
        for more in ({}, {"x-tenant-id": "t"}):
            exchange = client.begin("POST", path, body, {**headers, **more}, prepare=with_key)
            exchange.answered.result(TIMEOUT)
            assert exchange.status == 200
        assert client.call(lambda: entry.admission.in_flight) == 0
    assert [request.tenant for request in followed] == ["ada"] * requests + ["t"] * requests
    for request in followed:
        assert (request.parameters, request.timeout) == ({"x-user-id": "u"}, 5.0)
        assert request.priority == body.get("priority", request.priority)
