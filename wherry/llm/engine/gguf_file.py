"""Can transformers convert this GGUF file exactly, and which tokenizer does it describe?

transformers silently drops what it cannot represent: scaled rotary embeddings, stored frequencies,
windows, head sizes. So the header is checked first, against a list of known keys. Each count in it
is checked against the bytes present. Its tokenizer is built here from the file's keys as llama.cpp
reads them: transformers takes the pre-tokenizer and the end tokens from the architecture's name,
whatever the file contains.
"""

# ruff: noqa: RUF001 - punctuation of other scripts is meant

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO, Final

from wherry.core.api import ConfigError

OTHER_ENGINE: Final = "serve it with llama-cpp:FILE.gguf"
MOST_KEYS: Final = 4096
MOST_TENSORS: Final = 65_536
#: A large vocabulary has 300,000 tokens.
MOST_ELEMENTS: Final = 1 << 21
#: A chat template is the longest text.
MOST_TEXT_BYTES: Final = 1 << 20

#: The struct format of each scalar type by its number; 8 is a string, 9 an array.
_SCALARS: Final = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_TEXT: Final = 8
_ARRAY: Final = 9

#: Architectures whose conversion keeps all of the known keys.
ARCHITECTURES: Final = ("llama", "qwen2", "qwen3")
_NEEDED: Final = (
    "block_count", "context_length", "embedding_length", "feed_forward_length",
    "attention.head_count", "attention.layer_norm_rms_epsilon", "rope.freq_base",
)  # fmt: skip
_FURTHER: Final = (
    "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "rope.dimension_count", "vocab_size",
)  # fmt: skip
_TENSOR: Final = re.compile(
    r"(token_embd|output|output_norm|blk\.\d+\.(attn_(norm|q|k|v|output|q_norm|k_norm)"
    r"|ffn_(norm|gate|up|down)))\.(weight|bias)"
)
#: The head size that transformers uses for qwen3, whatever the file contains.
_QWEN3_HEAD: Final = 128


@dataclass(frozen=True, slots=True)
class Header:
    """A file's keys, of an array only the length, and its tensors with their numbers of weights."""

    values: Mapping[str, Any]
    tensors: Mapping[str, int]


def check(name: str, file: BinaryIO, size: int) -> int:
    """The number of tensors of a GGUF file of `size` bytes. ConfigError if it is damaged or cannot
    be converted exactly. `name` is used in messages."""
    try:
        header = read(file, size)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
    if found := problem(header):
        raise ConfigError(f"{name}: {found}; {OTHER_ENGINE}")
    return len(header.tensors)


def read(file: BinaryIO, size: int) -> Header:
    """Read the header of a GGUF file of `size` bytes. ValueError names what is invalid."""
    reader = _HeaderReader(file, size)
    if reader.bytes(4) != b"GGUF":
        raise ValueError("it does not begin as a GGUF file does")
    version = reader.scalar("<I")
    if version not in (2, 3):
        raise ValueError(f"version {version} of GGUF is not known")
    tensors, keys = reader.scalar("<Q"), reader.scalar("<Q")
    if tensors > MOST_TENSORS or keys > MOST_KEYS:
        raise ValueError(f"its header counts {tensors} tensors and {keys} keys")
    values: dict[str, Any] = {}
    for _ in range(keys):
        key = reader.text()
        if key in values:
            raise ValueError(f"the key {key[:80]!r} is there twice")
        values[key] = reader.value(reader.scalar("<I"))
    return Header(values, dict(reader.tensor() for _ in range(tensors)))


