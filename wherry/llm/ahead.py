"""What would the first steps of a model on a CPU wait for, and can it be done before they come?

oneDNN compiles a program for each number of rows that a product meets: some milliseconds and 0.6 MB
for each of a model's four or five shapes of weights. Unless that is done at the start, answers
stall for it now and then, and memory grows for as long as new numbers turn up.
"""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time

import torch
from torch import Tensor

from wherry.llm.linear import Linear
from wherry.llm.model import Decoder

#: CPU time of the calling thread. The large numbers of rows of a large model are left to be met:
#: they are rare.
MOST_SECONDS = 5.0


@torch.inference_mode()
def compile_programs(
    network: Decoder,
    *,
    max_step_tokens: int,
    max_running: int,
    clock: Callable[[], float] = thread_time,
) -> None:
    """Multiply once with each shape of weight, by every number of rows that steps may have."""
    ends_at = clock() + MOST_SECONDS
    layer, hidden = network.layers[0], network.embedding.shape[1]
    shape = network.shape
    products = [
        (layer.qkv, hidden, max_step_tokens),
        (layer.output, shape.heads * shape.head_size, max_step_tokens),
        (layer.gate_up, hidden, max_step_tokens),
        (layer.down, layer.gate_up(network.embedding[:1]).shape[1] // 2, max_step_tokens),
        (network.head, hidden, max_running),  # only the last token of each has logits
    ]
    rows = 1
    while rows <= max_step_tokens and clock() < ends_at:
        like = network.embedding
        computed = [_rows_of(p, like.new_zeros(rows, w)) for p, w, most in products if rows <= most]
        rows = max(computed) + 1


def _rows_of(multiply: Linear, x: Tensor) -> int:
    """How many rows were really multiplied: a number is rounded up to one that has a program."""
    product = multiply(x)
    return product.untyped_storage().nbytes() // (product.shape[1] * product.element_size())
