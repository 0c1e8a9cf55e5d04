"""What do requests change about the logits of a step?

For all rows at once: the calls of torch, and the copies to a GPU, do not grow with the rows, nor
with a request's lists or its text, and nothing waits for the device. What is made of lists is made
once (token_lists.py), and how often tokens occur is counted on. Only a constraint says row by row
what may follow, on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import torch
from torch import Tensor

from wherry.llm.engine.sequence import Sequence
from wherry.llm.engine.step_tensors import on_device, pinned
from wherry.llm.engine.token_lists import Tokens, array_of

_NEVER = float("-inf")
#: Some tokens of a row.
Place = tuple[int, Tokens]
#: What an occurrence counts: one in the prompt is told by the lowest bit.
_IN_PROMPT, _IN_ANSWER = 1, 2


def adjusted(logits: Tensor, sequences: Many[Sequence]) -> Tensor:
    """The logits [sequences, vocabulary] with biases, then penalties, and minus infinity for what
    may not follow, as in vLLM. The same tensor if no request asks for any."""
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
    return sequence.lists.narrow or sequence.constraint is not None or _is_early(sequence)


def _is_early(sequence: Sequence) -> bool:
    return bool(sequence.ends) and sequence.generated_tokens < sequence.sampling.min_tokens


# Penalties


def _with_penalties(lines: Tensor, sequences: Many[Sequence]) -> Tensor:
    found = _occurrences(lines, sequences)
    asked = [s.sampling for s in sequences]
    weights = [(a.repetition_penalty, a.presence_penalty, a.frequency_penalty) for a in asked]
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
    row of it, and only what is new since is counted."""
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
    """Which tokens may follow, booleans [rows, vocabulary]: what the constraint and the lists
    allow. Lists that leave nothing do not hold, and a complete constrained answer ends even before
    `min_tokens`."""
    free = lines != _NEVER
    constrained = [sequence.constraint is not None for sequence in sequences]
    if any(constrained):
        free &= _fitting(lines, sequences)
    if any(sequence.lists.narrow for sequence in sequences):
        narrowed = free & _listed(lines, sequences)
        free = torch.where(narrowed.any(-1, keepdim=True), narrowed, free)
    ends = [(row, s.lists.ends) for row, s in enumerate(sequences) if _is_early(s)]
    if ends:
        longer = free.index_put(_places(ends, lines), free.new_zeros(()))
        must = on_device(constrained, lines.device).bool()[:, None]
        free = torch.where(must & ~longer.any(-1, keepdim=True), free, longer)
    return free


def _fitting(lines: Tensor, sequences: Many[Sequence]) -> Tensor:
    """What the constraints allow, moved to the device in one copy."""
    found = np.ones(lines.shape, np.bool_)
    for row, sequence in zip(found, sequences, strict=True):
        if sequence.constraint is not None:
            try:
                sequence.constraint.mask(row)
            except Exception as error:  # noqa: BLE001 - of any constraint; only this one ends
                sequence.error = error
    return pinned(torch.from_numpy(found), lines.device).to(lines.device, non_blocking=True)


def _listed(lines: Tensor, sequences: Many[Sequence]) -> Tensor:
    """What the lists leave, without what would complete a bad word."""
    every = torch.ones(lines.shape[1], dtype=torch.bool, device=lines.device)
    left = torch.stack([_mask(s, lines) if s.lists.narrow else every for s in sequences])
    banned = [
        (row, tokens)
        for row, s in enumerate(sequences)
        for tokens in s.lists.completing(s.tokens, s.generated_tokens)
    ]
    if banned:
        left.index_put_(_places(banned, lines), left.new_zeros(()))
    return left


def _mask(sequence: Sequence, like: Tensor) -> Tensor:
    lists = sequence.lists
    if lists.mask is None:
        lists.mask = on_device(lists.left(like.shape[1]), like.device, torch.bool)
    mask: Tensor = lists.mask
    return mask


def _places(places: Many[Place], like: Tensor) -> tuple[Tensor, ...]:
    """Their rows, and their tokens."""
    sizes = [len(tokens) for _, tokens in places]
    rows = np.repeat([row for row, _ in places], sizes)
    tokens = np.concatenate([tokens for _, tokens in places])
    return on_device(np.stack([rows, tokens]), like.device).unbind()
