"""How is a configuration of any architecture made tiny, so that its parts still fit each other?

Its class's default is divided, not replaced: heads by one power of two, features of a head by
another, widths by their product, so that heads times features of a head stay the width, whatever
the fields are called. Layers are a choice of the default's that has each kind of them; windows are
shorter than the prompts, so that they are seen. The same holds for configurations within it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

VOCABULARY: Final = 300
POSITIONS: Final = 256
#: Tokens that a window or a chunk of attention has: fewer than a prompt.
WINDOW: Final = 16
EXPERTS: Final = 8
CHOSEN_EXPERTS: Final = 2
#: How many layers a configuration keeps, unless it has more kinds of them: tried in this order, as
#: some kinds are told by a period and not by a list.
LAYERS: Final = (2, 4, 8, 12)
#: What heads, their features, and all other sizes are not divided below.
LEAST_HEADS, LEAST_FEATURES, LEAST_SIZE = 2, 8, 8
#: Fields that a class's default leaves out although its model needs them, and layers that are told
#: in a way of its own.
LEFT_OUT: Final[Mapping[str, Mapping[str, Any]]] = {
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "dory": {
        "num_hidden_layers": 8, "n_input_layers": 2, "n_recurrent_layers": 4, "n_output_layers": 2,
        "layer_types": ["sliding_attention", "mlp"] * 3 + ["full_attention", "mlp"],
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    "qwen4_exp_text": {
        "indexer_budget": 16, "indexer_compress_ratio": 4, "indexer_head_dim": 16,
        "indexer_kv_heads": 1, "indexer_n_heads": 2, "ngram_vocab_size_base": 64,
    },
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},
    "xmod": {"default_language": "en_XX"},
}  # fmt: skip

_TOKEN = re.compile(r"token_(id|index)s?$")
_LAYERS = re.compile(r"layers?$|^depth$|_layers_")
_HEADS = re.compile(r"(^|_)n?_?heads?(_kv)?$|n_?groups$|query_groups$")
_FEATURES = re.compile(r"head_?(dim|size|width)|(^|_)d_head|(^|_)(d_kv|kv_channels|rotary_dim)$")
_WINDOW = re.compile(r"window|chunk_size|attention_chunk|local_blocks")
_EXPERTS = re.compile(r"(^|_)(n|num|routed|local)_?(routed_|local_)?experts?$")
#: Tokens that an indexer chooses stay many: of equal scores in a tiny model any may be chosen.
_CHOSEN = re.compile(r"experts_per_tok|(?<!index_)(?<!indexer_)top_?k$|^k$|per_token$")
_WIDTH = re.compile(
    r"size|dim|width|d_model|d_ff|d_ssm|d_inner|n_embd|n_inner|channels|features|rank|hidden"
)
#: What a size must not be taken for: it counts something of the input, or of a kernel.
_NO_WIDTH = re.compile(
    r"patch|kernel|image|state|conv|max_|_map|stride|num_|position|block|chunk|expand"
)
#: Numbers for fields that are None by default, if the model needs them.
_OF_NONE: Final[Mapping[str, int]] = {
    "num_experts_per_tok": CHOSEN_EXPERTS, "n_routed_experts": EXPERTS, "num_experts": EXPERTS,
    "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "n_group": 1, "topk_group": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Divisors:
    """By what a configuration's sizes are divided: powers of two."""

    heads: int
    features: int

    @property
    def width(self) -> int:
        return self.heads * self.features

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Divisors:
        numbers = {name: value for name, value in said.items() if type(value) is int and value > 0}
        heads = [n for name, n in numbers.items() if _HEADS.search(name) and n > 1]
        features = [n for name, n in numbers.items() if _FEATURES.search(name)]
        widths = [n for n in map(numbers.get, ("hidden_size", "n_embd", "d_model", "emb_dim")) if n]
        counts = (
            "num_attention_heads",
            "n_head",
            "decoder_attention_heads",
            "num_heads",
            "n_heads",
        )
        counted = [n for n in map(numbers.get, counts) if n]
        features += [width // count for width in widths[:1] for count in counted[:1]]
        most = max(heads, default=1)
        if not features:  # no attention: the width itself
            features = [min(widths, default=1) // most]
        return cls(
            _power([most], lambda power: most // power >= LEAST_HEADS),
            _power(features, lambda power: all(n // power % LEAST_FEATURES == 0 for n in features)),
        )

    @classmethod
    def of_all(cls, default: Any) -> Divisors:
        """Those of a configuration and of all within it: one part's width is another's input."""
        found = [cls.of(part.to_dict()) for part in _parts(default)]
        found = [one for one in found if one.width > 1] or [cls(1, 1)]
        return cls(min(one.heads for one in found), min(one.features for one in found))


def _parts(config: Any) -> Iterator[Any]:
    """A configuration and all within it."""
    yield config
    for value in vars(config).values():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from _parts(value)


def candidates(kind: type[Any]) -> Iterator[Any]:
    """Configurations of this class, made tiny: with more layers each. Raises what the class raises
    for the first; others that it refuses are left out."""
    for place, layers in enumerate(LAYERS):
        try:
            yield tiny(kind, layers)
        except Exception:
            if place == 0:
                raise


def tiny(kind: type[Any], layers: int) -> Any:
    """A configuration of this class, made tiny. Raises what the class raises for it."""
    return _Tiny(kind(), layers).config()


class _Tiny:
    """One configuration that is made tiny, within another or by itself."""

    def __init__(self, default: Any, layers: int, by: Divisors | None = None) -> None:
        self._default = default
        self._said = said = default.to_dict()
        self._least = layers
        self._by = by or Divisors.of_all(default)
        self._count = _layer_count(said)
        self._kept = self._layers_kept()
        self._tokens = 0

    def config(self) -> Any:
        made = self._made()
        for name, value in LEFT_OUT.get(self._default.model_type, {}).items():
            if hasattr(part := made.get(name), "to_dict"):
                for one in value:
                    setattr(part, one, value[one])
            else:
                made[name] = value
        return type(self._default)(**made)

    def _made(self) -> dict[str, Any]:
        # What the class computes itself is not a parameter of it.
        known = {*inspect.signature(type(self._default)).parameters, "per_layer_config"}
        said = {name: value for name, value in self._said.items() if name in known}
        made = {name: self._value(name, value) for name, value in said.items()}
        if (shared := self._said.get("num_kv_shared_layers")) and self._count:
            made["num_kv_shared_layers"] = sum(n >= self._count - shared for n in self._kept)
        if set(made.get("layer_types") or ()) == {"linear_attention"}:
            made["layer_types"][-1] = "full_attention"  # without one there is no generate()
        return made

    def _value(self, name: str, value: Any) -> Any:
        if value is None:
            return self._of_none(name)
        if isinstance(value, Mapping):
            return self._mapping(name, value)
        if isinstance(value, list | tuple):
            return self._list(name, value)
        if type(value) is int and value > 0:
            return self._number(name, value)
        # A language model's: without it some look at later tokens.
        return True if name == "is_decoder" else value

    def _of_none(self, name: str) -> Any:
        heads = self._said.get("num_attention_heads")
        if name == "layer_types" and self._count:
            kinds = ["conv"] if "conv_L_cache" in self._said else []
            return [*kinds, *["full_attention"] * (len(self._kept) - len(kinds))]
        if name == "attn_layer_indices":
            return [1]
        if name == "head_dim" and heads:
            return self._said["hidden_size"] // heads // self._by.features
        if name == "num_key_value_heads" and heads:
            return heads // self._by.heads
        return _OF_NONE.get(name)

    def _mapping(self, name: str, value: Mapping[Any, Any]) -> Any:
        if name == "per_layer_config":
            places = {place: new for new, place in enumerate(self._kept)}
            own = {places[int(key)]: v for key, v in value.items() if int(key) in places}
            return {key: {one: self._value(one, v[one]) for one in v} for key, v in own.items()}
        if hasattr(part := getattr(self._default, name, None), "to_dict"):
            return _Tiny(part, self._least, self._by).config()
        return {one: self._list(one, v) if isinstance(v, list) else v for one, v in value.items()}

    def _list(self, name: str, value: Sequence[Any]) -> list[Any]:
        if len(value) == self._count and self._count > 1:
            chosen = [value[place] for place in self._kept]
            return [self._number(name, n) if type(n) is int and n > 0 else n for n in chosen]
        if name.endswith("_section"):
            return [max(1, n // self._by.features) for n in value]
        if re.search(r"dim|channels", name) and all(type(n) is int for n in value):
            return [max(1, n // self._by.width) for n in value]
        if _LAYERS.search(name) and all(type(n) is int for n in value):
            return [n for n in value if n < len(self._kept)]
        return list(value)

    def _number(self, name: str, value: int) -> int:
        if _TOKEN.search(name):
            if value < VOCABULARY:
                return value
            self._tokens += 1  # another one for each, at the end of the vocabulary
            return VOCABULARY - self._tokens
        for pattern, most in (
            ("vocab", VOCABULARY),
            ("multiple_of", LEAST_SIZE),
            ("position|n_ctx|max_seq", POSITIONS),
            (_LAYERS, len(self._kept) or self._least),
            (_WINDOW, WINDOW),
            (_CHOSEN, CHOSEN_EXPERTS),
            (_EXPERTS, EXPERTS),
            ("^(n_group|num_expert_group|topk_group)$", 1),
        ):
            if re.search(pattern, name):
                return min(value, most)
        if _FEATURES.search(name):
            return max(LEAST_FEATURES // 2, value // self._by.features)
        if _HEADS.search(name):
            return max(1, value // self._by.heads)
        if value > LEAST_SIZE and _WIDTH.search(name) and not _NO_WIDTH.search(name):
            # Products of groups take multiples of 16 bytes.
            return -(-value // self._by.width // LEAST_SIZE) * LEAST_SIZE
        return value

    def _layers_kept(self) -> list[int]:
        """The places of layers that have each kind, by all lists that tell of layers; at least as
        many as asked."""
        count, shared = self._count, self._said.get("num_kv_shared_layers") or 0
        lists = [v for v in self._said.values() if isinstance(v, list | tuple) and len(v) == count]
        first: dict[tuple[Any, ...], int] = {}
        for place in range(count):
            first.setdefault((place >= count - shared, *(repr(v[place]) for v in lists)), place)
        kept = set(first.values())
        rest = (place for place in range(count) if place not in kept)
        while len(kept) < min(self._least, count):
            kept.add(next(rest))
        return sorted(kept)


def _power(numbers: list[int], enough: Callable[[int], bool]) -> int:
    """The largest power of two that divides all of them, while enough is left."""
    power = 1
    while all(numbers) and enough(2 * power) and not any(n % (2 * power) for n in numbers):
        power *= 2
    return power


def _layer_count(said: Mapping[str, Any]) -> int:
    named = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
    return next((said[name] for name in named if type(said.get(name)) is int), 0)
