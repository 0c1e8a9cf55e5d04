"""What the servers of test_server_life.py serve.

`GATE` names a file that the test locks: whoever comes to the gate waits until it is unlocked, in
a thread as in a worker process, and nobody sleeps.
"""

import fcntl
import os
from collections.abc import Iterator

import wherry


def pass_gate() -> None:
    with open(os.environ["GATE"]) as gate:
        fcntl.flock(gate, fcntl.LOCK_SH)


@wherry.model(max_batch_size=8, stall_timeout=0.2)
def hold(text: list[str]) -> list[str]:
    pass_gate()
    return [t.upper() for t in text]


@wherry.model(max_batch_size=8, examples=[{"text": "good"}])
def echo(text: list[str]) -> list[str]:
    return text


@wherry.model
def words(text: str, at_most: int = 10) -> Iterator[str]:
    yield from text.split()[:at_most]


@wherry.model(max_batch_size=8)
def pid(text: list[str]) -> list[int]:
    return [os.getpid()] * len(text)
