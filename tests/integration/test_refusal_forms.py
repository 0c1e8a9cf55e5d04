"""Does each protocol's client read why it was refused, whoever refuses it?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
import pytest

import wherry
from wherry.server.connections.limits import Limits

CHAT, MESSAGES, V2 = "/v1/chat/completions", "/v1/messages", "/v2/models/say/infer"
LIMITS = Limits(max_body_bytes=1000, max_header_bytes=2000)


@wherry.model(max_batch_size=1)
def say(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "yes"


@pytest.fixture(scope="module")
def server() -> Iterator[wherry.Server]:
    with wherry.Server(say, port=0, limits=LIMITS) as server:
        yield server


def assert_told(answer: httpx.Response, path: str, status: int, kinds: Mapping[str, str]) -> None:
    """The answer has the form of the path's protocol: OpenAI's, Anthropic's, or wherry's own."""
    told = answer.json()
    assert answer.status_code == status
    if path == V2:
        assert isinstance(told["error"], str)
        return
    assert told["error"]["type"] == kinds[path]
    assert told["error"]["message"]
    if path == CHAT:
        assert told["error"].keys() == {"message", "type", "param", "code"}
    else:
        assert told["type"] == "error"
        assert "request_id" in told


@pytest.mark.parametrize("path", [CHAT, MESSAGES, V2])
@pytest.mark.parametrize(
    ("status", "asked", "kinds"),
    [
        (405, {"method": "PATCH"}, dict.fromkeys((CHAT, MESSAGES), "invalid_request_error")),
        (
            413,
            {"method": "POST", "content": b"x" * 1001},
            {CHAT: "invalid_request_error", MESSAGES: "request_too_large"},
        ),
        (
            431,
            {"method": "POST", "headers": {"X-Long": "x" * 3000}},
            dict.fromkeys((CHAT, MESSAGES), "invalid_request_error"),
        ),
        (
            417,
            {"method": "POST", "headers": {"Expect": "a miracle"}},
            dict.fromkeys((CHAT, MESSAGES), "invalid_request_error"),
        ),
    ],
)
def test_what_the_server_refuses_before_the_route_has_the_form_of_its_protocol(
    server: wherry.Server, path: str, status: int, asked: dict[str, Any], kinds: dict[str, str]
) -> None:
    with httpx.Client(base_url=server.url) as client:
        assert_told(client.request(url=path, **asked), path, status, kinds)


def test_a_path_below_messages_that_is_not_there_is_refused_in_anthropics_form(
    server: wherry.Server,
) -> None:
    with httpx.Client(base_url=server.url) as client:
        for method in ("GET", "POST", "DELETE"):
            answer = client.request(method, f"{MESSAGES}/batches")
            assert_told(answer, MESSAGES, 404, {MESSAGES: "not_found_error"})
            answer = client.request(method, "/v1/responses/resp_1/else")
            assert_told(answer, CHAT, 404, {CHAT: "not_found_error"})


@pytest.mark.parametrize("path", [CHAT, MESSAGES, V2])
def test_inside_another_server_a_body_that_is_too_long_is_refused_in_the_same_form(
    path: str,
) -> None:
    async def main() -> httpx.Response:
        app = wherry.asgi(say, limits=LIMITS)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post(path, content=b"x" * 1001)

    kinds = {CHAT: "invalid_request_error", MESSAGES: "request_too_large"}
    assert_told(asyncio.run(main()), path, 413, kinds)
