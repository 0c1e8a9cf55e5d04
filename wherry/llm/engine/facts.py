"""What do a checkpoint's files say of it, and what does this machine have? Reads no weights."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from wherry.core.api import ConfigError
from wherry.llm.engine import gguf_header
from wherry.llm.engine.checkpoint import MOST_REFUSALS, NOT_ALONE, Checkpoint
from wherry.llm.engine.choice import Facts, Here
from wherry.llm.engine.damaged import hindrance as no_engine_runs
from wherry.llm.engine.known import refusals
from wherry.llm.engine.quantizers import PACKAGES, quantization_of
from wherry.llm.engine.tokenizer_files import problem as no_tokenizer

#: The modules that engines need.
_MODULES: Final = {
    "wherry": "transformers",
    "transformers": "transformers",
    "llama.cpp": "xllamacpp",
    "vllm": "vllm",
}
_NVIDIA: Final = Path("/proc/driver/nvidia/version")


def here() -> Here:
    """The engines that are installed, and whether there is a GPU. Imports none of them."""
    installed = {engine for engine, module in _MODULES.items() if find_spec(module)}
    packages = frozenset(filter(_is_installed, PACKAGES))
    return Here(frozenset(installed), gpu=_NVIDIA.exists(), packages=packages)


def _is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def is_gguf(source: str) -> bool:
    """Whether a source is a file in llama.cpp's format."""
    path = Path(source).expanduser()
    return path.suffix == ".gguf" and not path.is_dir()


def is_local(source: str) -> bool:
    """Whether a source's files are here; those of a hub id are not before it is loaded."""
    return Path(source).expanduser().exists()


def hub_names(source: str, name: str) -> tuple[str, ...]:
    """What clients call a checkpoint of the hub for which no other name is said: its id."""
    return () if name or is_local(source) else (source,)


def facts_of(source: str) -> Facts:
    """The facts of a folder or a GGUF file. Reads headers and configurations, bounded in size.
    ConfigError if there is no such thing, or if it is damaged."""
    path = Path(source).expanduser()
    if not is_gguf(source):
        return folder_facts(Checkpoint(path))
    try:
        with path.open("rb") as opened:
            header = gguf_header.read(opened, path.stat().st_size)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path.name}: {error}") from None
    problem = gguf_header.problem(header)
    return Facts(path.name, is_gguf=True, refusals=(problem,) if problem else ())


def folder_facts(checkpoint: Checkpoint) -> Facts:
    """The facts of a folder with a config.json."""
    config = checkpoint.object("config.json")
    found = refusals(config)
    hindrance = next((str(one) for one in found if one.field == "auto_map"), "")
    hindrance = hindrance or no_engine_runs(config) or no_tokenizer(checkpoint.folder, config)
    reasons = [str(one) for one in found[:MOST_REFUSALS]]
    for name, remedy in NOT_ALONE.items():
        if (checkpoint.folder / name).exists():
            reasons.append(f"{name}: {remedy}")
            if name == "adapter_config.json":
                hindrance = hindrance or reasons[-1]
    return Facts(
        checkpoint.folder.name,
        refusals=tuple(reasons),
        hindrance=hindrance,
        quantization=quantization_of(config, {one.name for one in checkpoint.folder.iterdir()}),
    )
