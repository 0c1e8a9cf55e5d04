"""The models of benchmarks.many_models, in a file of their own: each worker imports it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import wherry

COUNT, FIT = 8, 3
#: Responses of a stream, and seconds between them.
LENGTH, PAUSE = 20, 0.01
#: Of each model, as the budget has it, in bytes of a device that holds FIT of them.
MEMORY = 1 << 30


class Plain(wherry.Model):
    max_batch_size = 8
    memory = MEMORY
    number = 0

    def load(self, device: wherry.Device) -> None:
        folder = Path(os.environ["MANY_MODELS"])  # for who kills workers
        (folder / self.name).write_text(str(os.getpid()))
        time.sleep(0.1 + 0.07 * self.number)

    def to_host(self) -> bool:
        return True

    def to_device(self, device: wherry.Device) -> None:
        time.sleep(0.05)

    def execute(self, x: list[int]) -> list[int]:
        time.sleep(0.002)
        return [value * COUNT + self.number for value in x]


#: Two of them share a process, and two rest instead of being unloaded; one of these does both.
SETTINGS: dict[int, dict[str, Any]] = {
    1: {"offload": True},
    2: {"isolation": "shared"},
    4: {"isolation": "shared", "offload": True},
}
m0, m1, m2, m3, m4, m5, m6 = (
    type(
        f"m{number}",
        (Plain,),
        {"name": f"m{number}", "number": number, "__module__": __name__} | SETTINGS.get(number, {}),
    )
    for number in range(COUNT - 1)
)


@wherry.model(memory=MEMORY)
def streamed(x: int) -> Iterator[int]:
    for place in range(LENGTH):
        time.sleep(PAUSE)
        yield x + place
