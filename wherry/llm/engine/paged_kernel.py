"""How do decode rows attend to keys and values in place, in the cache of a GPU?

Written in Triton, which comes with torch for CUDA. Each program takes one sequence, one head of
keys and one part of the context; a second kernel joins the parts. Lengths and blocks are read on
the device, so that one CUDA graph serves every context. TRITON_INTERPRET=1 runs it on a CPU.
"""

from __future__ import annotations

import os
from typing import Final

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

#: Programs that fill a GPU: twice the multiprocessors of an H100.
_PROGRAMS: Final = 2 * 132
#: The most parts of a context.
_SPLITS: Final = 32
#: Tokens that a program reads at a time.
_TOKENS: Final = 32
#: How far the kernel may be from attention in float32: one unit of bfloat16's last place.
_TOLERANCE: Final = 1 / 64
#: The interpreter multiplies bfloat16 wrongly, without an error.
_UPCAST: Final = os.environ.get("TRITON_INTERPRET") == "1"


@triton.jit
def attend_part(
    q, k, v, table, rows, positions, part, lse, scale,
    q_row, q_head, kv_token, kv_head, table_row,
    heads: tl.constexpr, group: tl.constexpr, GROUP: tl.constexpr,
    size: tl.constexpr, SIZE: tl.constexpr, block: tl.constexpr, TOKENS: tl.constexpr,
    window: tl.constexpr, upcast: tl.constexpr,
):  # fmt: skip
    """The mean of the values of one part, and the logarithm of its weight."""
    sequence, kv, split, splits = (
        tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(2),
    )  # fmt: skip
    length = (tl.load(positions + sequence) + 1).to(tl.int32)
    line = table + tl.load(rows + sequence) * table_row
    first = tl.maximum(length - window, 0) if window else 0
    each = tl.cdiv(tl.cdiv(length - first, splits), TOKENS) * TOKENS
    begin = first + split * each
    end = tl.minimum(begin + each, length)
    own, features = tl.arange(0, GROUP), tl.arange(0, SIZE)
    columns = tl.arange(0, TOKENS)
    has_row, has_feature = own[:, None] < group, features[None] < size
    query = tl.load(
        q + sequence * q_row + (kv * group + own)[:, None] * q_head + features[None],
        mask=has_row & has_feature, other=0.0,
    )  # fmt: skip
    if upcast:
        query = query.to(tl.float32)
    most = tl.full([GROUP], float("-inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    mean = tl.zeros([GROUP, SIZE], tl.float32)
    for start in range(begin, end, TOKENS):
        place = start + columns
        there = place < end
        page = tl.load(line + place // block, mask=there, other=0)
        slot = page.to(tl.int64) * block + place % block
        at = slot[:, None] * kv_token + kv * kv_head + features[None]
        keys = tl.load(k + at, mask=there[:, None] & has_feature, other=0.0)
        values = tl.load(v + at, mask=there[:, None] & has_feature, other=0.0)
        if upcast:
            keys, values = keys.to(tl.float32), values.to(tl.float32)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(there[None], scores, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        fade = tl.exp(most - higher)
        added = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        mean = mean * fade[:, None] + added
        total = total * fade + tl.sum(weights, 1)
        most = higher
    place = (sequence * heads + kv * group + own) * splits + split
    total = tl.maximum(total, 1.0)  # it is more, but 0 where a part of a short context is empty
    mean /= total[:, None]
    tl.store(
        part + place[:, None] * size + features[None], mean, mask=has_row & has_feature
    )  # fmt: skip
    tl.store(lse + place, most + tl.log(total), mask=own < group)


@triton.jit
def join_parts(
    part, lse, out, size: tl.constexpr, SIZE: tl.constexpr, SPLITS: tl.constexpr
):  # fmt: skip
    head, splits, features = tl.program_id(0), tl.arange(0, SPLITS), tl.arange(0, SIZE)
    each = tl.load(lse + head * SPLITS + splits)
    weights = tl.exp(each - tl.max(each, 0))
    at = (head * SPLITS + splits)[:, None] * size + features[None]
    parts = tl.load(part + at, mask=features[None] < size, other=0.0)
    joined = tl.sum(parts * weights[:, None], 0) / tl.sum(weights, 0)
    tl.store(
        out + head * size + features, joined.to(out.dtype.element_ty), mask=features < size
    )  # fmt: skip


def splits_for(programs: int) -> int:
    """Parts of each context, so that about as many programs run as the GPU holds: a power of 2."""
    splits = -(-_PROGRAMS // programs)
    return min(_SPLITS, 1 << (splits - 1).bit_length())


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    rows: Tensor,
    positions: Tensor,
    block_size: int,
    window: int | None,
) -> Tensor:
    """Attention of one row of each sequence: q [sequences, heads, features] at `positions`; keys
    and values [slots, kv heads, features], in the blocks that `table` [rows, blocks] has in these
    `rows`. Returns [sequences, heads, features]."""
    sequences, heads, size = q.shape
    kv_heads = keys.shape[1]
    group, splits = heads // kv_heads, splits_for(sequences * kv_heads)
    part = torch.empty(sequences, heads, splits, size, dtype=torch.float32, device=q.device)
    lse = torch.empty(sequences, heads, splits, dtype=torch.float32, device=q.device)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    padded = max(16, triton.next_power_of_2(size))  # the least that tensor cores multiply
    attend_part[(sequences, kv_heads, splits)](
        q, keys, values, table, rows, positions, part, lse, size**-0.5,
        q.stride(0), q.stride(1), keys.stride(0), keys.stride(1), table.stride(0),
        heads=heads, group=group, GROUP=max(16, triton.next_power_of_2(group)),
        size=size, SIZE=padded, block=block_size, TOKENS=_TOKENS,
        window=window or 0, upcast=_UPCAST, num_warps=4, num_stages=2,
    )  # fmt: skip
    join_parts[(sequences * heads,)](part, lse, out, size=size, SIZE=padded, SPLITS=splits)
    return out


def check(
    heads: int, kv_heads: int, size: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Compute a small case here and raise RuntimeError if it is not attention as torch computes it.
    Blocks. Any other exception, such as for lack of a C compiler: it cannot run."""
    dice = torch.Generator().manual_seed(1)
    q = torch.randn(2, heads, size, generator=dice).to(device, dtype)
    k, v = (torch.randn(4 * block_size, kv_heads, size, generator=dice) for _ in range(2))
    k, v = k.to(device, dtype), v.to(device, dtype)
    blocks, lengths = [[2, 0], [1, 3]], (block_size + 1, 1)
    table = torch.tensor(blocks, dtype=torch.int32, device=device)
    rows = torch.tensor([1, 0], device=device)
    found = attend(q, k, v, table, rows, torch.tensor(lengths, device=device) - 1, block_size, None)
    for one, own, length in zip(range(2), reversed(blocks), lengths, strict=True):
        slots = [block * block_size + n for block in own for n in range(block_size)][:length]
        row = q[one].float()[None, :, None]
        keys, values = (t[slots].float().transpose(0, 1)[None] for t in (k, v))
        expected = F.scaled_dot_product_attention(row, keys, values, enable_gqa=True)
        off = float((found[one].float() - expected[0, :, 0]).abs().max())
        if not off <= _TOLERANCE * max(1.0, float(expected.abs().max())):
            raise RuntimeError(f"paged attention is off by {off:.2g}")
