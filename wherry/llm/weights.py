"""How do a checkpoint's tensors come to a device, each with the shape that config.json says?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wherry.llm.checkpoint import MOST_REFUSALS, NO_WEIGHT
from wherry.llm.known import ANOTHER_ENGINE
from wherry.values.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Weights:
    """Hands out a checkpoint's tensors with checked shapes, and remembers which were used."""

    def __init__(
        self, name: str, tensors: Mapping[str, Any], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._name = name
        self._tensors = tensors
        self._dtype = dtype
        self._device = device
        self._taken: set[str] = set()

    def __call__(self, name: str, *shape: int) -> Tensor:
        """A copy of one tensor on the device. ConfigError if there is none with this name and
        shape."""
        file = self._tensors.get(name)
        if file is None:
            raise ConfigError(f"{self._name}: tensor {name!r} is missing: download it again")
        stored = tuple(file.get_slice(name).get_shape())
        if stored != shape:
            raise ConfigError(
                f"{self._name}: tensor {name!r} has the shape {list(stored)}; by config.json it is"
                f" {list(shape)}"
            )
        self._taken.add(name)
        found: Tensor = file.get_tensor(name)
        # Always a copy: a view would keep the whole file in memory.
        return found.to(device=self._device, dtype=self._dtype, copy=True)

    def progress(self) -> dict[str, str]:
        """How many tensors of all were handed out. Any thread."""
        return {"tensors": f"{len(self._taken)} of {len(self._tensors)}"}

    def check_all_taken(self, *, tied: bool) -> None:
        """Raise ConfigError with the names of tensors that were not used."""
        rest = [n for n in self._tensors if n not in self._taken and not NO_WEIGHT.search(n)]
        if tied and "lm_head.weight" in rest:
            head, embedding = (
                self._tensors[name].get_tensor(name)
                for name in ("lm_head.weight", "model.embed_tokens.weight")
            )
            if not torch.equal(head, embedding):
                raise ConfigError(
                    f"{self._name}: config.json: tie_word_embeddings = True, but lm_head.weight is"
                    " not the embedding: set it to false if the head has weights of its own"
                )
            rest.remove("lm_head.weight")
        refuse_unused(self._name, rest)


def refuse_unused(checkpoint: str, names: Sequence[str]) -> None:
    """Raise ConfigError if there are tensors that the model does not use."""
    if names:
        listed = ", ".join(sorted(names)[:MOST_REFUSALS])
        raise ConfigError(
            f"{checkpoint}: {len(names)} tensors are no part of the architecture that config.json"
            f" names, so something would be left out: {listed}; {ANOTHER_ENGINE}"
        )
