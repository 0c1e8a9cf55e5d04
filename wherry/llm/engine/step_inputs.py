"""What does a network get for one step: its tokens, and where each sequence attends?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

#: The keys of each layer, and the values of each layer, of one piece of a context.
Piece = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]


@dataclass(slots=True)
class Context:
    """One sequence's rows in a step, and its places in the KV cache."""

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

    #: The blocks of each line, [lines, blocks], int32; after the end any block may stand.
    blocks: Tensor
    #: The line of each row.
    lines: Tensor


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Where the rows of a step attend, one sequence after the other, all of it on the device."""

    #: Where each sequence's rows begin, and its context, and both end; int32.
    rows: Tensor
    contexts: Tensor
    #: How many there are of each.
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
    #: Where each sequence attends; on a GPU `packed` says it or, of a decode step, `tables`.
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
