"""What transformers needs for quantized weights, said before they are loaded.

`llm/engine/quantizers.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from wherry.llm.engine.quantizers import (
    NOT_LOADED,
    QUANTIZERS,
    Quantization,
    problem,
    quantization_of,
)

GPTQ = {"quantization_config": {"quant_method": "gptq", "bits": 4}}


def test_the_table_has_the_methods_of_transformers() -> None:
    # `make check` runs without transformers, `make test` with it.
    auto = pytest.importorskip("transformers.quantizers.auto")

    assert {*QUANTIZERS, *NOT_LOADED} == set(auto.AUTO_QUANTIZATION_CONFIG_MAPPING)


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


@pytest.mark.parametrize(
    ("said", "installed", "gpu", "words"),
    [
        (Quantization("fp8"), (), False, ""),
        (Quantization("gptq"), ("optimum", "gptqmodel"), False, ""),
        (Quantization("gptq"), ("optimum",), False, "pip install gptqmodel"),
        (Quantization("gptq"), (), True, "pip install optimum gptqmodel"),
        (Quantization("eetq"), ("kernels",), False, "transformers needs a GPU"),
        (Quantization("eetq"), ("kernels",), True, ""),
        (Quantization("GPTQ"), (), True, "no quantizer of this name"),
        (Quantization("gguf"), (), True, "does not load it from a folder"),
        (Quantization("hqq"), ("hqq",), True, "does not load it from a folder"),
        (Quantization("quanto"), ("optimum-quanto",), False, "does not load it from a folder"),
        (Quantization(""), (), True, "it names no quant_method"),
        (Quantization("", "quantize_config.json"), (), True, "write it there"),
    ],
)
def test_what_is_missing_is_said(
    said: Quantization, installed: tuple[str, ...], gpu: bool, words: str
) -> None:
    found = problem(said, installed, gpu=gpu)
    assert words in found
    assert bool(words) == bool(found)
