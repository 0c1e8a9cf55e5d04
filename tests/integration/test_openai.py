"""OpenAI's own client against plain models: a chat, a completion, vectors."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypedDict
from urllib.parse import urlsplit

import httpx
import numpy as np
import openai
import pytest

import wherry
from tests.ways import WAYS, served
from wherry.core.values.errors import PromptTooLong


class Delta(TypedDict):
    index: int
    text: str
    finish_reason: str
    usage: Mapping[str, int]


@wherry.model(max_batch_size=1)
def parrot(
    messages: Sequence[dict[str, Any]], parameters: Mapping[str, Any] | None = None
) -> Iterator[Delta]:
    """Says the last message again, word by word, as often as it is asked for."""
    words = messages[-1]["content"].split(" ")
    parameters = parameters or {}
    n, most = parameters.get("n", 1), parameters.get("max_tokens", 1000)
    if "crash" in words:
        raise ValueError("crashed")
    if "blame" in words:
        raise wherry.InvalidRequest("too many words", field="max_tokens")
    if "long" in words:
        raise PromptTooLong("this model's maximum context length is 3 tokens", field="prompt")
    for place, word in enumerate(words[:most]):
        if word == "break":
            raise ValueError("broke")
        if word == "surrogate":
            word = "\ud83d"
        if word == "large-surrogate":  # encoded beside the loop, where it crosses a link
            word = "\ud83d" + "x" * (2 << 20)
        last = place + 1 == min(len(words), most)
        reason = ("stop" if len(words) <= most else "length") if last else ""
        for index in range(n):
            done = last and index == n - 1
            usage = {"prompt_tokens": len(words), "completion_tokens": n * (place + 1)}
            yield {
                "index": index,
                "text": word if not place else f" {word}",
                "finish_reason": reason,
                "usage": usage if done else {},
            }


@wherry.model(max_batch_size=8)
def shout(prompt: list[str]) -> list[str]:
    return [text.upper() for text in prompt]


class Held:
    """A model that goes on when the test says so."""

    def __init__(self) -> None:
        self.may_go_on = threading.Semaphore(0)
        self.ended = threading.Event()


held = Held()


@wherry.model(max_batch_size=1)
def slow(prompt: str) -> Iterator[str]:
    try:
        for number in itertools.count():
            held.may_go_on.acquire()
            yield str(number)
    finally:
        held.ended.set()


@wherry.model(max_batch_size=4)
def embed(text: list[str]) -> Annotated[np.ndarray, wherry.FP32[3]]:
    return np.array([[len(one), 0.5, -1] for one in text], np.float32)


@wherry.model
def other(x: list[int]) -> list[int]:
    return x


@pytest.fixture(scope="module", params=WAYS)
def server(request: pytest.FixtureRequest) -> Iterator[wherry.Server]:
    with served(request.param, lambda: (parrot, shout, slow, embed, other)) as server:
        yield server


@pytest.fixture
def client(server: wherry.Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        yield client


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_models_that_can_answer_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["embed", "parrot", "shout", "slow"]
    assert client.models.retrieve("parrot").owned_by == "wherry"
    with pytest.raises(openai.NotFoundError, match="the model 'nobody' does not exist"):
        client.models.retrieve("nobody")


def test_a_chat_in_one_piece(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="parrot", messages=user("a b c"), n=2)
    assert [choice.message.content for choice in answer.choices] == ["a b c", "a b c"]
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "stop"]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (3, 9)


def test_the_id_of_an_answer_is_that_of_its_request(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "parrot", "messages": user("x")}
    for id, headers in ((None, {}), ("mine", {"X-Request-Id": "mine"})):
        answer = client.chat.completions.create(**asked, extra_headers=headers)
        assert answer.id == f"chatcmpl-{answer._request_id}"
        assert answer._request_id == (id or answer._request_id)
        streamed = client.chat.completions.with_raw_response.create(
            **asked, stream=True, extra_headers=headers
        )
        ids = {chunk.id for chunk in streamed.parse()}
        assert ids == {f"chatcmpl-{streamed.request_id}"}
    response = client.responses.create(model="parrot", input="x")
    assert response.id == f"resp_{response._request_id}"


def test_each_answer_has_an_id_that_clients_hand_on(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "parrot", "messages": user("x")}
    ids = {client.chat.completions.create(**asked)._request_id for _ in range(2)}
    with client.chat.completions.with_streaming_response.create(**asked, stream=True) as stream:
        ids.add(stream.request_id)
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**asked, extra_body={"temperature": "warm"})
    ids.add(error.value.request_id)
    assert len(ids - {None}) == 4
    raw = client.chat.completions.with_raw_response.create
    given = raw(**asked, extra_headers={"X-Request-Id": "mine"})
    assert given.headers.get_list("x-request-id") == ["mine"]


def test_a_chat_piece_by_piece_ends_with_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="parrot",
        messages=user("a b c"),
        max_tokens=2,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert texts == ["", "a", " b"]
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_stream_on_the_wire_is_events_that_end_with_done(server: wherry.Server) -> None:
    body = {"model": "parrot", "messages": user("hi"), "stream": True}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    first = json.loads(events[0].removeprefix("data: "))
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_a_plain_function_completes_several_prompts_in_batches(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="shout", prompt=["a", "b", "c"], echo=True)
    assert [choice.text for choice in answer.choices] == ["aA", "bB", "cC"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


def test_what_a_plain_function_cannot_do_is_refused_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature: the model 'shout' does not"):
        client.completions.create(model="shout", prompt="a", temperature=0.5)


def test_vectors_come_as_numbers_and_as_bytes(client: openai.OpenAI) -> None:
    texts = ["a", "bb", "ccc", "dddd", "eeeee"]
    answer = client.embeddings.create(model="embed", input=texts)  # the client asks for base64
    assert [one.embedding for one in answer.data] == [[n, 0.5, -1] for n in (1, 2, 3, 4, 5)]
    plain = client.embeddings.create(model="embed", input="a", encoding_format="float")
    assert plain.data[0].embedding == [1, 0.5, -1]
    raw = client.embeddings.with_raw_response.create(
        model="embed", input="a", encoding_format="base64"
    )
    packed = json.loads(raw.content)["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == [1, 0.5, -1]
    short = client.embeddings.create(model="embed", input="a", dimensions=2).data[0].embedding
    assert np.allclose(short, np.array([1, 0.5]) / np.sqrt(1.25))
    with pytest.raises(openai.BadRequestError, match="dimensions: the model 'embed' has 3"):
        client.embeddings.create(model="embed", input="a", dimensions=4)


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("chat/completions", {"model": "parrot", "messages": []}, 400, "messages"),
        ("chat/completions", {"model": "parrot"}, 400, "messages"),
        ("chat/completions", {"model": "other", "messages": user("x")}, 404, "model"),
        ("chat/completions", {"model": "nobody", "messages": user("x")}, 404, "model"),
        ("chat/completions", {"model": "parrot", "messages": user("x"), "n": "2"}, 400, "n"),
        ("completions", {"model": "parrot", "prompt": "x"}, 404, "model"),
        ("embeddings", {"model": "embed", "input": [1]}, 400, "input"),
    ],
)
def test_refusals_look_as_openais_clients_expect(
    server: wherry.Server, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    answer = httpx.post(f"{server.url}/v1/{path}", json=body, timeout=60)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert error["code"] == ("model_not_found" if status == 404 else None)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_route_of_openais_that_is_not_here_says_so(server: wherry.Server, method: str) -> None:
    answer = httpx.request(method, f"{server.url}/v1/audio/speech", timeout=60)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "unknown_url"
    assert "is not among the routes" in error["message"]


def test_what_the_model_blames_is_the_param_of_the_error(client: openai.OpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="too many words") as error:
            client.chat.completions.create(
                model="parrot",
                messages=user("blame"),
                max_completion_tokens=3,
                stream=stream,
            )
        assert error.value.param == "max_completion_tokens"


def test_a_prompt_that_is_too_long_has_the_code_that_clients_look_for(
    client: openai.OpenAI,
) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length") as error:
        client.chat.completions.create(model="parrot", messages=user("long"))
    assert (error.value.code, error.value.param) == ("context_length_exceeded", "messages")


def test_a_missing_key_is_refused_as_openai_does() -> None:
    with wherry.Server(shout, port=0, api_keys=["right"]) as server:
        url = f"{server.url}/v1"
        with (
            openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError) as error,
        ):
            client.models.list()
        assert error.value.type == "authentication_error"
        with openai.OpenAI(base_url=url, api_key="right") as client:
            assert [model.id for model in client.models.list()] == ["shout"]


def test_an_error_before_the_first_piece_has_its_own_status(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="crashed"):
        client.chat.completions.create(model="parrot", messages=user("crash"), stream=True)


def test_an_error_in_the_middle_is_the_last_event(client: openai.OpenAI) -> None:
    seen: list[str | None] = []
    stream = client.chat.completions.create(model="parrot", messages=user("a break"), stream=True)
    with pytest.raises(openai.APIError, match="broke"):
        seen.extend(chunk.choices[0].delta.content for chunk in stream)
    assert seen == ["", "a"]


@pytest.mark.parametrize("text", ["a surrogate", "a surrogate b", "a large-surrogate"])
def test_text_that_is_no_unicode_ends_its_stream_with_an_error(
    client: openai.OpenAI, text: str
) -> None:
    stream = client.chat.completions.create(model="parrot", messages=user(text), stream=True)
    # Where it crosses a link to a front, the owner cannot encode it either.
    with pytest.raises(openai.APIError, match=r"internal error|cannot be sent"):
        list(stream)
    answer = client.chat.completions.create(model="parrot", messages=user("a b"))
    assert answer.choices[0].message.content == "a b"


@pytest.mark.parametrize("cut", [0, 1, 20, -1])
def test_a_body_that_does_not_come_to_its_end_costs_nobody_anything(
    server: wherry.Server, client: openai.OpenAI, cut: int
) -> None:
    body = json.dumps({"model": "parrot", "messages": user("x"), "stream": True}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: [::1]\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head.encode() + body[:cut])
    answer = client.chat.completions.create(model="parrot", messages=user("still here"))
    assert answer.choices[0].message.content == "still here"


def test_a_client_that_leaves_ends_its_generation(client: openai.OpenAI) -> None:
    held.ended.clear()
    held.may_go_on.release(2)  # the status waits for the first piece
    stream = client.completions.create(model="slow", prompt="x", stream=True)
    assert next(stream).choices[0].text == "0"
    stream.close()
    while not held.ended.wait(0.01):  # its model never ends by itself: pytest-timeout ends a hang
        held.may_go_on.release()


def test_sixteen_streams_at_once_do_not_mix(server: wherry.Server) -> None:
    async def one(client: openai.AsyncOpenAI, number: int) -> str:
        stream = await client.chat.completions.create(
            model="parrot", messages=user(f"{number} " * 20), stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
            return await asyncio.gather(*(one(client, number) for number in range(16)))

    assert asyncio.run(main()) == [f"{number} " * 20 for number in range(16)]


# /v1/responses


def test_a_response_in_one_piece_and_event_by_event(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="parrot", input="a b c", max_output_tokens=2)
    assert (whole.output_text, whole.status) == ("a b", "incomplete")
    assert whole.usage is not None
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (3, 2)
    events = list(client.responses.create(model="parrot", input="a b c", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert deltas == ["a", " b", " c"]
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "a b c"
    with client.responses.stream(model="parrot", input="a b c") as stream:
        assert stream.get_final_response().output_text == "a b c"


def test_the_events_of_a_response_have_names_and_no_done(server: wherry.Server) -> None:
    body = {"model": "parrot", "input": "hi", "stream": True}
    answer = httpx.post(f"{server.url}/v1/responses", json=body, timeout=60)
    *events, rest = answer.text.split("\n\n")
    assert rest == ""
    for event in events:
        name, data = event.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]
    assert events[-1].startswith("event: response.completed")


def test_what_goes_wrong_with_a_response_is_raised(client: openai.OpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as error:
            client.responses.create(model="parrot", input="blame", stream=stream)
        assert error.value.param == "max_output_tokens"
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="shout", input="a", stream=stream)
    seen: list[str] = []
    events = client.responses.create(model="parrot", input="a break", stream=True)
    with pytest.raises(openai.APIError, match="broke"):
        seen.extend(event.type for event in events)
    assert seen[-1] == "response.output_text.delta"
