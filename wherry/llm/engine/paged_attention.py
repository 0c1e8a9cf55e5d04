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

from wherry.llm.engine.padding import MOST_BYTES, Room
from wherry.llm.engine.step_inputs import PaddedBatch, Read, StepInputs

#: Padded lengths are multiples of this, which the fused kernels ask of a mask.
_EVEN: Final = 16
#: The part of a GPU's memory that a call may take for what it gathers: the KV cache leaves more.
_PART: Final = 64


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
    """The KV cache's tensors, and attention of padded batches over them."""

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
        # The block after it is never written to, and holds the zeros.
        self._zero = (self.spare_block + 1) * block_size
        shape = (layers, self._zero + block_size, kv_heads, head_size)
        #: One tensor for each layer.
        self.keys = torch.zeros(shape, dtype=dtype, device=device).unbind()
        self.values = torch.zeros(shape, dtype=dtype, device=device).unbind()

    def room(self, heads: int) -> Room:
        """The bytes that a call takes, for a network with `heads` query heads."""
        _, kv_heads, head_size = self.keys[0].shape
        bytes_each = self.keys[0].dtype.itemsize
        return Room(
            per_token=2 * kv_heads * head_size * bytes_each,
            per_pair=heads // kv_heads * bytes_each,
            most=_most_bytes(self.keys[0].device),
        )

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
        if (packed := step.packed) is not None:
            assert self.of_packed is not None
            if packed.slots is not None:
                k, v = keys.index_select(0, packed.slots), values.index_select(0, packed.slots)
            shown = (-1 if window is None else window - 1, 0)
            sizes = (packed.rows, packed.contexts, packed.most_rows, packed.longest)
            return self.of_packed(q, k, v, *sizes, window_size=shown, enable_gqa=True).flatten(1)
        padded = step.padded
        assert padded is not None
        attended = []
        for batch in padded.batches:
            if window not in batch.reads:
                group = q.shape[1] // keys.shape[1]
                batch.reads[window] = self._read(batch, step.positions, window, group)
            attended.append(_attend(q, keys, values, batch, batch.reads[window]))
        together = attended[0] if len(attended) == 1 else torch.cat(attended)
        return together if padded.places is None else together.index_select(0, padded.places)

    def _read(self, batch: PaddedBatch, positions: Tensor, window: int | None, group: int) -> Read:
        """What is read of the context, or of the tokens that the window shows to any row. The
        query heads of one kv head are rows of one product."""
        sequences, rows = batch.rows.shape
        length = batch.table.shape[1] * self._size
        if window is not None:
            length = min(length, window + rows - 1)
        length = -(-length // _EVEN) * _EVEN
        at = positions[batch.rows]  # [sequences, rows]
        last = at[:, -1:]
        columns = (last + 1 - length).clamp_(min=0) + torch.arange(length, device=at.device)
        block = torch.clamp(columns // self._size, max=batch.table.shape[1] - 1)
        slots = batch.table.gather(1, block) * self._size + columns % self._size
        slots = slots.masked_fill_(columns > last, self._zero)
        seen = columns[:, None] <= at[:, :, None]
        if window is not None:
            seen &= columns[:, None] > at[:, :, None] - window
        bias = torch.zeros(seen.shape, dtype=self.keys[0].dtype, device=at.device)
        bias = bias.masked_fill_(~seen, float("-inf"))[:, None, :, None]
        bias = bias.expand(sequences, 1, rows, group, length)
        return Read(slots.flatten(), bias.reshape(sequences, 1, rows * group, length))


def _attend(q: Tensor, keys: Tensor, values: Tensor, batch: PaddedBatch, read: Read) -> Tensor:
    """Attention of one batch. Returns [sequences * rows, heads * features]."""
    sequences, rows = batch.rows.shape
    heads, size = q.shape[1:]
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    grouped = q.index_select(0, batch.rows.flatten()).view(sequences, rows, kv_heads, group, size)
    grouped = grouped.transpose(1, 2).reshape(sequences, kv_heads, rows * group, size)
    k, v = (
        cache.index_select(0, read.slots).view(sequences, -1, kv_heads, size).transpose(1, 2)
        for cache in (keys, values)
    )
    out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=read.bias)
    out = out.reshape(sequences, kv_heads, rows, group, size).transpose(1, 2)
    return out.reshape(sequences * rows, heads * size)


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
