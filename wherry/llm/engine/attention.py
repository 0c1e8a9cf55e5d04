"""How does attention read each sequence's keys and values from the KV cache, on a CPU?

The cache keeps the tokens of one head next to each other, `[layer][kv head, token, feature]`. A
sequence with consecutive blocks is a view: nothing is copied, padded or masked, and its cost
depends only on its own length. A sequence in several pieces is concatenated first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from wherry.llm.engine.linear import Threads
from wherry.llm.engine.step_inputs import Context, Piece, StepInputs

#: Multiplications in one sequence's attention above which several threads are faster than one:
#: about 450 tokens of context in SmolLM2-135M.
WORTH_THREADS = 1 << 18


class Attention:
    """The KV cache's tensors, and attention over them."""

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
        # Not zeroed: the system allocates memory when a block is first written.
        self._every_key = torch.empty(shape, dtype=dtype, device=device)
        self._every_value = torch.empty(shape, dtype=dtype, device=device)
        #: One tensor for each layer.
        self.keys = self._every_key.unbind()
        self.values = self._every_value.unbind()
        self._threads = Threads()

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, step: StepInputs, window: int | None
    ) -> Tensor:
        """Write the step's keys and values into the cache and attend. Returns [rows, heads *
        features]."""
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
        """Attention of the sequences with one row each."""
        rows, heads, size = q.shape
        # Grouped-query attention: the query heads of one kv head are rows of one product.
        kv_heads = len(self.keys[layer])
        each = q.view(rows, 1, kv_heads, heads // kv_heads, size).unbind()
        attended = []
        try:
            for row, span in zip(each, spans, strict=False):
                # Decided by the sequence's own length alone: the number of threads changes the last
                # bits.
                self._threads.use(alone=span.context * heads * size < WORTH_THREADS)
                keys, values = self._context(layer, span, window)
                attended.append(F.scaled_dot_product_attention(row, keys, values))
        finally:
            self._threads.use()
        together = attended[0] if rows == 1 else torch.cat(attended)
        return together.view(rows, heads * size)

    def _prefill(self, layer: int, q: Tensor, span: Context, window: int | None) -> Tensor:
        """Attention of one sequence's chunk over its context."""
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
        """The keys and values of the context, or of its last `window` tokens."""
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
        """Views of a context in all layers. Made for all layers at once: `unbind` takes a hundredth
        of the time of single slices."""
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
