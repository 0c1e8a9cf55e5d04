"""How much runs at once unless a setting says it: more on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from wherry.core.models.model import Device
from wherry.core.values.errors import ConfigError
from wherry.llm import LLM
from wherry.llm.engine import loading
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
