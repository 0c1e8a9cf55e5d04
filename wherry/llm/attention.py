"""How does each sequence's attention read its keys and values where they lie in the cache?

The cache keeps the tokens of one head side by side, `[layer][kv head, token, feature]`, so that
a sequence whose blocks are consecutive is a view: nothing is copied, padded or masked, and a
sequence pays for its own length only. One in several pieces is put together first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from wherry.llm.threads import Threads

#: Multiplications of one sequence's attention from which several threads are quicker than one; for
#: fewer, handing the work out takes longer. Some 450 tokens of context in SmolLM2-135M.
WORTH_THREADS = 1 << 18

#: A piece of a context: each layer's keys, and each layer's values.
Piece = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]


@dataclass(slots=True)
class Context:
    """One sequence's rows in a step, and the place of its context in the cache."""

    #: Its rows among the step's tokens: from, how many.
    first_row: int
    rows: int
    #: Tokens of its context, these rows included.
    context: int
    #: Where in the cache the context lies: pieces of first token and length.
    pieces: list[tuple[int, int]]
    #: The same as views of the cache, by how far a layer looks back.
    views: dict[int | None, list[Piece]] = field(default_factory=dict)
    _masks: dict[int | None, Tensor | None] = field(default_factory=dict)

    def mask(self, window: int | None, device: torch.device) -> Tensor | None:
        """Which of the context each row may see: True. Only for more rows than one."""
        if window not in self._masks:
            rows = torch.arange(self.context - self.rows, self.context, device=device)[:, None]
            columns = torch.arange(self.context, device=device)
            seen = columns <= rows
            if window is not None:
                seen &= columns > rows - window
            self._masks[window] = seen
        return self._masks[window]


@dataclass(slots=True)
class StepInputs:
    """The tokens of one step, packed: all sequences' rows after each other."""

    tokens: Tensor
    positions: Tensor
    #: Where in the cache each token's key and value go.
    slots: Tensor
    #: The rows whose logits are wanted.
    asked: Tensor
    spans: Sequence[Context]
    #: So many of them, the first ones, have one row each.
    decoding: int = field(init=False)

    def __post_init__(self) -> None:
        longer = (number for number, span in enumerate(self.spans) if span.rows > 1)
        self.decoding = next(longer, len(self.spans))


class Attention:
    """The cache's tensors, and the attention over them."""

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_size: int,
        tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, kv_heads, tokens, head_size)
        # Not zeroed: memory is taken from the system when a block is first written.
        self._every_key = torch.empty(shape, dtype=dtype, device=device)
        self._every_value = torch.empty(shape, dtype=dtype, device=device)
        #: Of each layer.
        self.keys = self._every_key.unbind()
        self.values = self._every_value.unbind()
        self._threads = Threads()

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, step: StepInputs, window: int | None
    ) -> Tensor:
        """Store the step's keys and values, and attend: `[rows, heads * features]`."""
        self.keys[layer].index_copy_(1, step.slots, k.transpose(0, 1))
        self.values[layer].index_copy_(1, step.slots, v.transpose(0, 1))
        attended = []
        if step.decoding:
            attended.append(self._decode(layer, q[: step.decoding], step.spans, window))
        prefilling = step.spans[step.decoding :]
        attended += [self._prefill(layer, q, span, window) for span in prefilling]
        return attended[0] if len(attended) == 1 else torch.cat(attended)

    def _decode(
        self, layer: int, q: Tensor, spans: Sequence[Context], window: int | None
    ) -> Tensor:
        """Sequences with one row each over their own contexts."""
        rows, heads, size = q.shape
        # The query heads of one kv head are rows of the same product.
        kv_heads = len(self.keys[layer])
        each = q.view(rows, 1, kv_heads, heads // kv_heads, size).unbind()
        attended = []
        try:
            for row, span in zip(each, spans, strict=False):
                # By its own length only: last bits depend on how threads split the work.
                self._threads.use(alone=span.context * heads * size < WORTH_THREADS)
                keys, values = self._context(layer, span, window)
                attended.append(F.scaled_dot_product_attention(row, keys, values))
        finally:
            self._threads.use()
        together = attended[0] if rows == 1 else torch.cat(attended)
        return together.view(rows, heads * size)

    def _prefill(self, layer: int, q: Tensor, span: Context, window: int | None) -> Tensor:
        """A part of one sequence over its context."""
        rows = q[span.first_row : span.first_row + span.rows]
        from_start = span.rows == span.context and (window is None or window >= span.context)
        out = F.scaled_dot_product_attention(
            rows.transpose(0, 1)[None],
            *self._context(layer, span, None),
            attn_mask=None if from_start else span.mask(window, q.device),
            is_causal=from_start,
            enable_gqa=q.shape[1] != len(self.keys[layer]),
        )
        return out[0].transpose(0, 1).reshape(span.rows, -1)

    def _context(self, layer: int, span: Context, window: int | None) -> tuple[Tensor, Tensor]:
        """The keys and values of the context, or of the last `window` tokens of it."""
        if window not in span.views:
            span.views[window] = self._views(span, window)
        views = span.views[window]
        if len(views) == 1:
            keys, values = views[0]
            return keys[layer], values[layer]
        return (
            torch.cat([keys[layer] for keys, _ in views], 2),
            torch.cat([values[layer] for _, values in views], 2),
        )

    def _views(self, span: Context, window: int | None) -> list[Piece]:
        """Where a context lies, in all layers: a thousand views are made at once in the time of
        ten that are made one by one."""
        skipped = 0 if window is None else max(0, span.context - window)
        views: list[Piece] = []
        for start, length in span.pieces:
            if skipped < length:
                place = slice(start + skipped, start + length)
                keys = self._every_key[:, None, :, place].unbind()
                values = self._every_value[:, None, :, place].unbind()
                views.append((keys, values))
            skipped = max(0, skipped - length)
        return views
