"""Do architectures that run with our attention give the logits of transformers, token by token?"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.llm.engine.exact import FORMS
from wherry.llm.engine.checkpoint import Checkpoint
from wherry.llm.engine.engine import Engine
from wherry.llm.engine.known import ARCHITECTURES
from wherry.llm.engine.kv_cache import KVCache
from wherry.llm.engine.runner import ModelRunner, load_network
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.scheduler import Chunk
from wherry.llm.engine.sequence import Sequence

CPU = torch.device("cpu")
NEW_TOKENS = 8


def saved(kind: str, form: dict[str, Any], folder: Path) -> Path:
    """A checkpoint with random weights, large enough that attention is not the same everywhere."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from transformers.utils import logging

    torch.manual_seed(0)
    logging.disable_progress_bar()
    types = [kind_of for kind_of, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if name == kind]
    own = ARCHITECTURES.get(kind)
    config = CONFIG_MAPPING[own.model_type if own else types[0]](**form)
    net = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in net.named_parameters():
        if "bias" in name or "norm" in name:  # else they are all zeros or ones
            parameter.data += 0.3 * torch.randn_like(parameter)
        elif parameter.dim() > 1:
            parameter.data *= 3
    net.save_pretrained(folder)
    return folder


def answers(
    folder: Path, prompts: list[list[int]], *, exact: bool
) -> list[tuple[Sequence, dict[int, Tensor]]]:
    """Greedy answers from the engine, each with its logits by position: prompts in chunks, several
    at once, and each once more when its beginning is known."""
    network = load_network(Checkpoint(folder), dtype="float32", device=CPU, exact=exact)
    runner = ModelRunner(network, cache_tokens=480, block_size=4, dtype=torch.float32, device=CPU)
    logits: dict[Sequence, dict[int, Tensor]] = {}

    def run(chunks: list[Chunk]) -> Tensor:
        rows = runner.run(chunks)
        places = [(c, c.start + c.count - c.logits + n) for c in chunks for n in range(c.logits)]
        for row, (chunk, place) in zip(rows, places, strict=True):
            logits.setdefault(chunk.sequence, {})[place] = row.clone()
        return rows

    engine = Engine(
        run,  # type: ignore[arg-type]
        KVCache(120, 4),
        name="tiny",
        vocabulary=300,
        context_tokens=network.shape.max_positions,
        max_step_tokens=16,
    )
    wish = Sampling(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    sequences = []
    for known in (False, True):
        sequences += [engine.add(prompt, wish)[0] for prompt in prompts]
        while engine.busy:
            engine.step()
        assert (engine.cache.hit_tokens > 0) == known
    return [(sequence, logits[sequence]) for sequence in sequences]


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        pytest.param(kind, form, marks=[pytest.mark.full] if number else [])
        for kind, forms in FORMS.items()
        for number, form in enumerate(forms)
    ],
)
def test_the_logits_are_those_of_transformers(kind: str, form: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = saved(kind, FORMS[kind][form], tmp_path / "tiny")
    reference = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    dice = torch.Generator().manual_seed(4)
    prompts = [torch.randint(3, 300, (length,), generator=dice).tolist() for length in (5, 30, 60)]
    for sequence, logits in answers(folder, prompts, exact=kind in ARCHITECTURES):
        with torch.inference_mode():
            whole = reference(torch.tensor([sequence.tokens[:-1]]), use_cache=False).logits[0]
        assert len(logits) == NEW_TOKENS
        for place, row in logits.items():
            assert (row - whole[place]).abs().max() < 1e-4
            assert sequence.tokens[place + 1] == whole[place].argmax()