def problem(header: Header) -> str:
    values = header.values
    kind = values.get("general.architecture")
    if kind not in ARCHITECTURES:
        return f"general.architecture = {str(kind)[:80]!r} is not converted exactly"
    for key in _NEEDED:
        if f"{kind}.{key}" not in values:
            return f"{kind}.{key} is missing"
    known = {f"{kind}.{key}" for key in (*_NEEDED, *_FURTHER)}
    for key, value in values.items():
        if key.startswith(("general.", "tokenizer.", "quantize.")) or key in known:
            continue
        if key == f"{kind}.rope.scaling.type" and value == "none":
            continue
        return f"{key[:80]} = {str(value)[:80]!r} would be left out when it is converted"
    heads, hidden = values[f"{kind}.attention.head_count"], values[f"{kind}.embedding_length"]
    if not all(isinstance(n, int) and n > 0 for n in (heads, hidden)):
        return f"{kind}.attention.head_count = {heads!r} must be a whole number above 0"
    size = _QWEN3_HEAD if kind == "qwen3" else hidden // heads
    if kind == "llama":
        size = values.get("llama.rope.dimension_count", size)
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        if values.get(f"{kind}.{key}", size) != size:
            return f"{kind}.{key} = {values[f'{kind}.{key}']!r} would be taken for {size}"
    if found := tokenizer_problem(values):
        return found
    for tensor in header.tensors:
        if not _TENSOR.fullmatch(tensor):
            return f"the tensor {tensor[:80]!r} would be left out when it is converted"
    return ""


