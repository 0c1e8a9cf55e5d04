"""What wherry's engine does not know runs by transformers' modules, in the same loop."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.unit.llm.engine import tiny
from wherry.core.values.errors import ConfigError
from wherry.llm.engine import fallback
from wherry.llm.engine.choice import facts_of
from wherry.llm.engine.loading import load_engine
from wherry.llm.engine.memory import needs_of
from wherry.llm.engine.sampling import Sampling

#: An architecture that the engine does not know, and its smallest configuration.
UNKNOWN = ("BitNetConfig", {"hidden_act": "relu2"})


def generated(folder: Path, prompt: list[int], count: int, **options: Any) -> list[int]:
    engine, _ = load_engine(str(folder), "m", "cpu", cache_gb=0.01, threads=1, **options)
    engine.add(prompt, Sampling(max_tokens=count, temperature=0.0, ignore_eos=True))
    tokens: list[int] = []
    while engine.busy:
        tokens += [event.sampled.token for event in engine.step() if event.sampled]
    return tokens


@pytest.fixture(scope="module")
def unknown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unknown")
    torch.manual_seed(3)
    name, fields = UNKNOWN
    net = tiny.network((name, tiny.SIZES | fields)).eval()
    for parameter in net.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    net.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with weights of 8 bits, which transformers unpacks where there is no GPU."""
    folder = tiny.make(tmp_path_factory.mktemp("packed"), seed=5)
    weights: dict[str, torch.Tensor] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        weights[name] = weight
        if name.endswith("proj.weight"):
            scale = weight.abs().max() / 448
            weights[name] = (weight / scale).to(torch.float8_e4m3fn)
            weights[f"{name}_scale_inv"] = scale.reshape(1, 1).float()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "activation_scheme": "dynamic",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("kind", ["unknown", "packed"])
def test_tokens_are_those_of_transformers(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)
    prompt = [(7 * place) % 250 for place in range(60)]
    expected = tiny.reference(folder, prompt, 12)
    assert generated(folder, prompt, 12) == expected
    assert generated(folder, prompt, 12, engine="transformers", max_step_tokens=16) == expected


def test_a_quantizer_that_nobody_knows_is_not_taken_for_floats(tmp_path: Path) -> None:
    """transformers would load these weights as they are, with a warning."""
    folder = tiny.make(tmp_path, seed=5)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "tomorrow", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="'tomorrow': transformers has no quantizer of this name"):
        generated(folder, [1], 1)


def test_what_is_known_runs_by_transformers_too(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path, seed=1)
    prompt = [1, 2, 3, 4]
    assert generated(folder, prompt, 8, engine="transformers") == generated(folder, prompt, 8)


@pytest.mark.parametrize("kind", ["unknown", "packed"])
def test_the_own_engine_refuses_both(kind: str, request: pytest.FixtureRequest) -> None:
    with pytest.raises(ConfigError, match="engine wherry: not computed exactly"):
        generated(request.getfixturevalue(kind), [1], 1, engine="wherry")


def test_attention_that_is_not_the_model_s_own_is_found(
    unknown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a model that adds something which is not an argument of its attention function: it runs
    with its own, which cannot be adapted nor have weights of 8 bits."""
    attend = fallback.TransformersNetwork._attend

    def another(self: Any, *tensors: Any, **options: Any) -> Any:
        found, _ = attend(self, *tensors, **options)
        return found + 0.1, None

    monkeypatch.setattr(fallback.TransformersNetwork, "_attend", another)
    assert generated(unknown, [1, 2, 3], 8) == tiny.reference(unknown, [1, 2, 3], 8)
    for options in ({"adapted": True}, {"quantization": "int8"}):
        with pytest.raises(ConfigError, match="the logits differ from transformers'"):
            generated(unknown, [1], 1, **options)


def test_code_of_a_checkpoint_is_never_run(unknown: Path, tmp_path: Path) -> None:
    config = json.loads((unknown / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling.Evil"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="auto_map"):
        generated(tmp_path, [1], 1, engine="transformers")


# Before it is loaded


def test_the_facts_and_needs_of_a_folder(packed: Path, tmp_path: Path) -> None:
    facts = facts_of(str(packed))
    assert (str(facts.quantization), facts.hindrance, facts.is_gguf) == ("fp8", "", False)
    assert "quantization_config" in facts.refusals[0]
    needs = needs_of(str(packed))  # unpacked where there is no GPU
    assert needs.weight_bytes("float32") == 4 * needs.parameters > 2 * needs.stored_bytes
    plain = tiny.make(tmp_path)
    assert not facts_of(str(plain)).refusals
    needs = needs_of(str(plain))
    stored = sum(weight.numel() for weight in load_file(plain / "model.safetensors").values())
    assert (needs.parameters, needs.stored_bytes) == (stored, 4 * stored)
    assert (needs.stored_as, needs.context_tokens) == ("float32", 256)
    assert needs.weight_bytes("bfloat16") == 2 * stored
    assert needs.cache_bytes(10, "float32") == 10 * 2 * 3 * 2 * 8 * 4  # layers, heads, width
    assert (needs.has_chat_template, needs.tool_parser) == (True, "hermes")


def test_an_adapter_alone_is_no_model(tmp_path: Path) -> None:
    tiny.make(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "merge it" in facts_of(str(tmp_path)).hindrance


def test_a_table_of_indices_is_no_quantized_weight(unknown: Path, tmp_path: Path) -> None:
    """As DeepSeek V4 has them. Weights of 8 bits without a word about it are still refused."""
    folder = tmp_path / "indices"
    shutil.copytree(unknown, folder)
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"table": torch.arange(9)}, folder / "model.safetensors")
    assert generated(folder, [1, 2, 3], 4) == tiny.reference(unknown, [1, 2, 3], 4)
    save_file(weights | {"table": torch.zeros(9, dtype=torch.int8)}, folder / "model.safetensors")
    with pytest.raises(ConfigError, match="'table' is stored as I8"):
        generated(folder, [1], 1)
