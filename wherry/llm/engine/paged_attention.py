"""How do all sequences of a step attend in a few calls?

For devices other than a CPU, where starting a call takes longer than the work of one sequence. In
decode a kernel reads keys and values where they lie (paged_kernel.py). Prompts attend packed, one
after the other, where torch has attention for that. Else keys and values are gathered from the
sequences' blocks into a padded batch, and attended to in one call. What is padded is read from a
place that holds zeros, and masked: what another sequence has left in the cache, be it no numbers at
all, is never multiplied.

The cache keeps the heads of one token next to each other, `[layer][token, kv head, feature]`.
Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from wherry.llm.engine.step_inputs import StepInputs

#: Memory that a call may take for what it gathers: bytes, and on a large GPU this part of it; the
#: KV cache leaves more.
MOST_BYTES: Final = 1 << 28
_PART: Final = 64
#: Rows times tokens of context that a mask may have.
MOST_PAIRS: Final = 1 << 26


class AttendInPlace(Protocol):
    """Attention of one row of each sequence, as `paged_kernel.attend` computes it."""

    def __call__(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        table: Tensor,
        rows: Tensor,
        positions: Tensor,
        block_size: int,
        window: int | None,
    ) -> Tensor: ...


class PagedAttention:
    """The KV cache's tensors, and attention of all sequences over them."""

    #: Attends where a step has `tables`.
    in_place: AttendInPlace | None = None
    #: `varlen_attn` of torch: attends where a step is `packed`.
    of_packed: Callable[..., Tensor] | None = None

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_size: int,
        tokens: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._size = block_size
        #: A block that no sequence has: padded sequences write to it.
        self.spare_block = -(-tokens // block_size)
        shape = (layers, (self.spare_block + 1) * block_size, kv_heads, head_size)
        #: One tensor for each layer.
        self.keys = torch.zeros(shape, dtype=dtype, device=device).unbind()
        self.values = torch.zeros(shape, dtype=dtype, device=device).unbind()

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
    """Attention of one sequence's last rows over its context, which lies in these slots. Returns
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
    """torch's attention of packed rows. Blocks; any exception: it does not run here, or is another
    than in torch 2.13."""
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
    """The memory that a call may take: on a large GPU long contexts are packed, then."""
    if device.type != "cuda":
        return MOST_BYTES
    return max(MOST_BYTES, torch.cuda.get_device_properties(device).total_memory // _PART)
