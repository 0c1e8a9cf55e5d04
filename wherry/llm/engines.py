"""Which model serves the checkpoint that a target names, by which engine?"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from wherry.core.api import ConfigError, Model, Plugins

log = logging.getLogger("wherry")

#: What makes a Model of a checkpoint and options, by the kind: the text before a target's colon.
ENGINES: Final = Plugins(
    "engine",
    Model,
    {
        "llm": "wherry.llm.engine.llm:LLM",
        "llama-cpp": "wherry.llm.engine.llama_cpp:LlamaCpp",
        "vllm": "wherry.llm.engine.vllm_engine:VLLM",
    },
)
#: The text after it.
_CHECKPOINTS: Final = {
    "llm": "FOLDER, FILE.gguf, or llm:ORGANISATION/MODEL",
    "llama-cpp": "FILE.gguf",
    "vllm": "FOLDER, or vllm:ORGANISATION/MODEL",
}
#: The engines of other classes than LLM, as `llm:` calls them.
_OTHERS: Final = {"llama.cpp": "llama-cpp", "vllm": "vllm"}


def is_checkpoint(target: str) -> bool:
    """Whether a target names a checkpoint and its engine, not a module."""
    where, colon, _ = target.partition(":")
    may_be = colon and "/" not in where and not where.endswith(".py")
    return where in ENGINES.own or bool(may_be and where in ENGINES)


class TargetError(ConfigError):
    """Raised for a target that is not there: the command line is wrong."""


def language_model(kind: str, source: str) -> Model:
    """A checkpoint behind an engine: `llm:FOLDER`, `llm:FILE.gguf` or `llm:ORGANISATION/MODEL`,
    which choose the engine, or `llama-cpp:`, `vllm:` and those of packages, which name it.

    Arguments of the engine's class may follow: `llm:FOLDER?quantization=int8&cache_gb=2`, and for
    `llm:` the `engine`. ConfigError if there is none for the checkpoint.
    """
    checkpoint, engine_options = with_options(source)
    if not checkpoint:
        checkpoint = _CHECKPOINTS.get(kind, "CHECKPOINT")
        raise TargetError(f"{kind}: names no checkpoint; write {kind}:{checkpoint}")
    if kind == "llm":
        kind, engine_options = _chosen(checkpoint, engine_options)
    try:
        model: Model = ENGINES.make(kind, checkpoint, **engine_options)
    except TypeError as error:
        raise TargetError(f"{kind}:{source}: {error}") from None
    return model


def engine_of(
    checkpoint: str,
    *,
    name: str,
    requested: str | None,
    ours: Mapping[str, Any],
    vllm: Mapping[str, Any],
) -> tuple[Model, str]:
    """A model called `name` for a checkpoint, and its engine: the requested one, else vLLM if
    that is installed, else what is chosen. `ours` are arguments for wherry's engine, `vllm` for
    vLLM's; llama.cpp gets none. ConfigError if there is no engine for it."""
    from wherry.llm.engine.choice import AUTO, here

    engine = requested or ("vllm" if "vllm" in here().engines else AUTO)
    kind, engine_options = _chosen(checkpoint, {"engine": engine})
    arguments = {"llm": {**ours, **engine_options}, "vllm": vllm}.get(kind, {})
    made: Model = ENGINES.make(kind, checkpoint, name=name, **arguments)
    return made, "wherry" if kind == "llm" else kind


def with_engine(target: str, engine: str) -> str:
    """A target `llm:...` with the engine that the settings name, unless it names one itself."""
    kind, _, source = target.partition(":")
    if kind != "llm" or engine == "auto" or "engine" in with_options(source)[1]:
        return target
    return f"{target}{'&' if '?' in source else '?'}engine={engine}"


def with_options(source: str) -> tuple[str, dict[str, Any]]:
    """A checkpoint's name, and the arguments that follow it."""
    checkpoint, options = source, ""
    if not Path(source).exists():
        checkpoint, _, options = source.partition("?")
    return checkpoint, dict(_option(o) for o in options.split("&") if o)


def _chosen(checkpoint: str, engine_options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The kind of model for a checkpoint, and its arguments."""
    from wherry.llm.engine.checkpoint import missing
    from wherry.llm.engine.choice import AUTO, choose, facts_of, here, is_local

    engine = requested = engine_options.pop("engine", AUTO)
    if message := missing(checkpoint):
        raise TargetError(message)
    if is_local(checkpoint):  # the files of a hub id are looked at when they are here
        choice = choose(facts_of(checkpoint), here(), requested)
        engine = choice.engine
        if engine in _OTHERS:  # an LLM names its own when it is loaded
            about = {"checkpoint": Path(checkpoint).name, "engine": engine}
            log.info("engine", extra={**about, "reason": choice.reason})
    if engine in _OTHERS:
        return _OTHERS[engine], engine_options
    return "llm", engine_options | ({} if requested == AUTO else {"engine": requested})


def _option(text: str) -> tuple[str, Any]:
    """`name=value`: a number or true or false if it reads like one, else a text."""
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise TargetError(f"{text!r} after the checkpoint's name is not of the form name=value")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value
