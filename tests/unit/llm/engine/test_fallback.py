"""Do architectures that are not written here run through transformers' modules?"""

from pathlib import Path

import pytest
import torch

from tests.unit.llm.engine import tiny
from wherry.core.values.errors import ConfigError
from wherry.llm.engine.checkpoint import Checkpoint
from wherry.llm.engine.engine import Engine
from wherry.llm.engine.fallback import TransformersNetwork
from wherry.llm.engine.kv_cache import KVCache
from wherry.llm.engine.runner import ModelRunner, load_network
from wherry.llm.engine.sampling import Sampling

CPU = torch.device("cpu")
WITH_HEAD_SIZE = {**tiny.SIZES, "head_dim": 8, "bos_token_id": 2, "pad_token_id": 0}
OTHERS: dict[str, tiny.Form] = {
    "gemma3": ("Gemma3TextConfig", {**WITH_HEAD_SIZE, "sliding_window": 16}),
    "gpt2": ("GPT2Config", {
        "vocab_size": 300, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 256,
        "bos_token_id": 0, "eos_token_id": 1,
    }),
    "mixtral": ("MixtralConfig", {**WITH_HEAD_SIZE, "num_local_experts": 4}),
}  # fmt: skip
GEMMA2: tiny.Form = ("Gemma2Config", WITH_HEAD_SIZE)


def saved(form: tiny.Form, folder: Path) -> Path:
    torch.manual_seed(0)
    tiny.network(form).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", OTHERS)
def test_their_greedy_tokens_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    folder = saved(OTHERS[family], tmp_path / family)
    network = load_network(Checkpoint(folder), dtype="float32", device=CPU, exact=False)
    runner = ModelRunner(network, cache_tokens=240, block_size=4, dtype=torch.float32, device=CPU)
    engine = Engine(
        runner.run,
        KVCache(60, 4),
        name=family,
        vocabulary=300,
        context_tokens=200,
        max_step_tokens=16,
    )
    dice = torch.Generator().manual_seed(4)
    prompts = [torch.randint(3, 250, (length,), generator=dice).tolist() for length in (5, 30, 44)]
    wish = Sampling(temperature=0.0, max_tokens=20, ignore_eos=True)
    sequences = [engine.add(prompt, wish)[0] for prompt in prompts]
    while engine.busy:
        engine.step()
    for prompt, sequence in zip(prompts, sequences, strict=True):
        assert sequence.tokens[len(prompt) :] == tiny.reference(folder, prompt, 20)


@pytest.mark.parametrize(
    "form",
    [
        GEMMA2,
        ("MambaConfig", {"vocab_size": 300, "hidden_size": 48, "num_hidden_layers": 2}),
    ],
)
def test_an_architecture_that_is_not_computed_exactly_is_refused(
    form: tiny.Form, tmp_path: Path
) -> None:
    folder = saved(form, tmp_path / "other")
    with pytest.raises(ConfigError, match=r"architectures = .*another engine"):
        load_network(Checkpoint(folder), dtype="float32", device=CPU)


def test_an_attention_with_an_option_that_is_not_known_is_refused(tmp_path: Path) -> None:
    folder = saved(GEMMA2, tmp_path / "other")
    with pytest.raises(ConfigError, match="its attention has 'softcap'"):
        TransformersNetwork(Checkpoint(folder), dtype="float32", device=CPU)
