"""Models whose requests are steps of sequences, in threads and in worker processes."""

import os
import signal
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

import wherry
from wherry import FP32, INT32


class Adder(wherry.Model):
    """Adds up what each sequence sends, in a memory of its own."""

    max_batch_size = 4
    sequence = wherry.SequenceBatching(
        controls=(wherry.SequenceControl("start"), wherry.SequenceControl("id"))
    )

    def load(self, device: wherry.Device) -> None:
        self.sums: dict[str, int] = {}

    def execute(self, x: list[int], start: list[bool], id: list[str]) -> list[int]:
        if -9 in x:
            os.kill(os.getpid(), signal.SIGKILL)
        if -1 in x:
            raise ValueError("a bad row")
        for value, first, name in zip(x, start, id, strict=True):
            self.sums[name] = value + (0 if first else self.sums[name])
        return [self.sums[name] for name in id]


class Seen(NamedTuple):
    told: list[str]
    pid: list[int]


class ByRow(wherry.Model):
    """Says for each row what it is told of it, and who has the same row in the same instance."""

    max_batch_size = 3
    max_queue_delay = 0.0
    sequence: ClassVar[dict[str, Any]] = {
        "controls": [
            "start",
            "end",
            {"kind": "ready", "false": -1, "true": 1},
            {"kind": "id", "input": "corrid", "datatype": "UINT64"},
        ]
    }

    def load(self, device: wherry.Device) -> None:
        self.rows: list[str] = [""] * 3

    def execute(
        self,
        x: Annotated[np.ndarray, INT32[1]],
        start: Annotated[np.ndarray, FP32[1]],
        end: list[int],
        ready: Annotated[np.ndarray, INT32[1]],
        corrid: Annotated[np.ndarray, wherry.UINT64[1]],
    ) -> Seen:
        told = []
        for row in range(len(x)):
            if ready[row, 0] != 1:
                assert ready[row, 0] == -1
                told.append("not ready")
                continue
            if start[row, 0]:
                self.rows[row] = ""
            self.rows[row] += f"{corrid[row, 0]}:{x[row, 0]}" + ";" * int(end[row])
            told.append(self.rows[row])
        return Seen(told, [os.getpid()] * len(told))


class Totals(NamedTuple):
    total: Annotated[np.ndarray, FP32[2]]
    new_sum: Annotated[np.ndarray, FP32[2]]


class Stateless(wherry.Model):
    """Keeps nothing: its sums come back to it as a state."""

    max_batch_size = 4
    sequence = wherry.SequenceBatching(
        strategy="oldest",
        max_candidate_sequences=16,
        states=(
            wherry.SequenceState(
                "old_sum", "new_sum", initial=np.array([100, 0], np.float32).tobytes()
            ),
        ),
    )

    def execute(
        self,
        x: Annotated[np.ndarray, FP32[2]],
        old_sum: Annotated[np.ndarray, FP32[2]],
    ) -> Totals:
        return Totals(x + old_sum, x + old_sum)


class Grown(NamedTuple):
    length: list[int]
    grown: Annotated[np.ndarray, FP32[-1]]


class Growing(wherry.Model):
    """Its state gets longer with each step: only equally long ones share a batch."""

    max_batch_size = 4
    sequence = wherry.SequenceBatching(
        strategy="oldest",
        max_candidate_sequences=8,
        states=(wherry.SequenceState("past", "grown", shape=(0,)),),
    )

    def execute(
        self,
        x: Annotated[np.ndarray, FP32[1]],
        past: Annotated[np.ndarray, FP32[-1]],
    ) -> Grown:
        grown = np.concatenate([past, x], axis=1)
        return Grown([grown.shape[1]] * len(x), grown)
