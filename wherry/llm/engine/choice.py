"""Which engine serves a checkpoint, and why that one, by what is in its files?

wherry's own computes what it knows exactly; transformers' modules run in its loop for what it does
not know; llama.cpp reads GGUF files as they are; vLLM is for GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from wherry.core.api import ConfigError
from wherry.llm.engine import gguf_file
from wherry.llm.engine.checkpoint import MOST_REFUSALS, NOT_ALONE, Checkpoint
from wherry.llm.engine.damaged import hindrance as no_engine_runs
from wherry.llm.engine.known import QUANTIZED, QUANTIZER_FILES, refusals
from wherry.llm.engine.tokenizer_files import problem as no_tokenizer

AUTO: Final = "auto"
#: Each engine, and the package to install for it.
ENGINES: Final = {
    "wherry": "wherry[llm]",
    "transformers": "wherry[llm]",
    "llama.cpp": "wherry[llama-cpp]",
    "vllm": "wherry[vllm]",
}


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
    return Here(frozenset(installed), gpu=_NVIDIA.exists())


def is_gguf(source: str) -> bool:
    path = Path(source).expanduser()
    return path.suffix == ".gguf" and not path.is_dir()


def is_local(source: str) -> bool:
    """Whether a source's files are here; those of a hub id are not before it is loaded."""
    return Path(source).expanduser().exists()


def hub_names(source: str, name: str) -> tuple[str, ...]:
    """The names of a hub checkpoint that is configured without one: its id."""
    return () if name or is_local(source) else (source,)


def facts_of(source: str) -> Facts:
    """The facts of a folder or a GGUF file. Reads headers and configurations, bounded in size.
    ConfigError if it is missing or damaged."""
    path = Path(source).expanduser()
    if not is_gguf(source):
        return folder_facts(Checkpoint(path))
    try:
        with path.open("rb") as opened:
            header = gguf_file.read(opened, path.stat().st_size)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path.name}: {error}") from None
    problem = gguf_file.problem(header)
    return Facts(path.name, is_gguf=True, refusals=(problem,) if problem else ())


def folder_facts(checkpoint: Checkpoint) -> Facts:
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


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a checkpoint before its weights are read."""

    name: str
    is_gguf: bool = False
    #: Why wherry's engine would not compute it exactly; () if it would.
    refusals: tuple[str, ...] = ()
    #: Why no engine here may load it; "" if there is no such reason.
    hindrance: str = ""
    #: How its weights are quantized; None if they are not.
    quantization: Quantization | None = None


@dataclass(frozen=True, slots=True)
class Here:
    """The engines that are installed on this machine, and whether it has a GPU."""

    engines: frozenset[str]
    gpu: bool = False


@dataclass(frozen=True, slots=True)
class EngineChoice:
    engine: str
    reason: str


def choose(facts: Facts, here: Here, requested: str = AUTO) -> EngineChoice:
    """Choose the engine of a checkpoint, or check the requested one. ConfigError, with a remedy, if
    there is none, or if the requested one cannot serve it."""
    if requested != AUTO and requested not in ENGINES:
        raise ConfigError(
            f"engine must be one of {', '.join((AUTO, *ENGINES))}; it is {requested!r}"
        )
    if facts.hindrance:
        raise ConfigError(f"{facts.name}: {facts.hindrance}")
    if requested != AUTO:
        if why := _problem(facts, requested):
            raise ConfigError(f"{facts.name}: engine {requested}: {why}")
        choice = EngineChoice(requested, "the setting engine names it")
    else:
        choice = _chosen(facts, here)
    if choice.engine not in here.engines:
        raise ConfigError(
            f"{facts.name}: engine {choice.engine} is not installed:"
            f" pip install '{ENGINES[choice.engine]}'"
        )
    if choice.engine == "transformers" and (packed := facts.quantization):
        packed.check_is_read(facts.name)
    return choice


def _chosen(facts: Facts, here: Here) -> EngineChoice:
    if facts.is_gguf:
        if "llama.cpp" in here.engines:
            return EngineChoice("llama.cpp", "it reads GGUF files as they are")
        if not facts.refusals:
            return EngineChoice(
                "wherry", "llama.cpp is not installed, and the file can be converted exactly"
            )
        return EngineChoice("llama.cpp", facts.refusals[0])
    if not facts.refusals:
        return EngineChoice("wherry", "it computes this checkpoint exactly")
    why = f"weights quantized by {facts.quantization}" if facts.quantization else facts.refusals[0]
    if here.gpu and "vllm" in here.engines:
        return EngineChoice("vllm", f"{why}; there is a GPU")
    return EngineChoice("transformers", why)


def _problem(facts: Facts, requested: str) -> str:
    if requested == "llama.cpp" and not facts.is_gguf:
        return "it reads .gguf files only: convert the checkpoint with llama.cpp's own converter"
    if requested in ("transformers", "vllm") and facts.is_gguf:
        return "a GGUF file is for engine llama.cpp, or for wherry, which converts it"
    if requested == "wherry" and facts.refusals:
        listed = "\n  ".join(facts.refusals)
        return f"not computed exactly:\n  {listed}"
    return ""


#: The field that transformers reads, of a configuration or of its part for texts.
READ: Final = QUANTIZED[0]


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint's weights are quantized: the method, and the field that declares it."""

    #: As transformers names it; "" if the files name none.
    method: str
    declared_in: str = READ

    def __str__(self) -> str:
        return self.method or "an unnamed method"

    def check_is_read(self, checkpoint: str) -> None:
        """ConfigError if transformers does not read the field: it would take the weights for
        floats."""
        if self.declared_in != READ:
            raise ConfigError(
                f"{checkpoint}: {self.declared_in}: transformers looks for quantized weights in"
                f" config.json's {READ} only, and would take these for floats: write it there, with"
                " its quant_method"
            )


def quantization_of(config: Mapping[str, Any], files: Collection[str]) -> Quantization | None:
    """The quantization that config.json, or a file beside it, declares; None for floats."""
    for name, declared in _declared(config):
        method = declared.get("quant_method") if isinstance(declared, dict) else None
        for bits in ("4", "8"):  # transformers looks at these first
            if isinstance(declared, dict) and declared.get(f"load_in_{bits}bit") is True:
                method = f"bitsandbytes_{bits}bit"
                break
        return Quantization(method[:40] if isinstance(method, str) else "", name)
    return next((Quantization("", name) for name in QUANTIZER_FILES if name in files), None)


def _declared(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields that declare quantized weights, first the one that transformers reads."""
    text = config.get("text_config")
    for name in QUANTIZED:
        for part in (config, text if isinstance(text, dict) else {}):
            if part.get(name) is not None:
                yield name, part[name]
