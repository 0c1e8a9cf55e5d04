"""benchmarks.llm: does it call the installed transformers as that wants to be called?"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, GenerationMixin

from benchmarks import llm


def test_the_settings_of_continuous_batching_are_those_of_the_installed_version() -> None:
    settings = llm.continuous_batching(2000)
    assert (settings.num_blocks, settings.max_batch_tokens) == (126, 512)


@dataclass
class Until517:
    block_size: int = 256
    num_blocks: int | None = None
    max_batch_tokens: int | None = None


@dataclass
class Later:
    page_size: int = 256
    num_blocks: int | None = None
    max_batch_tokens: int | None = None


@pytest.mark.parametrize(("kind", "name"), [(Until517, "block_size"), (Later, "page_size")])
def test_a_page_has_the_name_of_each_version(
    kind: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.ContinuousBatchingConfig", kind)
    assert getattr(llm.continuous_batching(64), name) == 32


def test_what_the_three_ways_pass_is_known() -> None:
    """Each way's arguments, bound to the signatures of the installed version."""
    called: list[str] = []

    class Net:
        config = type("Config", (), {"_attn_implementation": "sdpa"})()

        def generate(self, ids: Any, **options: Any) -> Any:
            inspect.signature(GenerationMixin.generate).bind(self, ids, **options)
            names = {*GenerationConfig().to_dict(), "attention_mask"}
            assert options.keys() <= names
            called.append("generate")
            return torch.zeros(len(ids), ids.shape[1] + options["max_new_tokens"])

        def generate_batch(self, prompts: Any, **options: Any) -> Any:
            given = inspect.signature(GenerationMixin.generate_batch).bind(self, prompts, **options)
            assert "kwargs" not in given.arguments
            called.append("generate_batch")
            answer = type("Answer", (), {"generated_tokens": [0] * 64})
            return {f"req_{n}": answer for n in range(len(prompts))}

        def set_attn_implementation(self, name: str) -> None:
            assert name == "sdpa"

    theirs = llm.Transformers.__new__(llm.Transformers)
    theirs.torch, theirs.device, theirs.net = torch, "cpu", Net()
    for way in (theirs.sequential, theirs.static_batch, theirs.continuous_batching):
        assert [len(answer) for answer in way(llm.equal(2))] == [64, 64]
    assert called == ["generate", "generate", "generate", "generate_batch"]
