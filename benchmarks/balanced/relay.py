"""Carries packets between pairs of TUN devices: late, few, slow, or none.

    python -m benchmarks.balanced.relay FD:FD...

A line of JSON on stdin says how the wire of this number is from now on.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

#: Seconds of a packet in the queue of a slow wire; one that would wait for longer is lost.
LONGEST_QUEUE: Final = 0.1


@dataclass
class Way:
    """One direction of a wire."""

    to: int
    delay: float = 0.0
    loss: float = 0.0
    bits_per_second: float = 0.0
    up: bool = True
    free_at: float = 0.0
    on_the_way: deque[tuple[float, bytes]] = field(default_factory=deque)

    def take(self, packet: bytes, now: float) -> None:
        if not self.up or random.random() < self.loss:
            return
        self.free_at = max(now, self.free_at)
        if self.free_at - now > LONGEST_QUEUE:
            return
        if self.bits_per_second:
            self.free_at += 8 * len(packet) / self.bits_per_second
        self.on_the_way.append((self.free_at + self.delay, packet))

    def deliver(self, now: float) -> None:
        while self.on_the_way and self.on_the_way[0][0] <= now:
            with suppress(OSError):  # the machine is gone
                os.write(self.to, self.on_the_way.popleft()[1])


def main(wires: list[tuple[int, int]]) -> None:
    ways = {here: Way(there) for a, b in wires for here, there in ((a, b), (b, a))}
    poll = select.poll()
    for fd in (*ways, sys.stdin.fileno()):
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    while True:
        dues = [way.on_the_way[0][0] for way in ways.values() if way.on_the_way]
        timeout = max(0.0, min(dues) - time.monotonic()) * 1000 if dues else None
        for fd, _ in poll.poll(timeout):
            if fd in ways:
                with suppress(BlockingIOError):
                    while True:
                        ways[fd].take(os.read(fd, 65536), time.monotonic())
            elif not (said := os.read(fd, 65536)):
                return
            else:
                for line in said.splitlines():
                    change(json.loads(line), wires, ways)
        for way in ways.values():
            way.deliver(time.monotonic())


def change(said: dict[str, Any], wires: list[tuple[int, int]], ways: dict[int, Way]) -> None:
    for fd in wires[said.pop("wire")]:
        for name, value in said.items():
            setattr(ways[fd], name, value)


if __name__ == "__main__":
    main([(int(a), int(b)) for a, b in (pair.split(":") for pair in sys.argv[1:])])
