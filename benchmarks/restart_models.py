"""What the servers of benchmarks.restarts serve. `EXECUTED` names the file in which each execution
is a line, so that the clients can tell a request that was only refused from one that was lost."""

import os
import time
from collections.abc import Iterator

import wherry

executed = os.open(os.environ["EXECUTED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(*texts: str) -> None:
    os.write(executed, "".join(f"{text}\n" for text in texts).encode())


@wherry.model(max_batch_size=32)
def echo(text: list[str]) -> list[str]:
    note(*(t.partition(" ")[0] for t in text))
    time.sleep(0.002)
    return text


@wherry.model
def words(text: str, count: int) -> Iterator[str]:
    note(text)
    for _ in range(count):
        time.sleep(0.01)
        yield text


@wherry.model
def large(text: str, size: int) -> str:
    note(text)
    return text + size * "x"