class _HeaderReader:
    """Reads values from a file, never beyond its end."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size

    def bytes(self, count: int) -> bytes:
        self._left -= count
        if self._left < 0 or len(read := self._file.read(count)) != count:
            raise ValueError("it ends within its header")
        return read

    def scalar(self, form: str) -> Any:
        return struct.unpack(form, self.bytes(struct.calcsize(form)))[0]

    def text(self) -> str:
        length = self.scalar("<Q")
        if length > MOST_TEXT_BYTES:
            raise ValueError(f"a text in its header has {length} bytes")
        return self.bytes(length).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise ValueError(f"a value in its header is of the unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def _array(self) -> str:
        kind, count = self.scalar("<I"), self.scalar("<Q")
        if count > MOST_ELEMENTS:
            raise ValueError(f"a list in its header has {count} values")
        if kind in _SCALARS:
            self.bytes(count * struct.calcsize(_SCALARS[kind]))
        elif kind == _TEXT:
            for _ in range(count):
                self.text()
        else:
            raise ValueError(f"a list in its header is of the type {kind}")
        return f"a list of {count}"

    def tensor(self) -> tuple[str, int]:
        name = self.text()
        dimensions = self.scalar("<I")
        if dimensions > 4:
            raise ValueError(f"the tensor {name[:80]!r} has {dimensions} dimensions")
        sizes = [self.scalar("<Q") for _ in range(dimensions)]
        self.scalar("<I")
        offset = self.scalar("<Q")
        # Each type takes at least one bit for a weight.
        if max([1, *sizes]) > 8 * self._left or offset > self._left:
            raise ValueError(f"the tensor {name[:80]!r} is larger than the file")
        return name, prod(sizes)


_CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"


def _words(digits: str) -> str:
    """The pattern of cl100k and its descendants, which differ in how many digits are a word."""
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"
    )


_DIGIT: Final = (r"\p{N}", _GPT2)
_ONE: Final = (_words(""),)
_THREE: Final = (_words("{1,3}"),)
#: The patterns that split a text one after another, by tokenizer.ggml.pre, of those that occur with
#: the architectures here.
PATTERNS: Final[Mapping[str, tuple[str, ...]]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    **dict.fromkeys(("gpt-2", "trillion", "granite-docling", "a.x-4.0", "mellum"), (_GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "exaone", "minerva-7b"), _DIGIT),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "megrez"), _ONE),
    **dict.fromkeys(
        (
            "llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0", "smaug-bpe",
            "glm4", "chatglm-bpe",
        ),
        _THREE,
    ),
}  # fmt: skip
#: With these a word of the vocabulary is one token whatever the merges, and BOS is the default.
_WHOLE_WORDS: Final = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0")
#: Tokens that end an answer whatever the file calls them.
END_TEXTS: Final = frozenset((
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[", "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]",
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
))  # fmt: skip
_END_KEYS: Final = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
#: Types of tokens as tokenizer.ggml.token_type numbers them.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4


def tokenizer_problem(values: Mapping[str, Any]) -> str:
    kind = values.get("tokenizer.ggml.model")
    if kind != "gpt2":
        return f"tokenizer.ggml.model = {str(kind)[:80]!r} is not built exactly"
    pre = values.get("tokenizer.ggml.pre", "default")
    if pre not in PATTERNS:
        return f"tokenizer.ggml.pre = {str(pre)[:80]!r}: how it splits texts is not known"
    return ""


def end_tokens(values: Mapping[str, Any]) -> list[int]:
    tokens = values["tokenizer.ggml.tokens"]
    named = (values.get(f"tokenizer.ggml.{key}_token_id") for key in _END_KEYS)
    found = {token for token in named if isinstance(token, int) and token < len(tokens)}
    return sorted(found | {i for i, text in enumerate(tokens) if text in END_TEXTS})


def build_tokenizer(values: Mapping[str, Any]) -> Any:
    """A tokenizer of transformers from a file's keys, whole lists among them. ValueError if two
    tokens have one text."""
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    texts = [t or f"[EMPTY_{i}]" for i, t in enumerate(values["tokenizer.ggml.tokens"])]
    vocabulary = {text: number for number, text in enumerate(texts)}
    if len(vocabulary) != len(texts):
        raise ValueError("tokenizer.ggml.tokens has the same token twice")
    types = values.get("tokenizer.ggml.token_type") or [_NORMAL] * len(texts)
    inner = _byte_level(values, vocabulary)
    for text, kind in zip(texts, types, strict=True):
        special = kind in (_CONTROL, _UNKNOWN) or text in END_TEXTS
        if special or kind == _USER_DEFINED:
            inner.add_tokens([AddedToken(text, normalized=False, special=special)])
    named = {}
    for key, ours in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")):
        number = values.get(f"tokenizer.ggml.{key}_token_id")
        if number is not None and number < len(texts):
            named[f"{ours}_token"] = texts[number]
    inner.post_processor = _with_ends(values, named)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        clean_up_tokenization_spaces=False,
        chat_template=values.get("tokenizer.chat_template"),
        **named,
    )


def _byte_level(values: Mapping[str, Any], vocabulary: Mapping[str, int]) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    pre = values.get("tokenizer.ggml.pre", "default")
    # A merge's first part may begin with a blank of its own.
    pairs = (
        (m[: m.find(" ", 1)], m[m.find(" ", 1) + 1 :]) for m in values["tokenizer.ggml.merges"]
    )
    merges = [(a, b) for a, b in pairs if {a, b, a + b} <= vocabulary.keys()]
    made = Tokenizer(models.BPE(dict(vocabulary), merges, ignore_merges=pre in _WHOLE_WORDS))
    splits = [pre_tokenizers.Split(Regex(one), "isolated") for one in PATTERNS[pre]]
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_])
    made.decoder = decoders.ByteLevel()
    return made


def _with_ends(values: Mapping[str, Any], named: Mapping[str, str]) -> Any:
    """The processor that adds BOS and EOS to a text, if the file sets them."""
    from tokenizers.processors import TemplateProcessing

    texts = values["tokenizer.ggml.tokens"]
    default = values.get("tokenizer.ggml.pre") in _WHOLE_WORDS
    bos = named.get("bos_token") if values.get("tokenizer.ggml.add_bos_token", default) else None
    eos = named.get("eos_token") if values.get("tokenizer.ggml.add_eos_token", False) else None
    around = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
    specials = [(one, texts.index(one)) for one in dict.fromkeys(around) if one != "$A"]
    return TemplateProcessing(single=around, special_tokens=specials)
