"""What do requests change about the logits of a step?

For all rows at once: the calls of torch, and the copies to a GPU, do not grow with the rows, and
nothing waits for the device. Only a constraint says row by row what may follow, on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Many

import torch
from torch import Tensor

from wherry.llm.sequence import Sequence
from wherry.llm.step_tensors import on_device, pinned

_NEVER = float("-inf")
#: A row and a token of it.
Place = tuple[int, int]


def adjusted(logits: Tensor, sequences: Many[Sequence]) -> Tensor:
    """The logits [sequences, vocabulary] with biases, then penalties, and minus infinity for what
    may not follow, as in vLLM. The same tensor if no request asks for any."""
    rows = [row for row, sequence in enumerate(sequences) if _excludes(sequence)]
    biases, factors, amounts = _biases(sequences), _factors(sequences), _amounts(sequences)
    if not (rows or biases or factors or amounts):
        return logits
    own = logits.to(torch.float32, copy=True)
    if biases:
        at = _places(biases, own)
        own[at] += _floats(biases.values(), own)
    if factors:
        at = _places(factors, own)
        values, factor = own[at], _floats(factors.values(), own)
        own[at] = torch.where(values < 0, values * factor, values / factor)
    if amounts:
        at = _places(amounts, own)
        own[at] -= _floats(amounts.values(), own)
    if rows:
        some, place = [sequences[row] for row in rows], _numbers(rows, own)
        lines = own.index_select(0, place)
        own.index_copy_(0, place, lines.masked_fill_(~_possible(lines, some), _NEVER))
    return own


def _excludes(sequence: Sequence) -> bool:
    sampling = sequence.sampling
    listed = sampling.allowed_token_ids or sampling.bad_words_ids
    return bool(listed or sequence.constraint is not None or _is_early(sequence))


def _is_early(sequence: Sequence) -> bool:
    return bool(sequence.ends) and sequence.generated_tokens < sequence.sampling.min_tokens


# Biases and penalties: what is added to a token's logit, or divides it, by its place


def _biases(sequences: Many[Sequence]) -> dict[Place, float]:
    return {
        (row, token): bias
        for row, sequence in enumerate(sequences)
        for token, bias in (sequence.sampling.logit_bias or {}).items()
    }


def _factors(sequences: Many[Sequence]) -> dict[Place, float]:
    return {
        (row, token): sequence.sampling.repetition_penalty
        for row, sequence in enumerate(sequences)
        if sequence.sampling.repetition_penalty != 1.0
        for token in {*sequence.tokens}
    }


def _amounts(sequences: Many[Sequence]) -> dict[Place, float]:
    return {
        (row, token): one.sampling.presence_penalty + one.sampling.frequency_penalty * times
        for row, one in enumerate(sequences)
        if one.sampling.presence_penalty or one.sampling.frequency_penalty
        for token, times in one.occurrences.items()
    }


# What may follow


def _possible(lines: Tensor, sequences: Many[Sequence]) -> Tensor:
    """Which tokens may follow, booleans [rows, vocabulary]: what the constraint and the lists
    allow. Lists that leave nothing do not hold, and a complete constrained answer ends even before
    `min_tokens`."""
    free = lines != _NEVER
    constrained = [sequence.constraint is not None for sequence in sequences]
    if any(constrained):
        free &= _fitting(lines, sequences)
    if any(s.sampling.allowed_token_ids or s.sampling.bad_words_ids for s in sequences):
        narrowed = free & _listed(lines, sequences)
        free = torch.where(narrowed.any(-1, keepdim=True), narrowed, free)
    ends = [(r, end) for r, s in enumerate(sequences) if _is_early(s) for end in s.ends]
    if ends:
        longer = free.index_put(_places(ends, lines), free.new_zeros(()))
        must = _numbers(constrained, lines).bool()[:, None] & ~longer.any(-1, keepdim=True)
        free = torch.where(must, free, longer)
    return free


def _fitting(lines: Tensor, sequences: Many[Sequence]) -> Tensor:
    """What the constraints allow, moved to the device in one copy."""
    found = torch.ones(lines.shape, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        if sequence.constraint is not None:
            line = torch.zeros(lines.shape[1])
            sequence.constraint.mask(line)
            found[row] = line != _NEVER
    return pinned(found, lines.device).to(lines.device, non_blocking=True)


def _listed(lines: Tensor, sequences: Many[Sequence]) -> Tensor:
    """What `allowed_token_ids` names, without what would complete a bad word."""
    every = [not sequence.sampling.allowed_token_ids for sequence in sequences]
    found = _numbers(every, lines).bool()[:, None].repeat(1, lines.shape[1])
    yes = torch.ones((), dtype=torch.bool, device=lines.device)
    named = [(r, t) for r, s in enumerate(sequences) for t in s.sampling.allowed_token_ids or ()]
    banned = [(row, token) for row, s in enumerate(sequences) for token in _banned(s)]
    if named:
        found[_places(named, lines)] = yes
    if banned:
        found[_places(banned, lines)] = ~yes
    return found


def _banned(sequence: Sequence) -> list[int]:
    """The tokens that would complete a bad word."""
    tokens, generated = sequence.tokens, sequence.generated_tokens
    return [
        word[-1]
        for word in sequence.sampling.bad_words_ids
        if len(word) <= generated + 1 and (*tokens[len(tokens) + 1 - len(word) :],) == word[:-1]
    ]


def _places(places: Iterable[Place], like: Tensor) -> tuple[Tensor, Tensor]:
    rows, tokens = _numbers(list(zip(*places, strict=True)), like)
    return rows, tokens


def _numbers(numbers: Many[int] | Many[Many[int]], like: Tensor) -> Tensor:
    return on_device(numbers, like.device)


def _floats(values: Iterable[float], like: Tensor) -> Tensor:
    return on_device(list(values), like.device, torch.float)
