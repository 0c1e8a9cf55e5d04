"""What do callers ask an engine, and what do they see: tokens, first tokens, gaps, CPU time?"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness import cpu_seconds

#: A token of a prompt, and its text: a word of its own, so that a text has as many tokens as words.
Word = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Engine:
    """A server that runs: `pid` is the root of its processes."""

    name: str
    url: str
    pid: int
    model: str
    #: It takes no token ids: prompts are sent as text.
    takes_text: bool = False
    #: What a request has beside the fields that all engines know.
    more: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: its prompt, and how many tokens are to be generated, exactly."""

    prompt: Sequence[Word]
    new_tokens: int

    def body(self, engine: Engine) -> dict[str, Any]:
        prompt: Any = [token for token, _ in self.prompt]
        if engine.takes_text:
            prompt = "".join(text for _, text in self.prompt)
        return {
            "model": engine.model, "prompt": prompt, "max_tokens": self.new_tokens,
            "temperature": 0, "stream": True, **dict(engine.more),
        }  # fmt: skip


@dataclass(slots=True)
class Run:
    """What one load gave on one engine; times in seconds."""

    tokens: int = 0
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    @property
    def tokens_per_cpu_second(self) -> float:
        return self.tokens / self.cpu_seconds


class EngineFailed(Exception):
    """An engine answered wrongly, late or not at all."""


class Asks:
    """Prompts without end: of `words`, never the same twice, their lengths those of `kind`.

    "equal": 59 tokens in, `new_tokens` out. "mixed": 20 to 400 in, an eighth to four times as many
    out. The lengths of a round are the same for every engine; the words are drawn anew each time,
    as a server may know those of yesterday.
    """

    def __init__(self, kind: str, words: Sequence[Word], new_tokens: int, number: int) -> None:
        self._kind, self._words, self._new = kind, words, new_tokens
        self._lengths = random.Random(f"{kind} {number}")

    def __next__(self) -> Ask:
        length, new = 59, self._new
        if self._kind == "mixed":
            length = self._lengths.randint(20, 400)
            new = self._lengths.randint(max(1, new // 8), 4 * new)
        return Ask(random.choices(self._words, k=length), new)


def measure(
    engine: Engine, asks: Asks, streams: int, *, at_least: float, token_timeout: float
) -> Run:
    """So many callers, each with its next request as soon as the last one is answered, until
    `at_least` seconds are over; what has begun is finished. EngineFailed after `token_timeout`
    seconds without a token, or with a wrong answer."""
    drawing, answers, failed = threading.Lock(), list[list[float]](), list[Exception]()
    run = Run()

    def draw() -> Ask:
        with drawing:
            made = next(asks)
            run.tokens += made.new_tokens
            return made

    def call() -> None:
        try:
            while not failed:
                answers.append(ask(engine, draw(), token_timeout))
                if time.perf_counter() - started >= at_least:
                    return
        except Exception as error:  # noqa: BLE001 - raised again by who has started this thread
            failed.append(error)

    threads = [threading.Thread(target=call, daemon=True) for _ in range(streams)]
    cpu, started = cpu_seconds(engine.pid), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.seconds, run.cpu_seconds = time.perf_counter() - started, cpu_seconds(engine.pid) - cpu
    if failed:
        raise EngineFailed(f"{type(failed[0]).__name__}: {failed[0]}") from failed[0]
    for came in answers:
        run.first.append(came[0])
        run.gaps += [later - earlier for earlier, later in pairwise(came)]
    return run


def ask(
    engine: Engine,
    wanted: Ask,
    token_timeout: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """One streamed answer: how long after the request each piece of text came."""
    connection = http.client.HTTPConnection(urlsplit(engine.url).netloc, timeout=token_timeout)
    came, tokens, started = list[float](), 0, clock()
    with ExitStack() as stack:
        stack.callback(connection.close)
        connection.request(
            "POST", "/v1/completions", json.dumps(wanted.body(engine)),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        response = stack.enter_context(connection.getresponse())
        if response.status != 200:
            raise EngineFailed(f"{response.status} {response.read()[:500]!r}")
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise EngineFailed(str(chunk["error"])[:500])
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
            if any(choice.get("text") for choice in chunk["choices"]):
                came.append(clock() - started)
    if tokens != wanted.new_tokens or not came:
        raise EngineFailed(f"{tokens} tokens instead of {wanted.new_tokens}")
    return came


def model_of(url: str, token_timeout: float = 60) -> str:
    """The first model that an engine lists."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=token_timeout)
    try:
        connection.request("GET", "/v1/models")
        name: str = json.loads(connection.getresponse().read())["data"][0]["id"]
    finally:
        connection.close()
    return name
