"""How do the chunks of a step become tensors and logits?"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from wherry.llm import int8
from wherry.llm.attention import Attention, Context, StepInputs
from wherry.llm.checkpoint import Checkpoint
from wherry.llm.families import FAMILIES
from wherry.llm.linear import best_for
from wherry.llm.model import Decoder, Shape
from wherry.llm.scheduler import Chunk
from wherry.llm.tokenizer import Tokenizer
from wherry.llm.weights import DTYPES, Weights

log = logging.getLogger("wherry")


class Network(Protocol):
    """A decoder: wherry's own, or one of transformers."""

    shape: Shape

    def forward(self, step: StepInputs, attention: Attention) -> Tensor: ...


class ModelRunner:
    """A decoder and its KV cache on one device."""

    def __init__(
        self,
        network: Network,
        *,
        cache_tokens: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.network = network
        self.device = device
        self._block_size = block_size
        self.attention = attention_for(network.shape, cache_tokens, dtype, device)

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        """Compute one step. Returns logits [rows, vocabulary]: a row for each token whose logits
        the chunks request, in their order."""
        return self.network.forward(self._inputs(chunks), self.attention)

    def _inputs(self, chunks: Sequence[Chunk]) -> StepInputs:
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        logit_rows: list[int] = []
        spans: list[Context] = []
        adapters: dict[str, list[int]] = {}
        size = self._block_size
        for chunk in chunks:
            sequence, stop = chunk.sequence, chunk.start + chunk.count
            blocks = sequence.table.blocks
            spans.append(
                Context(len(tokens), chunk.count, stop, _pieces(sequence.table.extents, size, stop))
            )
            if sequence.adapter:
                rows = adapters.setdefault(sequence.adapter, [])
                rows += range(len(tokens), len(tokens) + chunk.count)
            tokens += sequence.tokens[chunk.start : stop]
            positions += range(chunk.start, stop)
            slots += [blocks[p // size] * size + p % size for p in range(chunk.start, stop)]
            logit_rows += range(len(tokens) - chunk.logits, len(tokens))
        packed = torch.tensor([tokens, positions, slots]).to(self.device)
        return StepInputs(
            packed[0],
            packed[1],
            packed[2],
            torch.tensor(logit_rows, dtype=torch.long, device=self.device),
            spans,
            {key: torch.tensor(rows, device=self.device) for key, rows in adapters.items()},
        )


def _pieces(extents: list[tuple[int, int]], size: int, tokens: int) -> list[tuple[int, int]]:
    """The places of a sequence's first `tokens` tokens in the cache, as (first token, length), from
    its runs of blocks."""
    pieces: list[tuple[int, int]] = []
    for block, count in extents:
        length = min(tokens, count * size)
        if length > 0:
            pieces.append((block * size, length))
        tokens -= length
    return pieces


def load_network(
    checkpoint: Checkpoint,
    *,
    dtype: str,
    device: torch.device,
    quantization: str | None = None,
    exact: bool = True,
    adapted: bool = False,
) -> Network:
    """Load a checkpoint's decoder in this datatype, with 8-bit weights if `quantization` is "int8".
    Without `exact` by transformers' modules, whatever config.json says, and so if it is to be
    `adapted`. Reads files; blocks."""
    config = checkpoint.config(exact=exact)
    kind = config.architectures[0] if config.architectures else type(config).__name__
    precision = DTYPES[dtype]
    if adapted or not exact or not FAMILIES[kind].own:
        from wherry.llm.fallback import TransformersNetwork

        if exact and not adapted:
            log.warning("no model of our own for this architecture", extra={"architecture": kind})
        foreign = TransformersNetwork(checkpoint, dtype=dtype, device=device, exact=exact)
        if quantization is not None:
            foreign.exchange_products(int8.best_for(device))
            with torch.inference_mode():
                foreign.forward(*first_step(checkpoint, foreign.shape, precision, device))
        return foreign
    with checkpoint.tensors() as tensors, torch.inference_mode():
        weights = Weights(checkpoint.folder.name, tensors, precision, device)
        if quantization is None:
            network = Decoder(config, weights, best_for(device, precision))
        else:
            first = first_step(checkpoint, Shape.of(config), precision, device)
            network = Decoder(config, weights, int8.best_for(device), first)
        weights.check_all_taken(tied=config.tie_word_embeddings)
        return network


def first_step(
    checkpoint: Checkpoint, shape: Shape, dtype: torch.dtype, device: torch.device
) -> tuple[StepInputs, Attention]:
    """One step over a sample text, on which 8-bit products calibrate, and attention with a cache
    for it."""
    tokens = Tokenizer.load(checkpoint.folder).encode(int8.SAMPLE)[: shape.max_positions]
    rows = len(tokens)
    places = torch.arange(rows, device=device)
    step = StepInputs(
        torch.tensor(tokens, device=device),
        places,
        places,
        places,
        [Context(0, rows, rows, [(0, rows)])],
    )
    return step, attention_for(shape, rows, dtype, device)


def attention_for(shape: Shape, tokens: int, dtype: torch.dtype, device: torch.device) -> Attention:
    """Attention with an empty KV cache for `tokens` tokens."""
    return Attention(
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        tokens=tokens,
        dtype=dtype,
        device=device,
    )


def cache_bytes_per_token(shape: Shape, dtype: torch.dtype) -> int:
    """Bytes of one token's keys and values in all layers."""
    return 2 * shape.layers * shape.kv_heads * shape.head_size * dtype.itemsize
