"""What the Ray tests serve. `GATE` names a file that the test locks, `NOTES` one that it reads."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import wherry


def note(line: str) -> None:
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(line + "\n")


class Held(wherry.Model):
    """Waits at the gate, then says how many rows came together."""

    max_batch_size = 32

    def execute(self, text: list[str]) -> list[int]:
        with open(os.environ["GATE"]) as gate:
            fcntl.flock(gate, fcntl.LOCK_SH)
        return [len(text)] * len(text)

    def unload(self) -> None:
        note("held is unloaded")


@wherry.model(max_batch_size=8)
def upper(text: list[str]) -> list[str]:
    if "bad" in text:
        raise ValueError("a bad row")
    return [t.upper() for t in text]


@wherry.model
def endless(text: str) -> Iterator[str]:
    try:
        while True:
            yield text
    finally:
        note("endless has ended")


@wherry.model
def parrot(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    for word in messages[-1]["content"].split():
        yield word + " "
