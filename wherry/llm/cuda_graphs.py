"""How does a decode step start with one call instead of some thousand?

A CUDA graph is a recording of calls that is started as one. It reads and writes the same memory
each time, and its sizes are fixed. So a step in which every sequence has one row is padded to one
of a few sizes, its numbers are copied to where the recording reads them, and the logits of the
padding are cut off. Whatever is not such a step, or would be padded to much more than it is, runs
call by call.

A recording is made when its size is first needed, or by `prepare`. A size that cannot be recorded,
for lack of memory or since it waits for the device, runs call by call and is tried again later.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

from wherry.llm.padding import SHORT_TOKENS, Room
from wherry.llm.step_tensors import pinned, wide

log = logging.getLogger("wherry")

#: Recordings kept at a time. They share one memory for what they compute; each takes some
#: megabytes for its calls.
MOST_RECORDINGS: Final = 32
#: The most by which padding may multiply the tokens of a step's context, unless it is short.
MOST_PADDING: Final = 4
SHORT_STEP: Final = 64 * SHORT_TOKENS
#: Steps of a size that could not be recorded until it is tried again; twice as many each time.
RETRY_STEPS: Final = 256


class DecodeRow(NamedTuple):
    """A sequence's row in a decode step."""

    token: int
    position: int
    #: The blocks of its context, the last for this token.
    blocks: list[int]


#: Starts a recording again. Returns the tensor that holds the result, always the same.
Replay = Callable[[], Tensor]


class Record(Protocol):
    """Makes a recording of what a function without arguments computes. Any exception: it cannot."""

    def __call__(self, compute: Callable[[], Tensor]) -> Replay: ...


class DecodeGraphs:
    """The recordings of one network's decode steps."""

    def __init__(
        self,
        decode: Callable[[Tensor], Tensor],
        record: Record,
        *,
        block_size: int,
        spare_block: int,
        room: Room,
        device: torch.device,
    ) -> None:
        """`decode` computes logits [sequences, vocabulary] of numbers [3 + blocks, sequences]:
        token, position, cache slot, and the table of blocks. Padding is sequences of one token in
        the `spare_block`."""
        self._decode = decode
        self._record = record
        self._size = block_size
        self._spare = spare_block
        self._room = room
        self._device = device
        #: By sequences and blocks, the least recently used first.
        self._made: OrderedDict[tuple[int, int], tuple[Tensor, Replay]] = OrderedDict()
        #: Of the sizes that could not be recorded: steps until the next try, and after it.
        self.failed: dict[tuple[int, int], tuple[int, int]] = {}

    def run(self, rows: Sequence[DecodeRow]) -> Tensor | None:
        """The logits of these rows, to be read before the next step; None: run it call by call."""
        size = self._padded(rows)
        if size is None:
            return None
        recording = self._recording(*size)
        if recording is None:
            return None
        numbers, replay = recording
        numbers.copy_(pinned(self._numbers(rows, *size), self._device), non_blocking=True)
        return replay()[: len(rows)]

    def prepare(self, sequences: Iterable[int]) -> None:
        """Record steps of these numbers of sequences with short contexts."""
        for count in sequences:
            self.run([DecodeRow(0, 0, [self._spare])] * count)

    def _padded(self, rows: Sequence[DecodeRow]) -> tuple[int, int] | None:
        """The size that a step is padded to: sequences, and blocks of each. None: too much."""
        longest = max(row.position for row in rows) + 1
        sequences, context = _power_of_two(len(rows)), max(SHORT_TOKENS, _power_of_two(longest))
        real = sum(row.position + 1 for row in rows)
        if sequences * context > max(SHORT_STEP, MOST_PADDING * real):
            return None
        if not self._room.holds(sequences, 1, context):
            return None
        return sequences, -(-context // self._size)

    def _recording(self, sequences: int, blocks: int) -> tuple[Tensor, Replay] | None:
        size = (sequences, blocks)
        if size not in self._made:
            left, after = self.failed.get(size, (0, RETRY_STEPS))
            if left:
                self.failed[size] = left - 1, after
                return None
            while len(self._made) >= MOST_RECORDINGS:
                self._made.popitem(last=False)
            numbers = self._numbers([], sequences, blocks).to(self._device)
            try:
                replay = self._record(lambda: self._decode(numbers))
            except Exception as error:  # noqa: BLE001 - of whatever kind: it runs without them
                log.warning(
                    "no CUDA graph: decode steps of this size run call by call",
                    extra={
                        "sequences": sequences,
                        "tokens": blocks * self._size,
                        "steps_until_next_try": after,
                        "reason": str(error).partition("\n")[0][:200],
                    },
                )
                self.failed[size] = after, 2 * after
                return None
            self.failed.pop(size, None)
            self._made[size] = numbers, replay
        self._made.move_to_end(size)
        return self._made[size]

    def _numbers(self, rows: Sequence[DecodeRow], sequences: int, blocks: int) -> Tensor:
        spare = [0, 0, self._spare * self._size, *wide([self._spare], blocks)]
        lines = [
            [
                row.token,
                row.position,
                row.blocks[row.position // self._size] * self._size + row.position % self._size,
                *wide(row.blocks, blocks),
            ]
            for row in rows
        ]
        return torch.tensor([*lines, *[spare] * (sequences - len(rows))]).T.contiguous()


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


class CudaRecord:
    """Records CUDA graphs on one device. They share a memory, as only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        with torch.cuda.device(self._device):
            # Once as usual, on another stream: libraries set themselves up in the first call.
            aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                compute()
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the device meanwhile, as when an adapter is read.
            with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
                result = compute()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay
