"""Adapters (LoRA) by name: each row of a step goes through the adapter of its own request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import wherry
from tests.unit.llm.engine import tiny
from wherry.core.values.errors import AdapterNotFound, ConfigError
from wherry.llm import LLM
from wherry.llm.engine import lora
from wherry.llm.engine.adapters import AdapterFolders, adapter_config
from wherry.llm.engine.lora import read_pairs

GREEDY = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
PROMPT = [(7 * place) % 250 for place in range(40)]
TARGETS = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
CPU = torch.device("cpu")


def adapter(folder: Path, base: Path, *, seed: int, rank: int = 4, **config: Any) -> Path:
    """An adapter for a checkpoint, large enough to change what it says."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in load_file(base / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.endswith(TARGETS):
            key = f"base_model.model.{module}.lora_"
            tensors[f"{key}A.weight"] = torch.randn(rank, weight.shape[1])
            tensors[f"{key}B.weight"] = torch.randn(weight.shape[0], rank)
    save_file(tensors, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**about, **config}))
    return folder


def merged(base: Path, folder: Path, target: Path) -> Path:
    """The checkpoint with the adapter in its weights."""
    target.mkdir()
    for file in base.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    weights = load_file(base / "model.safetensors")
    for module, (down, up) in read_pairs(folder, torch.float32, CPU).items():
        weights[f"{module}.weight"] = weights[f"{module}.weight"] + up @ down
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("base"), "qwen3", seed=2)


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("first", "second")):
        adapter(folder / name, base, seed=seed, use_rslora=name == "second")
    return folder


@pytest.fixture
def runtime(base: Path, adapters: Path) -> Iterator[wherry.Runtime]:
    model = LLM(
        base, name="chat", adapters={"first": adapters / "first"}, adapter_folder=str(adapters),
        cache_gb=0.01, threads=1, isolation="thread",
    )  # fmt: skip
    with wherry.Runtime(model) as runtime:
        yield runtime


def said(runtime: wherry.Runtime, name: str = "", **parameters: Any) -> list[int]:
    given = {**GREEDY, **({"adapter": name} if name else {}), **parameters}
    deltas = runtime.stream("chat", token_ids=PROMPT, parameters=given)
    return [int(token) for delta in deltas for token in delta["token_ids"]]


def test_tokens_are_those_of_the_merged_model(
    runtime: wherry.Runtime, base: Path, adapters: Path, tmp_path: Path
) -> None:
    alone = tiny.reference(base, PROMPT, 12)
    assert said(runtime) == alone
    for name in ("first", "second"):
        expected = tiny.reference(merged(base, adapters / name, tmp_path / name), PROMPT, 12)
        assert expected != alone
        assert said(runtime, name) == expected
    assert said(runtime) == alone  # whose prefix is not that of an adapter


def test_requests_of_different_adapters_share_steps(runtime: wherry.Runtime) -> None:
    names = ["", "first", "second"] * 4
    expected = {name: said(runtime, name) for name in names}
    streams = [
        runtime.stream(
            "chat",
            token_ids=PROMPT,
            parameters={**GREEDY, **({"adapter": name} if name else {})},
        )
        for name in names
    ]
    for name, stream in zip(names, streams, strict=True):
        assert [int(t) for delta in stream for t in delta["token_ids"]] == expected[name]


def test_what_is_not_there_is_refused_by_its_name(runtime: wherry.Runtime) -> None:
    for name in ("third", "../first", "a/b", "."):
        with pytest.raises(AdapterNotFound, match="does not exist, nor has 'chat' such an adapter"):
            said(runtime, name)


def test_a_prefix_is_shared_with_the_same_salt_only(runtime: wherry.Runtime) -> None:
    def cached(salt: str) -> int:
        parameters = {**GREEDY, "max_tokens": 1, "cache_salt": salt}
        prompt = [5, *PROMPT, 6, 7, 8]
        *_, last = runtime.stream("chat", token_ids=prompt, parameters=parameters)
        return int(last["usage"]["cached_tokens"])

    assert [cached("one"), cached("one"), cached("two"), cached("two")] == [0, 32, 0, 32]


