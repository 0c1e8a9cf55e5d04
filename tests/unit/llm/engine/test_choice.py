"""llm/engine/choice.py: which engine serves a checkpoint, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wherry.core.values.errors import ConfigError
from wherry.llm.engine.choice import (
    ENGINES,
    EngineChoice,
    Facts,
    Here,
    Quantization,
    choose,
    quantization_of,
)

GPTQ = {"quantization_config": {"quant_method": "gptq", "bits": 4}}


@pytest.mark.parametrize(
    ("config", "files", "found"),
    [
        ({}, (), None),
        ({"quantization_config": None}, ("config.json",), None),
        (GPTQ, ("quantize_config.json",), Quantization("gptq")),
        ({"text_config": GPTQ}, (), Quantization("gptq")),
        ({"text_config": "none"}, (), None),
        (
            {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
            (),
            Quantization("bitsandbytes_8bit"),
        ),
        ({"quantization_config": {"load_in_4bit": True}}, (), Quantization("bitsandbytes_4bit")),
        ({"quantization_config": {"bits": 4}}, (), Quantization("")),
        ({"quantization_config": {"quant_method": ["gptq"]}}, (), Quantization("")),
        ({"quantization_config": "gptq"}, (), Quantization("")),
        ({"compression_config": {"a": 1}}, (), Quantization("", "compression_config")),
        ({"quantization": {"bits": 4}}, (), Quantization("", "quantization")),
        ({}, ("quantize_config.json",), Quantization("", "quantize_config.json")),
    ],
)
def test_what_files_say_of_their_weights(
    config: dict[str, Any], files: tuple[str, ...], found: Quantization | None
) -> None:
    assert quantization_of(config, files) == found


ALL = frozenset(ENGINES)
OURS = Here(frozenset(("wherry", "transformers")))
KNOWN = Facts("known")
UNKNOWN = Facts("unknown", refusals=("architectures = ['Strange']: not computed exactly here",))
PACKED = Facts("packed", refusals=("quantization_config = ...",), quantization=Quantization("gptq"))
ELSEWHERE = replace(PACKED, quantization=Quantization("", "quantize_config.json"))
GGUF = Facts("file.gguf", is_gguf=True)
STRANGE_GGUF = Facts("file.gguf", is_gguf=True, refusals=("general.architecture = 'strange'",))
CODE = Facts("code", refusals=("auto_map",), hindrance="auto_map: it brings code of its own")


@pytest.mark.parametrize(
    ("facts", "here", "engine", "why"),
    [
        (KNOWN, OURS, "wherry", "exactly"),
        (KNOWN, Here(ALL, gpu=True), "wherry", "exactly"),
        (UNKNOWN, OURS, "transformers", "Strange"),
        (UNKNOWN, Here(ALL), "transformers", "Strange"),  # vLLM is for GPUs
        (UNKNOWN, Here(ALL, gpu=True), "vllm", "there is a GPU"),
        (PACKED, Here(ALL), "transformers", "quantized by gptq"),
        (PACKED, Here(ALL, gpu=True), "vllm", "quantized by gptq"),
        (GGUF, Here(ALL), "llama.cpp", "as they are"),
        (GGUF, OURS, "wherry", "llama.cpp is not installed"),
        (STRANGE_GGUF, Here(ALL), "llama.cpp", "as they are"),
    ],
)
def test_the_files_and_the_machine_decide(facts: Facts, here: Here, engine: str, why: str) -> None:
    choice = choose(facts, here)
    assert choice.engine == engine
    assert why in choice.reason


@pytest.mark.parametrize(
    ("facts", "here", "wanted", "problem"),
    [
        (CODE, Here(ALL), "auto", "code: auto_map: it brings code"),
        (CODE, Here(ALL), "transformers", "code: auto_map: it brings code"),
        (STRANGE_GGUF, OURS, "auto", "not installed: pip install 'wherry[llama-cpp]'"),
        (KNOWN, Here(frozenset()), "auto", "not installed: pip install 'wherry[llm]'"),
        (KNOWN, OURS, "vllm", "engine vllm is not installed: pip install 'wherry[vllm]'"),
        (ELSEWHERE, OURS, "auto", "quantize_config.json: transformers looks for quantized"),
        (ELSEWHERE, Here(ALL, gpu=True), "transformers", "write it there, with its quant_method"),
        (KNOWN, Here(ALL), "llama.cpp", "reads .gguf files only"),
        (GGUF, Here(ALL), "vllm", "is for engine llama.cpp"),
        (GGUF, Here(ALL), "transformers", "is for engine llama.cpp"),
        (UNKNOWN, Here(ALL), "wherry", "not computed exactly:\n  architectures"),
        (KNOWN, Here(ALL), "tensorrt", "engine must be one of auto, wherry, transformers"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(
    facts: Facts, here: Here, wanted: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        choose(facts, here, wanted)
    assert problem in str(refused.value)


@pytest.mark.parametrize("engine", ["wherry", "transformers", "vllm"])
def test_the_setting_comes_first(engine: str) -> None:
    assert choose(KNOWN, Here(ALL), engine) == EngineChoice(engine, "the setting engine names it")
