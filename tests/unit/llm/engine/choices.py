"""What is chosen from logits, once the device has computed it."""

from __future__ import annotations

from collections.abc import Sequence as Many

from torch import Tensor

from wherry.llm.engine.sampler import choose
from wherry.llm.engine.sequence import Sampled, Sequence


def sample(logits: Tensor, sequences: Many[Sequence]) -> list[Sampled]:
    return choose(logits, sequences).read()
