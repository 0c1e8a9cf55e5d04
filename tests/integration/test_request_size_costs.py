"""Does a request cost more than its size, on any route?

A row of the table is a route and a request to it: many small parts beside one large one, or many
small ones alone. What a client multiplies (rows, parameters, outputs) is not to multiply the
server's memory, its CPU, or how long others wait.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hostile import (
    MIB,
    Send,
    WatchedServer,
    assert_costs_its_size,
    multipart,
    post,
    watched_server,
)
from wherry.frontends.connections.full_memory import memory_plan
from wherry.observability.machine import Machine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc"),
]

#: Of each request; the smallest body of which all bounds are reached.
BODY = 4 * MIB
QUEUE = 64 * MIB
BOUND = memory_plan(
    Machine().memory_limit_bytes(),
    connections=16,
    body_bytes=BODY + 4096,
    queue_bytes=QUEUE,
    received_bytes=8 * MIB,
    unsent_bytes=8 * MIB,
).full_bytes
OPTIONS = {
    "max-connections": 16,
    "max-body-size": BODY + 4096,
    "max-queue-bytes": QUEUE,
    "max-received-bytes": 8 * MIB,
    "max-unsent-bytes": 8 * MIB,
}
MODELS = """
from typing import Annotated, Any

import numpy as np
import wherry

Row = Annotated[np.ndarray, wherry.FP32[-1]]

@wherry.model(max_batch_size=8, route="/files")
def files(file: list[bytes], name: list[str]) -> list[int]:
    return [len(one) + len(other) for one, other in zip(file, name)]

@wherry.model(max_batch_size=8, route="/objects")
def objects(row: list[dict[str, Any]], name: list[str]) -> list[int]:
    return [len(one) + len(other) for one, other in zip(row, name)]

@wherry.model(max_batch_size=8, route="/numbers")
def numbers(x: Row, name: list[str]) -> list[int]:
    return [len(one) + len(other) for one, other in zip(x, name)]

@wherry.model(max_batch_size=8, route="/lists")
def lists(words: list[list[str]], name: list[str]) -> list[int]:
    return [len(one) + len(other) for one, other in zip(words, name)]
"""

FORM_PARTS = 500


def form(path: str, field: str, value: Callable[[int], bytes]) -> Callable[[int], Send]:
    """One large field beside many small ones, for each of which it stands."""

    def make(nbytes: int) -> Send:
        parts = min(FORM_PARTS, nbytes // 256)
        large = value(nbytes - parts * 128)
        body, content_type = multipart([(field, large), *[("name", b"x")] * parts])
        return post(path, body, {"Content-Type": content_type})

    return make


def json_of(text: str) -> Callable[[int], bytes]:
    """A JSON array of as many equal elements as fit."""
    return lambda nbytes: b"[%b]" % b",".join([text.encode()] * (nbytes // (len(text) + 1)))


def object_of(nbytes: int) -> bytes:
    return json.dumps({f"k{i:06}": i for i in range(nbytes // 20)}).encode()


ROUTES: dict[str, Callable[[int], Send]] = {
    "a file beside many texts, at a route": form("/files", "file", bytes),
    "a file beside many texts, generate": form("/v2/models/files/generate", "file", bytes),
    "an object beside many texts, at a route": form("/objects", "row", object_of),
    "an object beside many texts, generate": form("/v2/models/objects/generate", "row", object_of),
    "an array beside many texts": form("/numbers", "x", json_of("1")),
    "a list beside many texts": form("/lists", "words", json_of('"a"')),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedServer]:
    folder: Path = tmp_path_factory.mktemp("models")
    (folder / "models.py").write_text(MODELS)
    options = [f"--{name}={value}" for name, value in OPTIONS.items()]
    with watched_server("models.py", *options, cwd=str(folder)) as started:
        yield started


@pytest.mark.parametrize("route", ROUTES)
def test_a_request_costs_no_more_than_its_size(server: WatchedServer, route: str) -> None:
    assert_costs_its_size(server, ROUTES[route], BODY, BOUND)
