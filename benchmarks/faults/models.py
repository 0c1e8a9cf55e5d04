"""What the servers of benchmarks.faults serve. Each answer tells which request it is for, and each
run of a request is a line in the file that `FAULTS_RUNS` names."""

import os
import time
from collections.abc import Iterator

import wherry

runs = os.open(os.environ["FAULTS_RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(numbers: list[int]) -> None:
    os.write(runs, "".join(f"{number}\n" for number in numbers).encode())


@wherry.model(max_batch_size=16, isolation="thread")
def quick(number: list[int]) -> list[int]:
    note(number)
    time.sleep(0.002)
    return number


@wherry.model(max_batch_size=16, isolation="process")
def apart(number: list[int]) -> list[int]:
    """In a worker process."""
    note(number)
    time.sleep(0.002)
    return number


@wherry.model(max_batch_size=4, isolation="thread")
def slow(number: list[int]) -> list[int]:
    note(number)
    time.sleep(0.3)
    return number


@wherry.model(isolation="thread", instances=8)
def words(number: int, count: int) -> Iterator[int]:
    note([number])
    for _ in range(count):
        time.sleep(0.02)
        yield number


class Total(wherry.Model):
    """The sum of a sequence's numbers."""

    max_batch_size = 16
    sequence = wherry.SequenceBatching(
        max_sequence_idle=30.0,
        controls=(wherry.SequenceControl("start"), wherry.SequenceControl("id")),
    )

    def load(self, device: wherry.Device) -> None:
        self.sums: dict[str, int] = {}

    def execute(self, number: list[int], start: list[bool], id: list[str]) -> list[int]:
        note(number)
        for one, first, name in zip(number, start, id, strict=True):
            self.sums[name] = one + (0 if first else self.sums[name])
        return [self.sums[name] for name in id]
