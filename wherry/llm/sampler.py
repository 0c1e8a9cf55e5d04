"""Which token follows in each sequence of a step?

A random choice inverts the cumulative distribution at a number in [0, 1). That number depends only
on the sequence's seed and the token's position: the same seed gives the same text in any batch, and
after preemption.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import replace
from hashlib import blake2b

import torch
from torch import Tensor

from wherry.llm.sequence import Sampled, Sequence

#: Number of candidates that are sorted first. They nearly always hold what top_p and min_p leave;
#: sorting the vocabulary takes twenty times as long.
CANDIDATES = 128
#: Rows of a prompt's log probabilities computed at a time.
ROWS = 64

#: The lowest temperature used. Here a difference of 0.01 between two logits already decides; lower
#: ones would become 0 in float32.
COLDEST = 1e-4

_NEVER = float("-inf")


@torch.inference_mode()
def sample(logits: Tensor, sequences: Many[Sequence]) -> list[Sampled]:
    """Choose the next token of each sequence from its row of `logits` [sequences, vocabulary]."""
    reported = [row for row, s in enumerate(sequences) if s.sampling.logprobs is not None]
    logprobs = logits[reported].float().log_softmax(-1) if reported else None
    logits = _adjusted(logits, sequences)
    random = [row for row, s in enumerate(sequences) if s.sampling.temperature > 0]
    if not random:
        tokens = logits.argmax(-1).tolist()
    elif len(random) == len(sequences):
        tokens = _draw(logits.float(), sequences)
    else:
        tokens = logits.argmax(-1).tolist()
        drawn = _draw(logits[random].float(), [sequences[row] for row in random])
        for row, token in zip(random, drawn, strict=True):
            tokens[row] = token
    sampled = [Sampled(token) for token in tokens]
    if logprobs is not None:
        chosen = [tokens[row] for row in reported]
        counts = [sequences[row].sampling.logprobs or 0 for row in reported]
        reports = _reports(logprobs, chosen, counts)
        for place, (row, report) in enumerate(zip(reported, reports, strict=True)):
            wanted = sequences[row].sampling.logprob_token_ids
            sampled[row] = _about(report, wanted, logprobs[place]) if wanted else report
    return sampled


@torch.inference_mode()
def prompt_report(logits: Tensor, tokens: Many[int], alternatives: int) -> list[Sampled]:
    """The log probability of each of `tokens` by its row of `logits` [tokens, vocabulary], a few
    rows at a time to save memory."""
    found: list[Sampled] = []
    for first in range(0, len(tokens), ROWS):
        some = tokens[first : first + ROWS]
        logprobs = logits[first : first + len(some)].float().log_softmax(-1)
        own = logprobs.gather(1, torch.tensor(some, device=logprobs.device)[:, None])
        ranks = ((logprobs > own).sum(-1) + 1).tolist()
        reports = _reports(logprobs, some, [alternatives] * len(some))
        found += [replace(one, rank=rank) for one, rank in zip(reports, ranks, strict=True)]
    return found


def random_number(seed: int, place: int) -> float:
    """A number in [0, 1) determined by these two values."""
    digest = blake2b(struct.pack("<QQ", seed & (2**64 - 1), place), digest_size=8).digest()
    return int(int.from_bytes(digest, "little") >> 11) * 2.0**-53


# What a request changes about the logits


def _adjusted(logits: Tensor, sequences: Many[Sequence]) -> Tensor:
    """The logits with masks, biases and penalties applied, in the order of vLLM: which tokens are
    allowed and which banned, `min_tokens`, `logit_bias`, then the penalties. The same tensor if
    there are none."""
    own = logits
    for row, sequence in enumerate(sequences):
        sampling = sequence.sampling
        early = sequence.generated_tokens < sampling.min_tokens
        penalised = (
            sampling.repetition_penalty != 1.0
            or sampling.presence_penalty
            or sampling.frequency_penalty
        )
        restricted = sampling.allowed_token_ids or sampling.bad_words_ids
        if not (early or penalised or restricted or sampling.logit_bias or sequence.constraint):
            continue
        if own is logits:
            own = logits.float().clone()
        line = own[row]
        if sampling.logit_bias:
            tokens = torch.tensor(list(sampling.logit_bias), device=line.device)
            line[tokens] += torch.tensor(list(sampling.logit_bias.values()), device=line.device)
        if penalised:
            _penalise(line, sequence)
        free = line.clone() if restricted else line
        if restricted:
            _restrict(line, sequence)
        if sequence.constraint is not None:
            sequence.constraint.mask(line)
        if restricted and not bool((line > _NEVER).any()):
            line.copy_(free)  # the lists leave nothing, so that they do not hold
            if sequence.constraint is not None:
                sequence.constraint.mask(line)
        if early and sequence.ends:
            ends = torch.tensor(list(sequence.ends), device=line.device)
            longer = line.index_fill(0, ends, _NEVER)
            # A complete constrained answer must end, even before `min_tokens`.
            if sequence.constraint is None or bool((longer > _NEVER).any()):
                line.copy_(longer)
    return own


def _restrict(line: Tensor, sequence: Sequence) -> None:
    """Allow what `allowed_token_ids` names, and nothing that would complete a bad word."""
    sampling = sequence.sampling
    if sampling.allowed_token_ids:
        allowed = torch.tensor(sampling.allowed_token_ids, device=line.device)
        line.copy_(torch.full_like(line, _NEVER).index_copy_(0, allowed, line[allowed]))
    tokens, generated = sequence.tokens, sequence.generated_tokens
    banned = [
        word[-1]
        for word in sampling.bad_words_ids
        if len(word) <= generated + 1 and (*tokens[len(tokens) + 1 - len(word) :],) == word[:-1]
    ]
    if banned:
        line[torch.tensor(banned, device=line.device)] = _NEVER


def _penalise(line: Tensor, sequence: Sequence) -> None:
    sampling, counts = sequence.sampling, sequence.occurrences
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(list({*sequence.tokens}), device=line.device)
        values = line[seen]
        factor = sampling.repetition_penalty
        line[seen] = torch.where(values < 0, values * factor, values / factor)
    if counts and (sampling.presence_penalty or sampling.frequency_penalty):
        tokens = torch.tensor(list(counts), device=line.device)
        times = torch.tensor(list(counts.values()), device=line.device)
        line[tokens] -= sampling.presence_penalty + sampling.frequency_penalty * times


# The choice


def _draw(logits: Tensor, sequences: Many[Sequence]) -> list[int]:
    """Sample one token for each row."""
    device = logits.device
    temperatures = torch.tensor(
        [max(s.sampling.temperature, COLDEST) for s in sequences], device=device
    )
    numbers = torch.tensor(
        [random_number(s.seed, s.generated_tokens) for s in sequences],
        dtype=torch.float64,
        device=device,
    )
    # Relative to the maximum: avoids an overflow with a small temperature.
    logits = (logits - logits.amax(-1, keepdim=True)) / temperatures[:, None]
    filtered = [row for row, s in enumerate(sequences) if _filters(s, logits.shape[1])]
    if not filtered:
        return _place(logits.softmax(-1), numbers).tolist()
    tokens = [0] * len(sequences)
    free = [row for row in range(len(sequences)) if row not in set(filtered)]
    if free:
        drawn = _place(logits[free].softmax(-1), numbers[free]).tolist()
        for row, token in zip(free, drawn, strict=True):
            tokens[row] = token
    chosen = [sequences[row] for row in filtered]
    for row, token in zip(
        filtered, _filtered(logits[filtered], numbers[filtered], chosen), strict=True
    ):
        tokens[row] = token
    return tokens


def _filters(sequence: Sequence, vocabulary: int) -> bool:
    sampling = sequence.sampling
    return sampling.top_p < 1 or sampling.min_p > 0 or 0 < sampling.top_k < vocabulary


def _filtered(logits: Tensor, numbers: Tensor, sequences: Many[Sequence]) -> list[int]:
    """Sample with min_p, then top_k, then top_p over what they leave, as vLLM does."""
    vocabulary, device = logits.shape[1], logits.device
    top_k = torch.tensor([s.sampling.top_k or vocabulary for s in sequences], device=device)
    top_p = torch.tensor([s.sampling.top_p for s in sequences], device=device)[:, None]
    min_p = torch.tensor([s.sampling.min_p for s in sequences], device=device)[:, None]
    wanted = [s.sampling.top_k for s in sequences if 0 < s.sampling.top_k <= 8 * CANDIDATES]
    count = min(vocabulary, max([CANDIDATES, *wanted]))
    while True:
        values, tokens = logits.topk(count, -1)
        left = torch.arange(count, device=device) < top_k[:, None]
        left &= values >= values[:, :1] + min_p.log()
        # Whether tokens beyond the candidates are left as well, and whether it is all of them.
        more = left[:, -1] & (top_k > count)
        every = more & (top_k == vocabulary) & (min_p[:, 0] == 0)
        # Normalised over all tokens that are left, candidates or not.
        kept = values.masked_fill(~left, _NEVER)
        whole = torch.where(every, logits.logsumexp(-1), kept.logsumexp(-1))
        probabilities = (kept - whole[:, None]).exp()
        before = probabilities.cumsum(-1) - probabilities
        keep = left & (before < top_p)
        if count == vocabulary or not bool((more & (keep[:, -1] | ~every)).any()):
            break
        count = vocabulary
    places = _place(probabilities.masked_fill(~keep, 0.0), numbers)
    drawn: list[int] = tokens.gather(1, places[:, None])[:, 0].tolist()
    return drawn


def _place(probabilities: Tensor, numbers: Tensor) -> Tensor:
    """The index at which the cumulative probability of each row passes its number."""
    line = probabilities.cumsum(-1, dtype=torch.float64)
    places = torch.searchsorted(line, (numbers * line[:, -1])[:, None], right=True)[:, 0]
    return places.clamp_(max=probabilities.shape[1] - 1)


def _about(report: Sampled, tokens: Many[int], logprobs: Tensor) -> Sampled:
    """The report, with the chosen token and these ones as the alternatives."""
    named = list(dict.fromkeys((report.token, *tokens)))
    values = logprobs[torch.tensor(named, device=logprobs.device)].tolist()
    return replace(report, alternatives=tuple(zip(named, values, strict=True)))


def _reports(logprobs: Tensor, chosen: Many[int], counts: Many[int]) -> Iterator[Sampled]:
    """Log probabilities of all rows at once: on a GPU each read of a single value would
    synchronise."""
    values, tokens = (t.tolist() for t in logprobs.topk(max(counts)))
    places = torch.tensor(chosen, device=logprobs.device)[:, None]
    own = logprobs.gather(1, places)[:, 0].tolist()
    for row, count in enumerate(counts):
        best = zip(tokens[row][:count], values[row][:count], strict=True)
        yield Sampled(chosen[row], own[row], tuple(best))
