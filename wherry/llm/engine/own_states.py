"""How does an architecture whose layers keep more than keys and values run in the engine?

State space layers, latent or compressed attention, sinks and biases within attention: transformers
makes a cache for each sequence. Prompts are computed one by one; sequences in decode are computed
together where their caches have the same shapes, as those of state space models always have, and
others at the same length. The loop, constraints and cancellation are the same; no two sequences
share a prefix.
"""

from __future__ import annotations

import inspect
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import deepcopy
from enum import Enum
from typing import Any, Final

import torch
from torch import Tensor

from wherry.core.api import ConfigError
from wherry.llm.engine.checkpoint import Checkpoint
from wherry.llm.engine.damaged import AGAIN, POSITIONS, brief
from wherry.llm.engine.device import on_device
from wherry.llm.engine.fallback import TOLERANCE, load_net
from wherry.llm.engine.kv_cache import BlockTable
from wherry.llm.engine.model import MOST_POSITIONS
from wherry.llm.engine.scheduler import Chunk
from wherry.llm.engine.weights import DTYPES

log = logging.getLogger("wherry")

#: What transformers calls a model's cache, newest name first.
CACHES: Final = ("cache", "past_key_values", "cache_params", "state")
#: Tokens of the text on which the ways are compared: a piece, another, then single ones.
PIECES: Final = (20, 16, 1, 1, 1, 1)
SAMPLE: Final = sum(PIECES)
#: How far logits may differ where the inputs of a product are rounded, too, on a scale of all
#: tokens that are computed at once (bitsandbytes' 8 bits: 0.006): generate() computes prompts as a
#: whole, too, and without a cache the tokens would differ from its.
ROUNDED: Final = 5e-2
OF_YOUR_OWN: Final = "call it in a model of your own (docs/tutorial/first-model.md)"


class Way(Enum):
    """How far a model can go on from its cache."""

    PIECES = "prompts in pieces"
    TOKENS = "prompts as a whole"


class _Stack:
    def __init__(self, tables: Sequence[BlockTable]) -> None:
        self.tables = tables
        self.cache = _joined([table.held for table in tables])
        for table in tables:
            table.held = self

    def part(self) -> None:
        """Give each sequence that has not ended a cache of its own."""
        for row, table in enumerate(self.tables):
            if table.held is self:
                rows = [tensor[row : row + 1] for tensor in _tensors(self.cache)]
                table.held = _with(self.cache, rows)


