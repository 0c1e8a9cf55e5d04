"""How do linear layers apply to each row of a step the adapter of its own request?"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from wherry.core.api import ConfigError, InvalidRequest
from wherry.llm.engine.adapters import MOST_RANK, WEIGHTS, adapter_config
from wherry.llm.engine.checkpoint import opened_tensors
from wherry.llm.engine.damaged import brief

#: Adapters whose weights are kept at a time; those of running requests always are.
MOST_KEPT: Final = 16
#: What peft puts before the names of modules.
_PREFIX: Final = "base_model.model."

#: The two matrices of an adapted layer, [rank, in] and [out, rank], with the scale in the second.
Pair = tuple[Tensor, Tensor]
#: Sets the matrices of an adapter, by its key, in the modules of these names; None: removes it.
Adapt = Callable[[str, Mapping[str, Pair] | None], None]


class AdaptedLinear(torch.nn.Module):
    def __init__(self, base: Any, rows: Callable[[], Mapping[str, Tensor]]) -> None:
        super().__init__()
        self.base = base
        self._rows = rows
        #: By the adapter's key.
        self.pairs: dict[str, Pair] = {}

    def forward(self, x: Tensor) -> Tensor:
        """[1, tokens, in] to [1, tokens, out]."""
        y: Tensor = self.base(x)
        for key, rows in self._rows().items():
            if (pair := self.pairs.get(key)) is not None:
                down, up = pair
                added = x[0].index_select(0, rows).to(down.dtype) @ down.T @ up.T
                y[0].index_add_(0, rows, added.to(y.dtype))
        return y


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """An adapter's key, and its matrices by the modules' names, unless they are attached."""

    folder: Path
    key: str
    pairs: Mapping[str, Pair] | None


class Adapters:
    """The adapters that one network has, by keys that change with their files.

    `read` may be called by another thread; all else belongs to the network's.
    """

    def __init__(self, adapt: Adapt, dtype: torch.dtype, device: torch.device) -> None:
        self._adapt = adapt
        self._dtype = dtype
        self._device = device
        #: Keys, the least recently used first.
        self._kept: OrderedDict[str, None] = OrderedDict()

    def read(self, folder: Path) -> AdapterWeights:
        """Read an adapter's files, if it is not attached. Blocks. InvalidRequest if it cannot be
        read: its folder is not the server's own."""
        try:
            # With the file's identity: a link may come to point to another file of the same time.
            at = (folder / WEIGHTS).stat()
            key = f"{folder.name} {at.st_dev}.{at.st_ino}.{at.st_mtime_ns}"
            if key in self._kept:
                return AdapterWeights(folder, key, None)
            return AdapterWeights(folder, key, read_pairs(folder, self._dtype, self._device))
        except OSError as error:
            problem = f"adapter {folder.name}: {brief(error)}"
            raise InvalidRequest(problem, field="adapter") from None
        except ConfigError as error:
            raise InvalidRequest(str(error), field="adapter") from None

    def attach(self, weights: AdapterWeights, in_use: Collection[str]) -> str:
        """Attach an adapter to its layers; return its key. The least recently used adapters that
        are not `in_use` make room. ConfigError if it does not fit the model."""
        key, pairs = weights.key, weights.pairs
        if key not in self._kept:
            if pairs is None:  # it was removed meanwhile, to make room
                pairs = read_pairs(weights.folder, self._dtype, self._device)
            self._adapt(key, pairs)
        self._kept[key] = None
        self._kept.move_to_end(key)
        for old in [k for k in self._kept if k != key and k not in in_use]:
            if len(self._kept) <= MOST_KEPT:
                break
            del self._kept[old]
            self._adapt(old, None)
        return key


def read_pairs(folder: Path, dtype: torch.dtype, device: torch.device) -> dict[str, Pair]:
    """The matrices of an adapter by the modules' names. ConfigError names what is wrong."""
    config = adapter_config(folder)
    pairs: dict[str, Pair] = {}
    with opened_tensors(folder / WEIGHTS, "pt") as opened:
        names = set(opened.keys())
        for name in sorted(names):
            module, kind, _ = name.partition(".lora_")
            if not kind or not name.endswith((".lora_A.weight", ".lora_B.weight")):
                raise ConfigError(f"adapter {folder.name}: tensor {name[:80]!r} is not computed")
            if not name.endswith("A.weight"):
                continue
            other = f"{module}.lora_B.weight"
            if other not in names:
                raise ConfigError(f"adapter {folder.name}: tensor {other[:80]!r} is missing")
            down, up = opened.get_tensor(name), opened.get_tensor(other)
            if down.ndim != 2 or up.ndim != 2 or not 0 < len(down) == up.shape[1] <= MOST_RANK:
                raise ConfigError(f"adapter {folder.name}: {module[:80]}: its shapes do not fit")
            if not config.allows(len(down)):
                raise ConfigError(
                    f"adapter {folder.name}: {module[:80]}: its matrices are of rank {len(down)},"
                    f" and adapter_config.json has r = {config.r}: download the adapter again"
                )
            up = up.float() * config.scale(len(down))
            pairs[module.removeprefix(_PREFIX)] = (down.to(device, dtype), up.to(device, dtype))
    if 2 * len(pairs) != len(names) or not pairs:
        raise ConfigError(f"adapter {folder.name}: it has tensors without their counterparts")
    return pairs
