"""llm/engine/damaged.py: what no engine may be given, said before any library sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wherry.core.models.model import Device
from wherry.core.values.errors import ConfigError
from wherry.llm import LLM
from wherry.llm.engine import loading
from wherry.llm.engine.choice import ENGINES, Here, choose, facts_of
from wherry.llm.engine.damaged import hindrance
from wherry.llm.engine.loading import EngineSettings

CPU, GPU = Device("cpu"), Device("cuda", 0)


@pytest.mark.parametrize(
    ("device", "settings", "overrides", "active"),
    [
        (CPU, {}, {}, 64),
        (GPU, {}, {}, 256),
        (GPU, {"max_running": 64}, {}, 64),
        (GPU, {"max_running": 7}, {}, 7),
        (CPU, {"max_running": 300}, {}, 300),
        (GPU, {}, {"max_batch_size": 16}, 16),
    ],
)
def test_requests_of_an_instance(
    device: Device, settings: dict[str, Any], overrides: dict[str, Any], active: int
) -> None:
    model = LLM("nowhere", **settings)
    assert model.most_active(model.config(**overrides), device) == active


@pytest.mark.parametrize(
    ("device", "settings", "sizes"),
    [
        ("cpu", {}, (64, 512)),
        ("cuda:1", {}, (256, 8192)),
        ("cuda", {"max_running": None, "max_step_tokens": None}, (256, 8192)),
        ("cuda", {"max_step_tokens": 512}, (256, 512)),
        ("cpu", {"max_running": None, "max_step_tokens": 100}, (64, 100)),
    ],
)
def test_sequences_and_tokens_of_a_step(
    device: str, settings: dict[str, Any], sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[EngineSettings] = []

    def check(self: EngineSettings, name: str) -> None:
        found.append(self)
        raise ConfigError("enough")

    monkeypatch.setattr(loading.EngineSettings, "check", check)
    with pytest.raises(ConfigError, match="enough"):
        loading.load_engine("nowhere", "m", device, **settings)
    assert (found[0].max_running, found[0].max_step_tokens) == sizes


SOUND = {"model_type": "strange", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"hidden_size": "32"}, "hidden_size = '32': must be a whole number"),
        ({"hidden_size": 10**9}, "hidden_size = 1000000000"),
        ({"hidden_size": -32}, "hidden_size = -32"),
        ({"n_embd": 1.5}, "n_embd = 1.5"),
        ({"num_hidden_layers": 10**5}, "from 0 to 4096: download"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True"),
        ({"vocab_size": 10**12}, "vocab_size = 1000000000000"),
        ({"num_attention_heads": [4, "4"]}, "num_attention_heads = [4, '4']"),
        ({"text_config": {"num_layers": 10**9}}, "num_layers = 1000000000"),
        ({"model_type": ""}, "model_type = '': it names no kind"),
        ({"model_type": [1] * 50}, "model_type = [1, 1"),
        ({"architectures": {"a": 1}}, "architectures = {'a': 1}: must be a list of names"),
        ({"architectures": [None]}, "architectures = [None]: must be a list of names"),
        ({"max_position_embeddings": -1}, "max_position_embeddings = -1: must be at least 1"),
        ({"text_config": {"n_positions": 0}}, "n_positions = 0: must be at least 1"),
        ({"is_encoder_decoder": True, "model_type": "t5"}, "encoder with a decoder (T5"),
    ],
)
def test_what_is_wrong_for_every_engine_is_named(changed: dict[str, Any], problem: str) -> None:
    found = hindrance({**SOUND, **changed})
    assert problem in found
    assert len(found) < 300


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"num_attention_heads": None},
        {"num_attention_heads": 0},
        {"intermediate_size": [64, 128]},
        {"max_position_embeddings": 10**18},
        {"is_encoder_decoder": False},
        {"text_config": "none"},
        {"rope_theta": {"full_attention": 1e6}},
    ],
)
def test_what_some_engine_may_know_is_left_to_it(changed: dict[str, Any]) -> None:
    assert hindrance({**SOUND, **changed}) == ""


@pytest.mark.parametrize("wanted", ["auto", *ENGINES])
def test_no_engine_is_chosen_for_it(tmp_path: Path, wanted: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SOUND, "num_hidden_layers": 10**9}))
    with pytest.raises(ConfigError, match="num_hidden_layers = 1000000000"):
        choose(facts_of(str(tmp_path)), Here(frozenset(ENGINES)), wanted)
