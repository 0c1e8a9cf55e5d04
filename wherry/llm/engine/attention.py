"""How does attention read each sequence's keys and values from the KV cache?

On a CPU each sequence attends by itself. The cache keeps the tokens of one head next to each other,
`[layer][kv head, token, feature]`. A sequence with consecutive blocks is a view: nothing is copied,
padded or masked, and its cost depends only on its own length. One in several pieces is concatenated
first.

Elsewhere, where starting a call takes longer than the work of one sequence, all attend in a few
calls, and nothing waits for the device. The cache keeps the heads of one token next to each other,
`[layer][token, kv head, feature]`. In decode a kernel reads keys and values in place
(paged_kernel.py). Prompts attend packed, one after the other, where torch has attention for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from wherry.llm.engine.linear import Threads
from wherry.llm.engine.model import Shape
from wherry.llm.engine.step_inputs import Context, Piece, StepInputs

#: Multiplications in one sequence's attention above which several threads are faster than one:
#: about 450 tokens of context in SmolLM2-135M.
WORTH_THREADS = 1 << 18


class Attention:
    """The KV cache's tensors on a CPU, and attention over them."""

    def __init__(self, shape: Shape, tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        sizes = (shape.layers, shape.kv_heads, tokens, shape.head_size)
        # Not zeroed: the system allocates memory when a block is first written.
        self._every_key = torch.empty(sizes, dtype=dtype, device=device)
        self._every_value = torch.empty(sizes, dtype=dtype, device=device)
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


#: Memory for what a call gathers: bytes, and on a large GPU this share of its memory; the KV cache
#: leaves more.
MOST_BYTES: Final = 1 << 28
_PART: Final = 64
#: Rows times tokens of context that a mask may have.
MOST_PAIRS: Final = 1 << 26


class PagedAttention:
    """The KV cache's tensors on another device, and attention of all sequences over them."""

    #: `paged_kernel.attend`: attends where a step has `tables`.
    in_place: Callable[..., Tensor] | None = None
    #: `varlen_attn` of torch: attends where a step is `packed`.
    of_packed: Callable[..., Tensor] | None = None

    def __init__(
        self,
        shape: Shape,
        tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        block_size: int,
    ) -> None:
        self._size = block_size
        #: A block of no sequence: padding writes to it.
        self.spare_block = -(-tokens // block_size)
        slots = (self.spare_block + 1) * block_size
        sizes = (shape.layers, slots, shape.kv_heads, shape.head_size)
        #: One tensor for each layer.
        self.keys = torch.zeros(sizes, dtype=dtype, device=device).unbind()
        self.values = torch.zeros(sizes, dtype=dtype, device=device).unbind()

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, step: StepInputs, window: int | None
    ) -> Tensor:
        """Write the step's keys and values into the cache and attend. Returns [rows, heads *
        features]."""
        keys, values = self.keys[layer], self.values[layer]
        keys.index_copy_(0, step.slots, k)
        values.index_copy_(0, step.slots, v)
        if (tables := step.tables) is not None:
            assert self.in_place is not None
            places = (tables.blocks, tables.lines, step.positions)
            return self.in_place(q, keys, values, *places, self._size, window).flatten(1)
        packed = step.packed
        assert packed is not None
        if self.of_packed is None or not packed.fits:
            slots = step.slots if packed.slots is None else packed.slots
            each = zip(
                torch.split(q, packed.row_counts),
                torch.split(slots, packed.context_lengths),
                strict=True,
            )
            return torch.cat([attend(rows, keys, values, own, window) for rows, own in each])
        if packed.slots is not None:
            k, v = keys.index_select(0, packed.slots), values.index_select(0, packed.slots)
        shown = (-1 if window is None else window - 1, 0)
        longest = max(packed.row_counts), max(packed.context_lengths)
        sizes = (packed.rows, packed.contexts, *longest)
        return self.of_packed(q, k, v, *sizes, window_size=shown, enable_gqa=True).flatten(1)

    @property
    def most_tokens(self) -> int:
        """The tokens whose keys and values may be copied for a call."""
        return _most_bytes(self.keys[0].device) // (2 * self.keys[0][0].nbytes)


def attend(q: Tensor, keys: Tensor, values: Tensor, slots: Tensor, window: int | None) -> Tensor:
    """Attention of one sequence's last rows over its context, which is in these slots. Returns
    [rows, heads * features]."""
    rows = len(q)
    if window is not None:
        slots = slots[-(window + rows - 1) :]
    context = len(slots)
    q = q.transpose(0, 1)[None]
    k, v = (cache.index_select(0, slots).transpose(0, 1)[None] for cache in (keys, values))
    if rows == 1 or (rows == context and (window is None or window >= rows)):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=rows > 1, enable_gqa=True)
        return out[0].transpose(0, 1).flatten(1)
    columns = torch.arange(context, device=q.device)
    pieces: list[Tensor] = []
    for some in torch.split(q, max(1, MOST_PAIRS // context), 2):
        first = context - rows + sum(piece.shape[2] for piece in pieces)
        at = columns[first : first + some.shape[2], None]
        seen = columns <= at
        if window is not None:
            seen &= columns > at - window
        pieces.append(F.scaled_dot_product_attention(some, k, v, attn_mask=seen, enable_gqa=True))
    return torch.cat(pieces, 2)[0].transpose(0, 1).flatten(1)


def varlen(
    heads: int, kv_heads: int, size: int, dtype: torch.dtype, device: torch.device
) -> Callable[..., Tensor]:
    """torch's attention of packed rows. Blocks; any exception: it does not run here, or differs
    from that of torch 2.13."""
    from torch.nn.attention import varlen as of_torch

    attend: Callable[..., Tensor] = of_torch.varlen_attn  # type: ignore[assignment]
    q = torch.randn(3, heads, size, dtype=dtype, device=device)
    k, v = torch.randn(2, 7, kv_heads, size, dtype=dtype, device=device)
    ends = torch.tensor([[0, 3], [0, 7]], dtype=torch.int32).to(device)
    found = attend(q, k, v, *ends, 3, 7, window_size=(-1, 0), enable_gqa=True)
    seen = torch.ones(3, 7, dtype=torch.bool, device=device).tril(4)
    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
    torch.testing.assert_close(found, expected[0].transpose(0, 1), atol=0.05, rtol=0.05)
    return attend


def _most_bytes(device: torch.device) -> int:
    """The memory that a call may take; a large GPU thus packs long contexts."""
    if device.type != "cuda":
        return MOST_BYTES
    return max(MOST_BYTES, torch.cuda.get_device_properties(device).total_memory // _PART)
