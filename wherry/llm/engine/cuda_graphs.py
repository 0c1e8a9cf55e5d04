"""How does a decode step start with one call instead of thousands?

A CUDA graph is a recording of calls that is started as one. It reads and writes the same memory
each time, and its sizes are fixed. Attention reads lengths and blocks on the device, so the number
of sequences is the only size: a step is padded to the next recorded size, its numbers are copied to
where the recording reads them, and the logits of the padding are cut off. The table of blocks stays
on the device; a step sends only changes.

All sizes are recorded by `prepare`. One that cannot be recorded, for lack of memory or since it
waits for the device, is padded to a larger one or runs call by call, and is tried again later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from wherry.llm.engine.device import to_device
from wherry.llm.engine.step_inputs import with_chosen

log = logging.getLogger("wherry")

#: Steps until a size that could not be recorded is tried again; doubled at each failure.
RETRY_STEPS: Final = 256


class DecodeRow(NamedTuple):
    sequence: int
    token: int
    position: int
    #: The blocks of its context, the last for this token. The same list as long as only blocks
    #: are added to it.
    blocks: list[int]


#: Runs a recording again. Returns the tensor that holds the result, always the same one.
Replay = Callable[[], Tensor]


#: Makes a recording of what a function without arguments computes. Any exception: it cannot.
Record = Callable[[Callable[[], Tensor]], Replay]


@dataclass(slots=True)
class _Line:
    place: int
    blocks: list[int]
    #: How many of them are on the device.
    sent: int = 0


@dataclass(slots=True)
class _Failure:
    """Of a size that could not be recorded: steps until the next try, and between later ones."""

    left: int = 0
    after: int = RETRY_STEPS


class DecodeGraphs:
    def __init__(
        self,
        decode: Callable[[Tensor, Tensor], Tensor],
        record: Record,
        *,
        block_size: int,
        spare_block: int,
        most_blocks: int,
        device: torch.device,
    ) -> None:
        """`decode` computes logits [sequences, vocabulary] of numbers [4, sequences] (token,
        position, cache slot, line of the table) and the table of blocks, `most_blocks` for a
        sequence. Padding is sequences of one token in the `spare_block`."""
        self._decode = decode
        self._record = record
        self._size = block_size
        self._spare = spare_block
        self._width = most_blocks
        self._device = device
        self._sizes: list[int] = []
        self._made: dict[int, Replay] = {}
        self.failed: dict[int, _Failure] = {}
        self._lines: dict[int, _Line] = {}
        self._free: list[int] = []

    def prepare(self, most: int) -> None:
        """Record steps of up to `most` sequences. Blocks."""
        # Every place has a block that may be read; the last line is the padding's.
        shape = (most + 1, self._width)
        self._table = torch.full(shape, self._spare, dtype=torch.int32, device=self._device)
        self._free = list(range(most))
        self._padding = (0, 0, self._spare * self._size, most)
        self._numbers = torch.tensor([self._padding] * most).T.contiguous().to(self._device)
        self._sizes = [*sizes(most)]
        for size in reversed(self._sizes):  # the smaller ones use the memory of the largest
            self._recording(size)

    def run(self, rows: Sequence[DecodeRow], chosen: Tensor | None = None) -> Tensor | None:
        """The logits of these rows, to be read before the next step; None: there is no recording.
        Tokens below 0 are places in `chosen`."""
        for size in self._sizes:
            if size >= len(rows) and (replay := self._recording(size)) is not None:
                self._send(rows, size)
                if chosen is not None:
                    tokens = self._numbers[0, :size]
                    tokens.copy_(with_chosen(tokens, chosen))
                return replay()[: len(rows)]
        return None

    def _recording(self, size: int) -> Replay | None:
        if size not in self._made:
            failure = self.failed.setdefault(size, _Failure())
            if failure.left:
                failure.left -= 1
                return None
            numbers, table = self._numbers[:, :size], self._table
            try:
                self._made[size] = self._record(lambda: self._decode(numbers, table))
            except Exception as error:  # noqa: BLE001 - of any type: it runs without them
                failure.left, failure.after = failure.after, 2 * failure.after
                log.warning(
                    "no CUDA graph: decode steps of this size run call by call",
                    extra={
                        "sequences": size,
                        "steps_until_next_try": failure.left,
                        "reason": str(error).partition("\n")[0][:200],
                    },
                )
                return None
            del self.failed[size]
        return self._made[size]

    def _send(self, rows: Sequence[DecodeRow], size: int) -> None:
        """Write a step's numbers, and changes of the table, to where recordings read them."""
        numbers: list[int] = []
        places: list[int] = []
        blocks: list[int] = []
        lines = self._lines_of(rows)
        for row, line in zip(rows, lines, strict=True):
            slot = row.blocks[row.position // self._size] * self._size + row.position % self._size
            numbers += (row.token, row.position, slot, line.place)
            if line.sent < len(row.blocks):
                first = line.place * self._width
                places += range(first + line.sent, first + len(row.blocks))
                blocks += row.blocks[line.sent :]
                line.sent = len(row.blocks)
        numbers += self._padding * (size - len(rows))
        sent = to_device([numbers, places, blocks], self._device)
        self._numbers[:, :size].copy_(sent[0].view(size, 4).T)
        if places:
            self._table.view(-1).index_copy_(0, sent[1], sent[2].to(torch.int32))

    def _lines_of(self, rows: Sequence[DecodeRow]) -> list[_Line]:
        """The lines of these sequences. Other sequences keep theirs until there are too few."""
        lines = self._lines
        missing = sum([row.sequence not in lines for row in rows])
        if missing > len(self._free):
            here = {row.sequence for row in rows}
            for gone in [number for number in lines if number not in here]:
                self._free.append(lines.pop(gone).place)
        for row in rows:
            line = lines.get(row.sequence)
            if line is None:
                lines[row.sequence] = _Line(self._free.pop(), row.blocks)
            elif line.blocks is not row.blocks:  # it was preempted, and has new ones
                line.blocks, line.sent = row.blocks, 0
        return [lines[row.sequence] for row in rows]


def sizes(most: int) -> Iterator[int]:
    """Recorded numbers of sequences, up to `most`; at most 7 rows of a step are padding."""
    yield from (size for size in (1, 2, 4) if size < most)
    yield from range(8, most, 8)
    yield most


class CudaRecord:
    """Records CUDA graphs on one device. They share a memory, as only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        with torch.cuda.device(self._device):
            # First without recording, on another stream: libraries initialize in the first call.
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
