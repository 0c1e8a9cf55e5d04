"""How do the scheduler's chunks become the input of a network: tokens, and where each attends?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Protocol

import torch
from torch import Tensor

from wherry.llm.engine.device import to_device
from wherry.llm.engine.scheduler import Chunk

#: The keys of each layer, and the values of each layer, of one piece of a context.
Piece = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]


@dataclass(slots=True)
class Context:
    #: Its rows among the step's tokens: the first, and how many.
    first_row: int
    rows: int
    #: Length of its context in tokens, including these rows.
    context: int
    #: Its places in the cache: (first token, length).
    pieces: list[tuple[int, int]]
    #: Views of `pieces`, by the layers' window.
    views: dict[int | None, list[Piece]] = field(default_factory=dict)
    _masks: dict[int | None, Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, device: torch.device) -> Tensor:
        """Which context positions each row attends to: booleans [rows, context]."""
        if window not in self._masks:
            rows = torch.arange(self.context - self.rows, self.context, device=device)[:, None]
            columns = torch.arange(self.context, device=device)
            seen = columns <= rows
            if window is not None:
                seen &= columns > rows - window
            self._masks[window] = seen
        return self._masks[window]


@dataclass(frozen=True, slots=True)
class Tables:
    """Where the rows of a decode step attend, all of it on the device."""

    #: The blocks of each line, [lines, blocks], int32; after its end any block may follow.
    blocks: Tensor
    #: The line of each row.
    lines: Tensor


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Where the rows of a step attend, one sequence after the other, all of it on the device."""

    #: The start of each sequence's rows, and of its context, then the end of the last; int32.
    rows: Tensor
    contexts: Tensor
    #: The number of each sequence's rows, and the length of its context.
    row_counts: list[int]
    context_lengths: list[int]
    #: Places of the contexts in the cache; None: they are the step's own rows.
    slots: Tensor | None
    #: Whether there is room for a copy of all contexts at once.
    fits: bool


@dataclass(slots=True)
class StepInputs:
    """The tokens of one step, packed: the rows of all sequences one after the other."""

    tokens: Tensor
    positions: Tensor
    #: The cache slot of each token's key and value.
    slots: Tensor
    #: The rows whose logits are requested.
    logit_rows: Tensor
    #: Where each sequence attends; on a GPU that is in `packed` or, for a decode step, `tables`.
    spans: Sequence[Context] = ()
    #: The rows of each adapter's sequences, by its key.
    adapters: Mapping[str, Tensor] = field(default_factory=dict)
    tables: Tables | None = None
    packed: PackedRows | None = None
    #: Number of leading sequences with exactly one row (decode).
    decoding: int = field(init=False)

    def __post_init__(self) -> None:
        longer = (number for number, span in enumerate(self.spans) if span.rows > 1)
        self.decoding = next(longer, len(self.spans))


class Attends(Protocol):
    """A KV cache's tensors, and attention over them."""

    #: One tensor for each layer.
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, step: StepInputs, window: int | None
    ) -> Tensor:
        """Write the step's keys and values, [rows, heads, features], into the cache and attend.
        Returns [rows, heads * features]."""


@dataclass(slots=True)
class StepRows:
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


def with_chosen(tokens: Tensor, chosen: Tensor) -> Tensor:
    """Tokens, with those below 0 replaced: they are only on the device, at ~token in `chosen`."""
    return torch.where(tokens < 0, chosen.index_select(0, (~tokens).clamp_(min=0)), tokens)


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
