"""How are a checkpoint's tensors copied to a device, each in the shape that config.json sets?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from wherry.core.api import ConfigError
from wherry.llm.engine.checkpoint import MOST_REFUSALS, NO_WEIGHT
from wherry.llm.engine.device import end_of, pinned
from wherry.llm.engine.known import ANOTHER_ENGINE

#: Bytes of each of the two pieces of pinned memory through which weights are copied to a GPU.
STAGED_BYTES: Final = 1 << 26

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class StagedCopies:
    """Copies tensors to a device through two pieces of pinned memory, which are filled in turn."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        empty = torch.empty(2, STAGED_BYTES, dtype=torch.uint8)
        #: The pieces, each with a function that waits until it may be written to.
        self._stages: list[tuple[Tensor, Callable[[], object]]] = [
            (piece, end_of(device)) for piece in pinned(empty, device)
        ]

    def __call__(self, tensor: Tensor) -> Tensor:
        """A copy on the device. One piece of it is read from the file while the one before is
        copied: from ordinary memory the host would wait for each, at a fifth of the rate."""
        made = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        source, target = (t.reshape(-1).view(torch.uint8) for t in (tensor, made))
        for begin in range(0, len(source), STAGED_BYTES):
            piece = source[begin : begin + STAGED_BYTES]
            staged, sent = self._stages.pop(0)
            sent()
            staged[: len(piece)].copy_(piece)
            target[begin : begin + len(piece)].copy_(staged[: len(piece)], non_blocking=True)
            self._stages.append((staged, end_of(self._device)))
        return made


def move(net: torch.nn.Module, device: torch.device) -> None:
    """Move the tensors of a module to a GPU, those that are tied once."""
    if device.type != "cpu":
        copied = StagedCopies(device)
        for tensor in {*net.parameters(), *net.buffers()}:
            tensor.data = copied(tensor.data)


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
        self._copy = StagedCopies(device) if device.type != "cpu" else None

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
        if self._copy is None:  # always a copy: a view would keep the whole file in memory
            return found.to(dtype=self._dtype, copy=True)
        return self._copy(found).to(self._dtype)

    def progress(self) -> dict[str, str]:
        """The number of tensors that were handed out, and of all. Any thread."""
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
    if names:
        listed = ", ".join(sorted(names)[:MOST_REFUSALS])
        raise ConfigError(
            f"{checkpoint}: {len(names)} tensors are not part of the architecture that config.json"
            f" names, so something would be left out: {listed}; {ANOTHER_ENGINE}"
        )
