"""How do the chunks of a step become tensors?

On a device other than the CPU all numbers of a step cross together: a copy takes longer to start
than to run, and one out of ordinary memory waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from wherry.llm.engine.scheduler import Chunk
from wherry.llm.engine.step_inputs import Context, PackedRows, StepInputs


@dataclass(slots=True)
class StepRows:
    """The rows of a step: those of all sequences one after the other."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    #: The cache slot of each one's key and value.
    slots: list[int] = field(default_factory=list)
    #: The rows whose logits are requested.
    logits: list[int] = field(default_factory=list)
    #: The rows of each adapter's sequences, by its key.
    adapters: dict[str, list[int]] = field(default_factory=dict)
    #: The first row of each chunk.
    first: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, chunks: Iterable[Chunk], block_size: int) -> StepRows:
        made = cls()
        for chunk in chunks:
            made._add(chunk, block_size)
        return made

    def _add(self, chunk: Chunk, size: int) -> None:
        sequence, stop = chunk.sequence, chunk.start + chunk.count
        blocks, first = sequence.table.blocks, len(self.tokens)
        self.first.append(first)
        if sequence.adapter:
            self.adapters.setdefault(sequence.adapter, []).extend(range(first, first + chunk.count))
        self.tokens += sequence.tokens[chunk.start : stop]
        self.positions += range(chunk.start, stop)
        self.slots += [blocks[p // size] * size + p % size for p in range(chunk.start, stop)]
        self.logits += range(len(self.tokens) - chunk.logits, len(self.tokens))


def inputs_of_views(chunks: Sequence[Chunk], block_size: int) -> StepInputs:
    """A step whose sequences attend one by one, on the CPU."""
    rows = StepRows.of(chunks, block_size)
    spans = []
    for first, chunk in zip(rows.first, chunks, strict=True):
        stop = chunk.start + chunk.count
        pieces = _pieces(chunk.sequence.table.extents, block_size, stop)
        spans.append(Context(first, chunk.count, stop, pieces))
    packed = torch.tensor([rows.tokens, rows.positions, rows.slots])
    logit_rows = torch.tensor(rows.logits, dtype=torch.long)
    adapters = {key: torch.tensor(own) for key, own in rows.adapters.items()}
    return StepInputs(packed[0], packed[1], packed[2], logit_rows, spans, adapters)


def packed_inputs(
    chunks: Sequence[Chunk], block_size: int, most_tokens: int, device: torch.device
) -> StepInputs:
    """A step whose sequences attend in one call without padding; one by one if their contexts have
    more than `most_tokens`. Does not wait for the device."""
    counts = [chunk.count for chunk in chunks]
    contexts = [chunk.start + chunk.count for chunk in chunks]
    total, own = sum(contexts), counts == contexts
    rows = StepRows.of(chunks, block_size)
    blocks = [
        chunk.sequence.table.blocks[: -(-n // block_size)]
        for chunk, n in zip(chunks, contexts, strict=True)
    ]
    lists = [rows.tokens, rows.positions, rows.slots, rows.logits]
    lists += [[0, *accumulate(counts)], [0, *accumulate(contexts)]]
    lists += [[0, *accumulate(map(len, blocks))], contexts, [*chain.from_iterable(blocks)]]
    tokens, positions, slots, logit_rows, begin, reads, firsts, lengths, table, *adapters = (
        to_device([*lists, *rows.adapters.values()], device)
    )
    read = None
    if not own:
        line = torch.arange(len(chunks), device=device)
        line = line.repeat_interleave(lengths, output_size=total)
        place = torch.arange(total, device=device) - reads[line]
        read = table[firsts[line] + place // block_size] * block_size + place % block_size
    fits = own or total <= most_tokens
    packed = PackedRows(begin.int(), reads.int(), counts, contexts, read, fits)
    keys = dict(zip(rows.adapters, adapters, strict=True))
    return StepInputs(tokens, positions, slots, logit_rows, adapters=keys, packed=packed)


def to_device(lists: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, ...]:
    """A tensor of each list, in one copy that does not wait for the device."""
    packed = on_device(list(chain.from_iterable(lists)), device)
    return torch.split(packed, [len(one) for one in lists])


def on_device(
    numbers: Sequence[Any] | npt.NDArray[Any],
    device: torch.device,
    dtype: torch.dtype = torch.long,
) -> Tensor:
    """A tensor of these numbers, in a copy that does not wait for the device: `torch.tensor` with a
    `device` waits until all is computed there."""
    return pinned(torch.tensor(numbers, dtype=dtype), device).to(device, non_blocking=True)


def with_chosen(tokens: Tensor, chosen: Tensor) -> Tensor:
    """Tokens of which those below 0 are on the device alone: ~token is the place in `chosen`."""
    return torch.where(tokens < 0, chosen.index_select(0, (~tokens).clamp_(min=0)), tokens)


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU in memory that a GPU reads by itself, if the device is one."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


def _pieces(extents: list[tuple[int, int]], size: int, tokens: int) -> list[tuple[int, int]]:
    """The places of a sequence's first `tokens` tokens in the cache, as (first token, length), from
    its runs of blocks."""
    pieces: list[tuple[int, int]] = []
    for block, count in extents:
        length = min(tokens, count * size)
        if length > 0:
            pieces.append((block * size, length))
        tokens -= length
    return pieces
