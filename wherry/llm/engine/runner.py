"""How do the chunks of a step become tensors and logits?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from wherry.llm.engine import int8
from wherry.llm.engine.attention import Attention, PagedAttention, varlen
from wherry.llm.engine.checkpoint import Checkpoint, stage
from wherry.llm.engine.cuda_graphs import CudaRecord, DecodeGraphs, DecodeRow, Record
from wherry.llm.engine.damaged import brief
from wherry.llm.engine.device import on_device
from wherry.llm.engine.linear import best_for
from wherry.llm.engine.model import Decoder, Shape
from wherry.llm.engine.scheduler import Chunk
from wherry.llm.engine.step_inputs import (
    Attends,
    Context,
    StepInputs,
    Tables,
    inputs_of_views,
    packed_inputs,
    with_chosen,
)
from wherry.llm.engine.tokenizer import Tokenizer
from wherry.llm.engine.weights import DTYPES, Weights

T = TypeVar("T")
log = logging.getLogger("wherry")


class Network(Protocol):
    """A decoder: wherry's own, or one of transformers."""

    shape: Shape

    def forward(self, step: StepInputs, attention: Attends) -> Tensor: ...


class Recorded(NamedTuple):
    record: Record
    attend: Callable[..., Tensor]


class ModelRunner:
    """A decoder and its KV cache on one device.

    On a CPU each sequence attends in place; on other devices, or with `paged`, all of them in one
    call, as far as torch can. There the tokens of answers are computed by recordings (CUDA
    graphs), separately from prompts, if `recorded` is set or there is a GPU with Triton.
    """

    def __init__(
        self,
        network: Network,
        *,
        cache_tokens: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        paged: bool | None = None,
        recorded: Recorded | None = None,
        of_packed: Callable[..., Tensor] | None = None,
    ) -> None:
        self.network = network
        self.device = device
        shape = network.shape
        self.attention: Attends
        self.graphs: DecodeGraphs | None = None
        #: Takes the tokens chosen after a step, to which tokens below 0 refer in the next step;
        #: None: a step needs all its tokens on the host.
        self.keep: Callable[[Tensor], None] | None = None
        self._chosen: Tensor | None = None
        self._inputs: Callable[[Sequence[Chunk]], StepInputs]
        if paged is False or (paged is None and device.type == "cpu"):
            self.attention = Attention(shape, cache_tokens, dtype, device)
            self._inputs = partial(inputs_of_views, block_size=block_size)
            return
        self.keep = self._keep
        self.attention = attention = PagedAttention(
            shape, cache_tokens, dtype, device, block_size=block_size
        )
        if device.type == "cuda":
            recorded = recorded or _or_none(
                partial(_recorded, shape, block_size, dtype, device),
                "no CUDA graphs: all steps run call by call, several times slower",
            )
            heads = (shape.heads, shape.kv_heads, shape.head_size)
            of_packed = of_packed or _or_none(
                partial(varlen, *heads, dtype, device), "prompts attend one by one, slower"
            )
        attention.of_packed = of_packed
        self._inputs = partial(
            packed_inputs, block_size=block_size, most_tokens=attention.most_tokens, device=device
        )
        if recorded is not None:
            attention.in_place = recorded.attend
            self.graphs = DecodeGraphs(
                self._decode,
                recorded.record,
                block_size=block_size,
                spare_block=attention.spare_block,
                most_blocks=-(-min(shape.max_positions, cache_tokens) // block_size),
                device=device,
            )

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        """Compute one step. Returns logits [rows, vocabulary]: a row for each token whose logits
        the chunks request, in their order. Read them before the next step."""
        decoding = [*filter(_decodes, chunks)] if self.graphs is not None else []
        replayed = None
        if self.graphs and decoding:
            replayed = self.graphs.run([*map(_row, decoding)], self._chosen)
        if replayed is None:
            return self._call(chunks)
        others = [chunk for chunk in chunks if not _decodes(chunk)]
        if not others:
            return replayed
        # A recording has no rows for prompts; and many rows of a prompt are bound by arithmetic.
        called = self._call(others)
        places = [place for place, chunk in enumerate(chunks) if _decodes(chunk)]
        for place, chunk in enumerate(chunks):
            if not _decodes(chunk):
                places += [place] * chunk.logits
        order = sorted(range(len(places)), key=places.__getitem__)
        joined = torch.cat([replayed, called])
        return joined.index_select(0, on_device(order, self.device))

    def _keep(self, chosen: Tensor) -> None:
        self._chosen = chosen.clamp(min=0)  # NONE and AGAIN are not indices of the embedding

    def _call(self, chunks: Sequence[Chunk]) -> Tensor:
        step = self._inputs(chunks)
        if self._chosen is not None:
            step.tokens = with_chosen(step.tokens, self._chosen)
        return self.network.forward(step, self.attention)

    @torch.inference_mode()
    def prepare(self, max_running: int) -> None:
        """Record the decode steps of up to `max_running` sequences, if any are recorded. Blocks."""
        if self.graphs is not None:
            self.graphs.prepare(max_running)

    def _decode(self, numbers: Tensor, table: Tensor) -> Tensor:
        tokens, positions, slots, lines = numbers
        rows = torch.arange(len(tokens), device=self.device)
        step = StepInputs(tokens, positions, slots, rows, tables=Tables(table, lines))
        return self.network.forward(step, self.attention)


def _recorded(shape: Shape, block_size: int, dtype: torch.dtype, device: torch.device) -> Recorded:
    """Recordings of decode steps on a GPU. Any exception: no Triton, or its kernel is wrong."""
    from wherry.llm.engine import paged_kernel

    sizes = (shape.heads, shape.kv_heads, shape.head_size, block_size)
    paged_kernel.check(*sizes, dtype, device)
    return Recorded(CudaRecord(device), paged_kernel.attend)


def _or_none(make: Callable[[], T], without: str) -> T | None:
    """The result of `make`, or None, with a warning, if it does not run here."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - of any type: steps run without it
        log.warning(without, extra={"reason": brief(error)})
        return None


def _decodes(chunk: Chunk) -> bool:
    return chunk.count == chunk.logits == 1 and not chunk.sequence.adapter


def _row(chunk: Chunk) -> DecodeRow:
    sequence = chunk.sequence
    token = sequence.tokens[chunk.start]
    return DecodeRow(sequence.id, token, chunk.start, sequence.table.blocks)


def load_network(
    checkpoint: Checkpoint,
    *,
    dtype: str,
    device: torch.device,
    quantization: str | None = None,
    exact: bool = True,
) -> Network:
    """Load a checkpoint's decoder in this datatype, with 8-bit weights if `quantization` is "int8".
    Without `exact` by transformers' modules, which take adapters, whatever is in config.json. Reads
    files; blocks."""
    precision = DTYPES[dtype]
    if not exact:
        from wherry.llm.engine.fallback import TransformersNetwork

        with stage("reading weights", checkpoint=checkpoint.folder.name):
            foreign = TransformersNetwork(checkpoint, dtype=dtype, device=device)
        if quantization is not None:
            foreign.exchange_products(int8.best_for(device))
            with torch.inference_mode():
                foreign.forward(*first_step(checkpoint, foreign.shape, precision, device))
        return foreign
    config = checkpoint.config()
    with checkpoint.tensors() as tensors, torch.inference_mode():
        weights = Weights(checkpoint.folder.name, tensors, precision, device)
        with stage("reading weights", weights.progress, checkpoint=checkpoint.folder.name):
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
    return step, Attention(shape, rows, dtype, device)


def cache_bytes_per_token(shape: Shape, dtype: torch.dtype) -> int:
    return 2 * shape.layers * shape.kv_heads * shape.head_size * dtype.itemsize
