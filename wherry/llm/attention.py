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


@dataclass(slots=True)
class Span:
    """One sequence's rows in a step, and the place of its context in the cache."""

    #: Its rows among the step's tokens: from, how many.
    first_row: int
    rows: int
    #: Tokens of its context, these rows included.
    context: int
    #: Where in the cache the context lies: pieces of first token and length.
    pieces: list[tuple[int, int]]
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
    spans: Sequence[Span]


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
        shape = (kv_heads, tokens, head_size)
        # Not zeroed: memory is taken from the system when a block is first written.
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for _ in range(layers)]

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, step: StepInputs, window: int | None
    ) -> Tensor:
        """Store the step's keys and values, and attend: `[rows, heads * features]`."""
        keys, values = self.keys[layer], self.values[layer]
        keys.index_copy_(1, step.slots, k.transpose(0, 1))
        values.index_copy_(1, step.slots, v.transpose(0, 1))
        attended = [attend(span, q, keys, values, window) for span in step.spans]
        return attended[0] if len(attended) == 1 else torch.cat(attended)


def attend(span: Span, q: Tensor, keys: Tensor, values: Tensor, window: int | None) -> Tensor:
    """One sequence's rows over its own context."""
    kv_heads, _, size = keys.shape
    heads = q.shape[1]
    rows = q[span.first_row : span.first_row + span.rows]
    if span.rows == 1:
        # The query heads of one kv head are rows of the same product.
        k, v = _context(span, keys, values, window)
        out = F.scaled_dot_product_attention(rows.view(1, kv_heads, heads // kv_heads, size), k, v)
        return out.view(1, heads * size)
    k, v = _context(span, keys, values, None)
    from_start = span.rows == span.context and (window is None or window >= span.context)
    out = F.scaled_dot_product_attention(
        rows.transpose(0, 1)[None],
        k,
        v,
        attn_mask=None if from_start else span.mask(window, q.device),
        is_causal=from_start,
        enable_gqa=heads != kv_heads,
    )
    return out[0].transpose(0, 1).reshape(span.rows, heads * size)


def _context(span: Span, keys: Tensor, values: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
    """The keys and values of the context, the last `window` of them."""
    if len(span.pieces) == 1:
        start, length = span.pieces[0]
        k, v = keys[:, start : start + length], values[:, start : start + length]
    else:
        k = torch.cat([keys[:, start : start + length] for start, length in span.pieces], 1)
        v = torch.cat([values[:, start : start + length] for start, length in span.pieces], 1)
    if window is not None and span.context > window:
        k, v = k[:, -window:], v[:, -window:]
    return k[None], v[None]