class StateRunner:
    """A model of transformers on one device, with a cache for each sequence.

    At first a text is computed in pieces and as a whole, and caches are used as far as the logits
    are the same. ConfigError if no way gives equal ones. `quantized`: whether its weights are.
    """

    def __init__(
        self,
        net: Any,
        *,
        name: str,
        dtype: torch.dtype,
        device: torch.device,
        quantized: bool = False,
    ) -> None:
        self._net = net
        self._device = device
        takes = inspect.signature(net.forward).parameters
        self._cache = next((cache for cache in CACHES if cache in takes), "")
        self._keeps = "logits_to_keep" in takes
        self._uncached: dict[str, Any] = {"use_cache": False} if "use_cache" in takes else {}
        self.vocabulary: int = net.config.get_text_config().vocab_size
        self.way = self._exact_way(name, TOLERANCE[dtype], quantized)
        near = ROUNDED if quantized else TOLERANCE[dtype]
        self._may_stack = self._rows_are_independent(near)
        #: The sequences that the last step has computed together.
        self._stacks: list[_Stack] = []

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        """Compute one step. Returns logits [rows, vocabulary]: a row for each token whose logits
        the chunks request, in their order."""
        found = self._together([chunk for chunk in chunks if self._goes_on(chunk)])
        for chunk in chunks:
            if id(chunk.sequence.table) not in found and (logits := self._chunk(chunk)) is not None:
                found[id(chunk.sequence.table)] = logits
        rows = [found[key] for chunk in chunks if (key := id(chunk.sequence.table)) in found]
        return torch.cat(rows) if rows else torch.empty(0, self.vocabulary, device=self._device)

    def _goes_on(self, chunk: Chunk) -> bool:
        return self._may_stack and chunk.count == 1 and chunk.sequence.table.held is not None

    def _together(self, chunks: Sequence[Chunk]) -> dict[int, Tensor]:
        """The logits of chunks of one token, by their tables' identities. Sequences
        computed together stay so, without a copy, until a sequence is added or ends."""
        by_table = {id(chunk.sequence.table): chunk for chunk in chunks}
        if by_table.keys() != {id(table) for stack in self._stacks for table in stack.tables}:
            for stack in self._stacks:
                stack.part()
            alike: dict[Any, list[BlockTable]] = defaultdict(list)
            for chunk in chunks:
                alike[_shapes(chunk.sequence.table.held)].append(chunk.sequence.table)
            self._stacks = [_Stack(tables) for tables in alike.values()]
        found: dict[int, Tensor] = {}
        for stack in self._stacks:
            own = [by_table[id(table)] for table in stack.tables]
            tokens = [[chunk.sequence.tokens[chunk.start]] for chunk in own]
            logits, stack.cache = self._call(on_device(tokens, self._device), stack.cache, 1)
            found |= zip(map(id, stack.tables), logits[:, -1:].unbind(), strict=True)
        return found

    def bytes_per_sequence(self) -> tuple[int, float]:
        """The bytes of a sequence's cache, and of each token in it. Computes two texts."""
        few, many = self._bytes_held(SAMPLE // 2), self._bytes_held(SAMPLE)
        per_token = max(0.0, (many - few) / (SAMPLE - SAMPLE // 2))
        return round(many - per_token * SAMPLE), per_token

    @torch.inference_mode()
    def _bytes_held(self, tokens: int) -> int:
        _, cache = self._call(self._sample(tokens)[None], None, 1)
        return sum({t.untyped_storage().data_ptr(): t.nbytes for t in _tensors(cache)}.values())

    def _chunk(self, chunk: Chunk) -> Tensor | None:
        sequence, stop = chunk.sequence, chunk.start + chunk.count
        state = sequence.table.held
        if self.way is not Way.PIECES and (state is None or chunk.count > 1):
            state = sequence.table.held = None
            if not chunk.logits:
                return None  # computed with the prompt's last piece
        begin = chunk.start if state is not None else 0
        ids = torch.tensor([sequence.tokens[begin:stop]], device=self._device)
        logits, sequence.table.held = self._call(ids, state, chunk.logits or 1)
        return logits[0, -chunk.logits :] if chunk.logits else None

    def _call(self, ids: Tensor, state: Any, rows: int) -> tuple[Tensor, Any]:
        """The logits of the last tokens of each text, at least `rows`, and the cache that includes
        them."""
        options: dict[str, Any] = {"logits_to_keep": rows} if self._keeps else {}
        answer = self._net(input_ids=ids, use_cache=True, **options, **{self._cache: state})
        return answer.logits, getattr(answer, self._cache, None)

    def _sample(self, tokens: int) -> Tensor:
        return (torch.arange(tokens, device=self._device) * 7919 + 11) % self.vocabulary

    def _whole(self, ids: Tensor) -> Tensor:
        logits: Tensor = self._net(input_ids=ids[None], **self._uncached).logits[0]
        return logits.float()

    def _places_differ(self, sample: Tensor, expected: Tensor, tolerance: float) -> bool:
        """Whether the model itself does not count positions from 0, as generate() does: those
        derived from RoBERTa begin after the padding token's id."""
        places = torch.arange(SAMPLE, device=self._device)[None]
        try:
            answer = self._net(input_ids=sample[None], position_ids=places, **self._uncached)
        except Exception:  # noqa: BLE001 - of any type: it takes other positions, or none
            return False
        return not _near(answer.logits[0], expected, tolerance)

    @torch.inference_mode()
    def _exact_way(self, name: str, tolerance: float, quantized: bool) -> Way:
        kind = type(self._net).__name__
        sample = self._sample(SAMPLE)
        try:
            expected = self._whole(sample)
        except Exception as error:  # of any type, by what the model needs beside tokens
            raise ConfigError(f"{name}: {kind} does not run on tokens: {brief(error)}") from error
        rounded = ROUNDED if quantized else tolerance
        if self._adds_tokens(sample):
            raise ConfigError(
                f"{name}: {kind}: generate() adds tokens to what it has at each step, which is not"
                f" done here: {OF_YOUR_OWN}"
            )
        if not bool(expected.isfinite().all()):
            raise ConfigError(
                f"{name}: {kind}: its logits are not numbers: a weight or a field of config.json is"
                f" out of range; {AGAIN}"
            )
        if self._places_differ(sample, expected, rounded):
            raise ConfigError(
                f"{name}: {kind}: generate() counts positions otherwise than the model does:"
                f" {OF_YOUR_OWN}"
            )
        for way, pieces, near in (
            (Way.PIECES, PIECES, tolerance),
            (Way.TOKENS, (sum(PIECES[:2]), *PIECES[2:]), rounded),
        ):
            try:
                found = self._in_pieces(sample, pieces)
            except Exception as error:  # noqa: BLE001 - of any type: it does not go on this way
                why = brief(error)
            else:
                if found is not None and _near(found, expected, near):
                    return way
                why = "it gives no cache" if found is None else _off(found, expected)
            log.info("cache not used", extra={"model": name, "way": way.value, "why": why})
        if not _near(self._whole(sample[:20]), expected[:20], rounded):
            remedy = OF_YOUR_OWN
            if getattr(self._net.config.get_text_config(), "is_decoder", True) is False:
                remedy = (
                    f"set is_decoder to true in config.json if it is to generate, else {remedy}"
                )
            raise ConfigError(
                f"{name}: {kind} is not a causal model: it looks at later tokens; {remedy}"
            )
        raise ConfigError(
            f"{name}: {kind} does not go on from a cache: {why}; each token would compute the whole"
            f" text again: {OF_YOUR_OWN}"
        )

    @torch.inference_mode()
    def _rows_are_independent(self, tolerance: float) -> bool:
        """Whether the next token of each of two texts has the same logits together as alone. The
        texts differ in length if that does not change the caches' shapes."""
        sample = self._sample(SAMPLE)
        length = PIECES[0]
        try:
            for shorter in (length - 3, length):
                texts = [sample[3 : 3 + length], sample[:shorter]]
                caches = [self._call(text[None], None, 1)[1] for text in texts]
                if len({_shapes(cache) for cache in caches}) == 1:
                    break
            last = sample[:2, None]
            found = self._call(last, _joined(caches), 1)[0][:, -1]
            alone = [self._whole(torch.cat(both))[-1] for both in zip(texts, last, strict=True)]
        except Exception:  # noqa: BLE001 - of any type: its caches have no rows
            return False
        return _near(found, torch.stack(alone), tolerance)

    def _adds_tokens(self, sample: Tensor) -> bool:
        """Whether generate() adds tokens to a text, such as XLM's mask."""
        try:
            prepared = self._net.prepare_inputs_for_generation(sample[None])["input_ids"]
        except Exception:  # noqa: BLE001 - of any type: it needs more than tokens, as most do
            return False
        return isinstance(prepared, Tensor) and prepared.shape[-1] > len(sample)

    def _in_pieces(self, sample: Tensor, pieces: Sequence[int]) -> Tensor | None:
        """The logits of a text, computed in these pieces; None without a cache."""
        if not self._cache:
            return None
        state, found = None, []
        for ids in torch.split(sample, list(pieces)):
            logits, state = self._call(ids[None], state, len(ids))
            if state is None:
                return None
            found.append(logits[0])
        return torch.cat(found)


def load_states(checkpoint: Checkpoint, *, dtype: str, device: torch.device) -> StateRunner:
    """A checkpoint's model with a cache for each sequence. Reads files; blocks. ConfigError as
    `load_net`, or if the model is not causal."""
    config = checkpoint.config(exact=False)
    net = load_net(checkpoint, config, dtype=dtype, device=device)
    return StateRunner(
        net,
        name=checkpoint.folder.name,
        dtype=DTYPES[dtype],
        device=device,
        quantized=getattr(config, "quantization_config", None) is not None,
    )


def most_positions(config: Any) -> int:
    """The longest context of a configuration, at most MOST_POSITIONS."""
    text = config.get_text_config()
    found = (getattr(text, name, None) for name in (*POSITIONS, "seq_length"))
    return next((min(n, MOST_POSITIONS) for n in found if type(n) is int and n > 0), MOST_POSITIONS)


def _near(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    if found.shape != expected.shape:
        return False
    return bool((found.float() - expected).abs().max() <= tolerance * expected.abs().max())


def _off(found: Tensor, expected: Tensor) -> str:
    if found.shape != expected.shape:
        return f"logits of shape {tuple(found.shape)} instead of {tuple(expected.shape)}"
    off = (found.float() - expected).abs().max() / expected.abs().max()
    return f"the logits differ by {off:.2g} of the largest"


def _leaves(held: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """The values in a cache's attributes, lists and mappings, each tensor once."""
    seen = set() if seen is None else seen
    is_object = hasattr(held, "__dict__") and not isinstance(held, type)
    if not (is_object or isinstance(held, dict | list | tuple)):
        yield held
    elif id(held) not in seen:
        seen.add(id(held))
        if isinstance(held, Tensor):
            yield held
            return
        parts = held if isinstance(held, dict | list | tuple) else vars(held)
        for part in parts.values() if isinstance(parts, dict) else parts:
            yield from _leaves(part, seen)


def _tensors(held: Any) -> list[Tensor]:
    """The tensors that have rows: one without dimensions is a number."""
    return [leaf for leaf in _leaves(held) if isinstance(leaf, Tensor) and leaf.ndim]


def _shapes(held: Any) -> tuple[Any, ...]:
    """Equal for caches that can be joined."""
    return tuple(
        (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) and leaf.ndim else repr(leaf)
        for leaf in _leaves(held)
    )


def _joined(caches: Sequence[Any]) -> Any:
    rows = zip(*map(_tensors, caches), strict=True)
    return _with(caches[0], [torch.cat(tensors) for tensors in rows])


def _with(cache: Any, tensors: Sequence[Tensor]) -> Any:
    own = _tensors(cache)
    return deepcopy(cache, {id(old): new for old, new in zip(own, tensors, strict=True)})
