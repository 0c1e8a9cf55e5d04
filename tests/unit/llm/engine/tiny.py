"""Checkpoints that are made in a moment: random weights, a tokenizer of bytes, a template.

transformers is imported by the functions, here as in the tests: importing it takes longer than
collecting all tests.
"""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

#: The name of a configuration's class in transformers, and its fields.
Form = tuple[str, dict[str, Any]]

VOCABULARY = 300
END, USER, ASSISTANT = 256, 257, 258
TEMPLATE = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + m.role) }}{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": END,
    "bos_token_id": None,
    "pad_token_id": None,
}

FAMILIES: dict[str, Form] = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama3-rope": (
        "LlamaConfig",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "mistral": ("MistralConfig", {"head_dim": 8, "sliding_window": 24}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "gemma": ("GemmaConfig", {"head_dim": 8}),
}


def network(form: Form) -> Any:
    """transformers' module with random weights."""
    import transformers

    transformers.utils.logging.disable_progress_bar()  # it would leave a thread behind
    name, fields = form
    config = getattr(transformers, name)(**fields)
    return transformers.AutoModelForCausalLM.from_config(config)


def make(folder: Path, family: str = "llama", *, seed: int = 0) -> Path:
    """A checkpoint of that family. The same seed gives the same weights."""
    torch.manual_seed(seed)
    name, fields = FAMILIES[family]
    net = network((name, SIZES | fields)).eval()
    for name, parameter in net.named_parameters():
        if "bias" in name or "norm" in name:  # else they are all zeros or ones
            parameter.data += 0.3 * torch.randn_like(parameter)
    net.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def tokenizer() -> PreTrainedTokenizerFast:
    """Each byte is a token, and a few words are."""
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate(alphabet)}
    inner = Tokenizer(models.BPE(vocabulary, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|end|>", "<|user|>", "<|assistant|>"])
    inner.add_tokens([f" word{number}" for number in range(VOCABULARY - 259)])
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>")
    fast.chat_template = TEMPLATE
    return fast


@lru_cache(maxsize=4)
def reference_network(folder: Path) -> Any:
    """transformers' network of a checkpoint, which a test does not change once it has asked."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def reference(folder: Path, prompt: list[int], new_tokens: int) -> list[int]:
    """What transformers' generate() gives, greedily, past the end of the text."""
    return [*_reference(folder, tuple(prompt), new_tokens)]


@cache  # tests of several ways to compute ask for the same answers
def _reference(folder: Path, prompt: tuple[int, ...], new_tokens: int) -> list[int]:
    net = reference_network(folder)
    net.generation_config.eos_token_id = None
    answer = net.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=new_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    tokens: list[int] = answer[0, len(prompt) :].tolist()
    return tokens