def test_adapters_come_and_go_with_their_folders(
    runtime: wherry.Runtime, base: Path, adapters: Path
) -> None:
    names = runtime.model("chat").model.variants
    assert names() == ["first", "second"]
    third = adapter(adapters / "third", base, seed=7)
    assert names() == ["first", "second", "third"]
    before = said(runtime, "third")
    adapter(third, base, seed=8)  # written anew: another adapter of the same name
    assert said(runtime, "third") != before
    (third / "adapter_config.json").unlink()
    assert names() == ["first", "second"]
    with pytest.raises(AdapterNotFound, match="the model 'third' does not exist"):
        said(runtime, "third")


def test_those_that_were_used_the_longest_ago_make_room(
    runtime: wherry.Runtime, base: Path, adapters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lora, "MOST_KEPT", 1)
    first, second = said(runtime, "first"), said(runtime, "second")
    assert (said(runtime, "first"), said(runtime, "second")) == (first, second)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"peft_type": "IA3"}, "peft_type = 'IA3'"),
        ({"r": 0}, "r = 0"),
        ({"r": 1 << 20}, "r = 1048576"),
        ({"r": "4"}, "expected|Expected"),
        ({"use_dora": True}, "use_dora"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights = 'pissa_niter_16'"),
        ({"bias": "all"}, "bias = 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"alpha_pattern": {"q": 1}}, "alpha_pattern"),
    ],
)
def test_what_would_change_the_tokens_otherwise_is_refused(
    base: Path, tmp_path: Path, config: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        adapter_config(adapter(tmp_path / "a", base, seed=0, **config))


@pytest.mark.parametrize(
    ("name", "shape", "problem"),
    [
        ("base_model.model.model.layers.0.mlp.up_proj.lora_A.weight", (4, 48), "B.* is missing"),
        ("base_model.model.model.layers.0.mlp.up_proj.lora_B.weight", (4, 48), "counterparts"),
        ("base_model.model.lm_head.lora_embedding_A", (4, 48), "is not computed"),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", (5, 48), "do not fit"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_refused(
    base: Path, tmp_path: Path, name: str, shape: tuple[int, ...], problem: str
) -> None:
    folder = adapter(tmp_path / "a", base, seed=0)
    tensors = load_file(folder / "adapter_model.safetensors")
    save_file({**tensors, name: torch.zeros(shape)}, folder / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match=problem):
        read_pairs(folder, torch.float32, CPU)


def test_a_rank_that_the_configuration_does_not_have_is_refused(base: Path, tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a", base, seed=0, rank=4, r=8)
    with pytest.raises(ConfigError, match=r"of rank 4, and adapter_config.json has r = 8: down"):
        read_pairs(folder, torch.float32, CPU)
    patterned = adapter(tmp_path / "b", base, seed=0, rank=4, r=8, rank_pattern={"q_proj": 4})
    assert read_pairs(patterned, torch.float32, CPU)


def test_an_adapter_of_another_model_is_refused_and_nobody_else(
    runtime: wherry.Runtime, adapters: Path, tmp_path: Path
) -> None:
    before = said(runtime, "first")
    other = tiny.make(tmp_path / "other", "llama")
    adapter(adapters / "other", other, seed=1)
    with pytest.raises(wherry.WherryError, match="features, and its matrices are for"):
        said(runtime, "other")
    assert said(runtime, "first") == before
    (adapters / "other" / "adapter_config.json").unlink()


def test_settings_name_adapters(adapters: Path) -> None:
    found = AdapterFolders.of("m", f"a={adapters / 'first'},b={adapters / 'second'}", None)
    assert found.names() == ["a", "b"]
    assert found.find("a") == adapters / "first"
    assert not AdapterFolders.of("m", None, None)
    for given, folder, problem in (
        ({"a/b": adapters / "first"}, None, "'a/b' is not a name"),
        ({"a": adapters}, None, "adapter_config.json"),
        (None, "nowhere", "nowhere: no such folder"),
    ):
        with pytest.raises(ConfigError, match=problem):
            AdapterFolders.of("m", given, folder)
