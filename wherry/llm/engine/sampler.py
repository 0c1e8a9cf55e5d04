"""Which token follows in each sequence of a step?

A random choice inverts the cumulative distribution at a number in [0, 1). That number depends only
on the sequence's seed and the token's position: the same seed gives the same text in any batch, and
after preemption.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wherry.llm.engine.constraint import TokenBits
from wherry.llm.engine.device import end_of, on_device, pinned
from wherry.llm.engine.sequence import Sampled, Sequence, Tokens, array_of

#: Number of candidates that are sorted first. They nearly always hold what top_p and min_p leave;
#: sorting the vocabulary takes twenty times as long.
CANDIDATES = 128
#: Rows of a prompt's log probabilities computed at a time.
ROWS = 64

#: The lowest temperature used. Here a difference of 0.01 between two logits already decides; lower
#: ones would become 0 in float32.
COLDEST = 1e-4

_NEVER = float("-inf")
#: In place of a token: none can follow; choose again, as the sequence now `sorts_all`.
NONE, AGAIN = -1, -2


@dataclass(frozen=True, slots=True)
class NextTokens:
    tokens: Tensor
    #: The rows whose log probabilities are requested, and of how many alternatives.
    _reported: Mapping[int, int]
    #: On their way to the host: the tokens, and what `_looked_up` returns for the reported rows.
    _copies: Many[Tensor]
    _wait: Callable[[], object]

    def read(self) -> list[Sampled]:
        """The tokens, NONE or AGAIN. Waits until the device has chosen."""
        self._wait()
        tokens, *found = [copy.tolist() for copy in self._copies]
        read = [Sampled(token) for token in tokens]
        if found:
            chosen, counts = [tokens[row] for row in self._reported], [*self._reported.values()]
            for row, report in zip(self._reported, _reports(found, chosen, counts), strict=True):
                read[row] = report
        return read


@torch.inference_mode()
def choose(logits: Tensor, sequences: Many[Sequence]) -> NextTokens:
    """Choose the next token of each sequence from its row of `logits` [sequences, vocabulary]."""
    alternatives = [sequence.sampling.logprobs for sequence in sequences]
    reported = {row: most for row, most in enumerate(alternatives) if most is not None}
    logprobs = None
    if reported:
        rows = on_device([*reported], logits.device)
        logprobs = logits.index_select(0, rows).float().log_softmax(-1)
    tokens = _chosen(adjusted(logits, sequences), sequences)
    copies = [tokens]
    if logprobs is not None:
        own = tokens.index_select(0, rows).clamp_(min=0)
        copies += _looked_up(logprobs, own, max(reported.values()))
    if logits.is_cuda:
        copies = [copy.to("cpu", non_blocking=True) for copy in copies]
    return NextTokens(tokens, reported, copies, end_of(logits.device))


@torch.inference_mode()
def prompt_report(logits: Tensor, tokens: Many[int], alternatives: int) -> list[Sampled]:
    """The log probability of each of `tokens` by its row of `logits` [tokens, vocabulary], a few
    rows at a time to save memory."""
    found: list[Sampled] = []
    for first in range(0, len(tokens), ROWS):
        some = tokens[first : first + ROWS]
        logprobs = logits[first : first + len(some)].float().log_softmax(-1)
        looked_up = _looked_up(logprobs, on_device(some, logprobs.device), alternatives)
        ranks = ((logprobs > looked_up[-1]).sum(-1) + 1).tolist()
        read = [tensor.tolist() for tensor in looked_up]
        reports = _reports(read, some, [alternatives] * len(some))
        found += [replace(one, rank=rank) for one, rank in zip(reports, ranks, strict=True)]
    return found


def random_number(seed: int, place: int) -> float:
    digest = blake2b(struct.pack("<QQ", seed & (2**64 - 1), place), digest_size=8).digest()
    return int(int.from_bytes(digest, "little") >> 11) * 2.0**-53


# The choice


def _chosen(logits: Tensor, sequences: Many[Sequence]) -> Tensor:
    """The next token of each row, on the device; NONE if no logit of the row is a number."""
    most, tokens = logits.max(-1)
    random = [row for row, s in enumerate(sequences) if s.sampling.temperature > 0]
    if random:
        rows = on_device(random, logits.device)
        some = [sequences[row] for row in random]
        drawn = _draw(logits.index_select(0, rows), most.index_select(0, rows), some)
        tokens.index_copy_(0, rows, drawn)
    return tokens.masked_fill_(~most.isfinite(), NONE)


def _draw(logits: Tensor, most: Tensor, sequences: Many[Sequence]) -> Tensor:
    device = logits.device
    warmth = [max(s.sampling.temperature, COLDEST) for s in sequences]
    temperatures = on_device(warmth, device, torch.float)
    numbers = on_device(
        [random_number(s.seed, s.generated_tokens) for s in sequences], device, torch.float64
    )
    # Relative to the maximum: avoids an overflow with a small temperature.
    logits = (logits.float() - most.float()[:, None]) / temperatures[:, None]
    filtered = [row for row, s in enumerate(sequences) if _filters(s, logits.shape[1])]
    if not filtered:
        return _place(logits.softmax(-1), numbers)
    if len(filtered) == len(sequences):
        return _filtered(logits, numbers, sequences)
    tokens = torch.empty(len(sequences), dtype=torch.long, device=device)
    free = on_device([row for row in range(len(sequences)) if row not in set(filtered)], device)
    rows = on_device(filtered, device)
    tokens[free] = _place(logits[free].softmax(-1), numbers[free])
    some = [sequences[row] for row in filtered]
    tokens[rows] = _filtered(logits[rows], numbers[rows], some)
    return tokens


def _filters(sequence: Sequence, vocabulary: int) -> bool:
    sampling = sequence.sampling
    return sampling.top_p < 1 or sampling.min_p > 0 or 0 < sampling.top_k < vocabulary


def _filtered(
    logits: Tensor, numbers: Tensor, sequences: Many[Sequence], candidates: int = CANDIDATES
) -> Tensor:
    """Sample with min_p, then top_k, then top_p over what they leave, as vLLM does. Rows for which
    the `candidates` may not be all that is left are sorted as a whole, and only these: at once
    if this waits for the device, else if it is known from an earlier choice."""
    vocabulary, device = logits.shape[1], logits.device
    top_k = on_device([s.sampling.top_k or vocabulary for s in sequences], device)
    top_p = on_device([s.sampling.top_p for s in sequences], device, torch.float)[:, None]
    min_p = on_device([s.sampling.min_p for s in sequences], device, torch.float)[:, None]
    large = [s.sampling.top_k for s in sequences if 0 < s.sampling.top_k <= 8 * candidates]
    count = min(vocabulary, max([candidates, *large]))
    values, tokens = logits.topk(count, -1)
    left = torch.arange(count, device=device) < top_k[:, None]
    left &= values >= values[:, :1] + min_p.log()
    # Whether tokens beyond the candidates are left as well, and whether all of them are.
    more = left[:, -1] & (top_k > count)
    every = more & (top_k == vocabulary) & (min_p[:, 0] == 0)
    # Normalised over all tokens that are left, candidates or not.
    kept = values.masked_fill(~left, _NEVER)
    whole = torch.where(every, logits.logsumexp(-1), kept.logsumexp(-1))
    probabilities = (kept - whole[:, None]).exp()
    before = probabilities.cumsum(-1) - probabilities
    keep = left & (before < top_p)
    places = _place(probabilities.masked_fill(~keep, 0.0), numbers)
    chosen = tokens.gather(1, places[:, None])[:, 0]
    if count < vocabulary:
        unsure = more & (keep[:, -1] | ~every)
        flags: list[bool | None] = [s.sorts_all for s in sequences]
        if None in flags:
            flags = unsure.tolist()
        else:
            chosen.masked_fill_(unsure, AGAIN)
        further = [row for row, flag in enumerate(flags) if flag]
        if further:
            rows = on_device(further, device)
            some = [sequences[row] for row in further]
            chosen[rows] = _filtered(logits[rows], numbers[rows], some, vocabulary)
    return chosen


def _place(probabilities: Tensor, numbers: Tensor) -> Tensor:
    """The index at which the cumulative probability of each row passes its number."""
    line = probabilities.cumsum(-1, dtype=torch.float64)
    places = torch.searchsorted(line, (numbers * line[:, -1])[:, None], right=True)[:, 0]
    return places.clamp_(max=probabilities.shape[1] - 1)


def _looked_up(logprobs: Tensor, chosen: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """The log probabilities and the tokens of the `most` probable of each row, and the log
    probability of its `chosen` one, [rows, 1]."""
    values, tokens = logprobs.topk(most)
    return values, tokens, logprobs.gather(1, chosen[:, None])


def _reports(looked_up: Many[Any], chosen: Many[int], counts: Many[int]) -> Iterator[Sampled]:
    """The log probabilities of each row's chosen token and alternatives, from the lists that were
    looked up."""
    values, tokens, own = looked_up
    for row, (token, count) in enumerate(zip(chosen, counts, strict=True)):
        best = zip(tokens[row][:count], values[row][:count], strict=True)
        yield Sampled(token, own[row][0], tuple(best))


#: Some tokens of a row.
Place = tuple[int, Tokens]
#: The count of an occurrence: the lowest bit marks tokens of the prompt.
_IN_PROMPT, _IN_ANSWER = 1, 2


def adjusted(logits: Tensor, sequences: Many[Sequence]) -> Tensor:
    """The logits [sequences, vocabulary] with biases, then penalties, and minus infinity for what
    may not follow, as in vLLM. The same tensor if no request changes them."""
    biased = [(row, s.lists) for row, s in enumerate(sequences) if s.lists.biased.size]
    penalised = [row for row, sequence in enumerate(sequences) if _penalises(sequence)]
    narrowed = [row for row, sequence in enumerate(sequences) if _excludes(sequence)]
    if not (biased or penalised or narrowed):
        return logits
    own = logits.to(torch.float32, copy=True)
    if biased:
        at = _places([(row, lists.biased) for row, lists in biased], own)
        own[at] += on_device(np.concatenate([b.biases for _, b in biased]), own.device, own.dtype)
    for rows, change in ((penalised, _with_penalties), (narrowed, _without_excluded)):
        if rows:
            place = on_device(rows, own.device)
            lines = change(own.index_select(0, place), [sequences[row] for row in rows])
            own.index_copy_(0, place, lines)
    return own


def _penalises(sequence: Sequence) -> bool:
    sampling = sequence.sampling
    by_answer = sampling.presence_penalty or sampling.frequency_penalty
    return bool(by_answer) or sampling.repetition_penalty != 1.0


def _excludes(sequence: Sequence) -> bool:
    narrow = sequence.lists.allowed.size > 0 or sequence.constraint is not None
    return narrow or _is_early(sequence)


def _is_early(sequence: Sequence) -> bool:
    return bool(sequence.ends) and sequence.generated_tokens < sequence.sampling.min_tokens


# Penalties


def _with_penalties(lines: Tensor, sequences: Many[Sequence]) -> Tensor:
    found = _occurrences(lines, sequences)
    samplings = [s.sampling for s in sequences]
    weights = [(a.repetition_penalty, a.presence_penalty, a.frequency_penalty) for a in samplings]
    repetition, presence, frequency = (
        on_device(weights, lines.device, lines.dtype).unsqueeze(1).unbind(-1)
    )
    lines = torch.where(
        found > 0, torch.where(lines < 0, lines * repetition, lines / repetition), lines
    )
    times = found // _IN_ANSWER
    return lines - presence * (times > 0) - frequency * times


def _occurrences(lines: Tensor, sequences: Many[Sequence]) -> Tensor:
    """How often each token occurs in the text of each sequence, [rows, vocabulary]. Each keeps its
    row of it, and only new tokens are counted."""
    nowhere = torch.zeros(lines.shape[1], dtype=torch.int32, device=lines.device)
    known = [(0, nowhere) if s.occurrences is None else s.occurrences for s in sequences]
    counts = torch.stack([row for _, row in known])
    new: list[Place] = []
    amounts: list[int] = []
    for row, ((count, _), one) in enumerate(zip(known, sequences, strict=True)):
        if not count:
            new.append((row, array_of({*one.tokens[: one.prompt_tokens]})))
            amounts.append(_IN_PROMPT)
        new.append((row, array_of(one.tokens[max(count, one.prompt_tokens) :])))
        amounts.append(_IN_ANSWER)
    sizes = [len(tokens) for _, tokens in new]
    values = on_device(np.repeat(amounts, sizes), lines.device, counts.dtype)
    counts.index_put_(_places(new, lines), values, accumulate=True)
    for one, own in zip(sequences, counts.unbind(), strict=True):
        one.occurrences = len(one.tokens), own
    return counts


# What may follow


def _without_excluded(lines: Tensor, sequences: Many[Sequence]) -> Tensor:
    return lines.masked_fill_(~_possible(lines, sequences), _NEVER)


def _possible(lines: Tensor, sequences: Many[Sequence]) -> Tensor:
    """Which tokens may follow, booleans [rows, vocabulary]: those that the constraint and the list
    allow. A list that leaves no token is ignored, and a complete constrained answer ends even
    before `min_tokens`."""
    free = lines != _NEVER
    constrained = [sequence.constraint is not None for sequence in sequences]
    if any(constrained):
        free &= _fitting(lines, sequences)
    if any(sequence.lists.allowed.size for sequence in sequences):
        narrowed = free & _listed(lines, sequences)
        free = torch.where(narrowed.any(-1, keepdim=True), narrowed, free)
    ends = [(row, s.lists.ends) for row, s in enumerate(sequences) if _is_early(s)]
    if ends:
        longer = free.index_put(_places(ends, lines), free.new_zeros(()))
        must = on_device(constrained, lines.device).bool()[:, None]
        free = torch.where(must & ~longer.any(-1, keepdim=True), free, longer)
    return free


def _fitting(lines: Tensor, sequences: Many[Sequence]) -> Tensor:
    """The tokens that constraints allow, moved to the device in one copy of a bit for each token. A
    GPU computes the step meanwhile: nothing before this waits for it."""
    bits = np.full((len(sequences), -(-lines.shape[1] // 8)), 0xFF, np.uint8)
    for row, sequence in zip(bits, sequences, strict=True):
        if sequence.constraint is not None:
            try:
                sequence.constraint.mask(row)
            except Exception as error:  # noqa: BLE001 - of any constraint; only this one ends
                sequence.error = error
    return _unpacked(bits, lines.shape[1], lines.device)


def _unpacked(bits: TokenBits, vocabulary: int, device: torch.device) -> Tensor:
    if device.type == "cpu":  # where torch's operations on bytes take five times as long as numpy's
        found = np.unpackbits(bits, axis=1, count=vocabulary, bitorder="little")
        return torch.from_numpy(found.view(np.bool_))
    packed = pinned(torch.from_numpy(bits), device).to(device, non_blocking=True)
    return _of_bits(packed)[:, :vocabulary]


def _of_bits(packed: Tensor) -> Tensor:
    """Booleans [rows, 8 * bytes] of bytes [rows, bytes]."""
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[..., None] >> places) & 1).bool().flatten(1)


def _listed(lines: Tensor, sequences: Many[Sequence]) -> Tensor:
    """The tokens that the lists allow, which are read once for each request."""
    masks = []
    every = torch.ones(lines.shape[1], dtype=torch.bool, device=lines.device)
    for lists in (sequence.lists for sequence in sequences):
        if lists.allowed.size and lists.mask is None:
            allowed = np.zeros(lines.shape[1], np.bool_)
            allowed[lists.allowed] = True
            lists.mask = on_device(allowed, lines.device, torch.bool)
        masks.append(every if lists.mask is None else lists.mask)
    return torch.stack(masks)


def _places(places: Many[Place], like: Tensor) -> tuple[Tensor, ...]:
    sizes = [len(tokens) for _, tokens in places]
    rows = np.repeat([row for row, _ in places], sizes)
    tokens = np.concatenate([tokens for _, tokens in places])
    return on_device(np.stack([rows, tokens]), like.device).unbind()
