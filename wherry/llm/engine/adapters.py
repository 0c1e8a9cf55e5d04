"""Which adapters (LoRA) has a model, where are they, and what do their files contain?

An adapter adds to a linear layer the product of two thin matrices: y + x A^T B^T * alpha / r (Hu et
al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021; with rslora alpha / sqrt(r)). The
files are those of the package peft.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from wherry.core.api import AdapterNotFound, ConfigError
from wherry.llm.engine.damaged import brief

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
MOST_CONFIG_BYTES: Final = 1 << 20
#: Largest rank: beyond, the layer itself would hardly be larger.
MOST_RANK: Final = 4096
#: Initial weights for which peft changes the model's own.
CHANGE_BASE: Final = ("pissa", "olora", "corda", "loftq")
#: A name is a folder's name, never a path.
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class AdapterConfig(msgspec.Struct, frozen=True):
    """The fields of adapter_config.json that change what is computed."""

    peft_type: str
    r: int
    lora_alpha: float = 1.0
    use_rslora: bool = False
    use_dora: bool = False
    bias: str = "none"
    fan_in_fan_out: bool = False
    modules_to_save: Any = None
    init_lora_weights: Any = True
    alpha_pattern: Any = None
    #: The ranks of modules whose rank is not `r`, by patterns of their names.
    rank_pattern: Any = None
    trainable_token_indices: Any = None

    def problem(self) -> str:
        begun = self.init_lora_weights
        wrong = {
            f"peft_type = {self.peft_type!r}": self.peft_type != "LORA",
            f"r = {self.r}": not 0 < self.r <= MOST_RANK,
            "use_dora": self.use_dora,
            f"bias = {self.bias!r}": self.bias != "none",
            "fan_in_fan_out": self.fan_in_fan_out,
            # Trained with weights that are not the checkpoint's: these initializations subtract a
            # part of them. If peft has converted the adapter, the field is true.
            f"init_lora_weights = {begun!r}": str(begun).lower().startswith(CHANGE_BASE),
            "modules_to_save": self.modules_to_save,
            "alpha_pattern": self.alpha_pattern,
            "trainable_token_indices": self.trainable_token_indices,
        }
        found = next((name for name, is_wrong in wrong.items() if is_wrong), "")
        return f"{found} is not computed here; merge the adapter into its model" if found else ""

    def allows(self, rank: int) -> bool:
        """Whether a module may have this rank. The matrices show which one does."""
        others = self.rank_pattern.values() if isinstance(self.rank_pattern, dict) else ()
        return rank == self.r or rank in others

    def scale(self, rank: int) -> float:
        return self.lora_alpha / (math.sqrt(rank) if self.use_rslora else rank)


def adapter_config(folder: Path) -> AdapterConfig:
    """The configuration of an adapter. ConfigError names what in it cannot be computed."""
    try:
        with (folder / CONFIG).open("rb") as opened:
            found = msgspec.json.decode(opened.read(MOST_CONFIG_BYTES), type=AdapterConfig)
    except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ConfigError(f"adapter {folder.name}: {CONFIG}: {brief(error)}") from None
    if problem := found.problem():
        raise ConfigError(f"adapter {folder.name}: {CONFIG}: {problem}")
    return found


@dataclass(frozen=True, slots=True)
class AdapterFolders:
    """The adapters of one model: the named ones, and each folder within `folder`; these may be
    added and removed while the model is served."""

    named: Mapping[str, Path]
    folder: Path | None = None

    @classmethod
    def of(cls, model: str, setting: Any, folder: str | None) -> AdapterFolders:
        """From the settings: `setting` is a mapping from names to folders, or "NAME=FOLDER,..." .
        ConfigError names what is wrong."""
        if isinstance(setting, str):
            pairs = [item.partition("=") for item in setting.split(",") if item]
            setting = {name: path for name, _, path in pairs}
        named = {str(name): Path(path).expanduser() for name, path in (setting or {}).items()}
        for name, path in named.items():
            if not NAME.fullmatch(name):
                raise ConfigError(
                    f"model {model!r}: adapters: {name!r} is not a name for an adapter"
                )
            adapter_config(path)
        at = None if folder is None else Path(folder).expanduser()
        if at is not None and not at.is_dir():
            raise ConfigError(f"model {model!r}: adapter_folder: {folder}: no such folder")
        return cls(named, at)

    def __bool__(self) -> bool:
        return bool(self.named) or self.folder is not None

    def names(self) -> list[str]:
        found = set(self.named)
        if self.folder is not None:
            within = (one.parent.name for one in self.folder.glob(f"*/{CONFIG}"))
            found |= {name for name in within if NAME.fullmatch(name)}
        return sorted(found)

    def may_have(self, name: str) -> bool:
        """Whether there may be one of this name. Reads no files."""
        return name in self.named or (self.folder is not None and bool(NAME.fullmatch(name)))

    def find(self, name: str) -> Path | None:
        """The folder of an adapter; None if there is none of this name. Checks for one file."""
        if name in self.named:
            return self.named[name]
        if self.folder is None or not NAME.fullmatch(name):
            return None
        return self.folder / name if (self.folder / name / CONFIG).is_file() else None

    def found(self, model: str, name: str) -> Path | None:
        if not name:
            return None
        if (folder := self.find(name)) is not None:
            return folder
        problem = f"the model {name[:80]!r} does not exist, nor has {model!r} such an adapter"
        raise AdapterNotFound(problem, field="adapter")
