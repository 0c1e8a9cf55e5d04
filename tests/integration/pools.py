"""What the tests of pools share: callers that go on, and what they were answered."""

import http.client
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

APP = """
import os
import time
import wherry

@wherry.model(max_batch_size=8, isolation="thread")
def hello(name: list[str]) -> list[str]:
    return [f"{one} {os.getpid()}" for one in name]

@wherry.model(isolation="thread")
def slow(name: str) -> str:
    time.sleep(0.1)
    return name
"""


def hello(url: str, model: str = "hello") -> tuple[int, str]:
    """The status, and the text of the answer."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request("POST", f"/v2/models/{model}/generate", json.dumps({"name": "you"}))
        response = connection.getresponse()
        body = json.loads(response.read())
        return response.status, body.get("output") or body.get("error")
    finally:
        connection.close()


def owner_of(url: str) -> int:
    """The process that answers."""
    status, text = hello(url)
    assert status == 200, text
    return int(text.removeprefix("you "))


def owners(url: str, count: int) -> set[int]:
    """The processes that answer, once there are so many."""
    found: set[int] = set()
    while len(found) < count:
        found.add(owner_of(url))
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def callers(url: str, count: int, model: str = "hello") -> Iterator[Counter[tuple[int, str]]]:
    """So many callers, one request after the other each, until the block ends. Yields how often
    each status came, with the text of an error."""
    seen: Counter[tuple[int, str]] = Counter()
    ends = threading.Event()

    def call() -> None:
        while not ends.is_set():
            status, text = hello(url, model)
            seen[status, "" if status == 200 else text] += 1

    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        ends.set()
        for thread in threads:
            thread.join()
