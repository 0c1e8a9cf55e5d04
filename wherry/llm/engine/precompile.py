"""Which oneDNN programs does a model need on a CPU, and how are they compiled before it is ready?

oneDNN compiles a program for each pair of weight shape and number of rows: some milliseconds and
0.6 MB for each; products of half precision have none. Without this step requests would stall now
and then, and memory would grow with each new number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time

import torch

from wherry.llm.engine.linear import Packed, rounded_rows
from wherry.llm.engine.model import Decoder

#: Limit of the compilation, in CPU seconds of the calling thread. For a large model the large
#: numbers of rows, which are rare, are compiled when they occur.
MOST_SECONDS = 5.0


@torch.inference_mode()
def compile_programs(
    network: Decoder,
    *,
    max_step_tokens: int,
    max_running: int,
    clock: Callable[[], float] = thread_time,
) -> None:
    """Multiply once for each weight shape and each number of rows that a step may have.

    Blocks for at most about MOST_SECONDS of CPU time.
    """
    ends_at = clock() + MOST_SECONDS
    layer, hidden = network.layers[0], network.embedding.shape[1]
    shape, like = network.shape, network.norm
    attended = shape.heads * shape.head_size
    products = [
        (layer.qkv, hidden, max_step_tokens),
        (layer.output, attended, max_step_tokens),
        (layer.gate_up, hidden, max_step_tokens),
        (layer.down, shape.feed_forward, max_step_tokens),
        (network.head, hidden, max_running),  # logits are computed for one token of a sequence
    ]
    packed = [(p, width, most) for p, width, most in products if isinstance(p, Packed)]
    rows = 1
    while packed and rows <= max_step_tokens and clock() < ends_at:
        for product, width, most in packed:
            if rows <= most:
                product(like.new_zeros(rows, width))
        rows = rounded_rows(rows) + 1
