"""A damaged tokenizer is refused in one short error with a remedy.

`llm/engine/tokenizer_files.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.llm.engine import tiny
from wherry.core.values.errors import ConfigError
from wherry.llm.engine.choice import facts_of
from wherry.llm.engine.tokenizer import Tokenizer
from wherry.llm.engine.tokenizer_files import problem

CONFIG = {"vocab_size": tiny.VOCABULARY}
WORDS = {f"word{number}": number for number in range(9)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.tokenizer().save_pretrained(tmp_path)
    return tmp_path


def change(file: Path, how: Callable[[Any], object]) -> None:
    told = json.loads(file.read_text())
    how(told)
    file.write_text(json.dumps(told))


def added(number: int, content: str = "<x>") -> dict[str, Any]:
    return {"id": number, "content": content, "special": True}


def test_a_sound_one_has_no_problem(folder: Path) -> None:
    assert problem(folder, CONFIG) == ""
    assert problem(folder, {"text_config": CONFIG}) == ""
    assert problem(folder, {}) == ""


@pytest.mark.parametrize(
    ("name", "raw", "said"),
    [
        ("tokenizer.json", b'{"model": {"vocab": {"a": 0, ', "tokenizer.json: DecodeError"),
        ("tokenizer.json", b"", "tokenizer.json: DecodeError"),
        ("tokenizer.json", b"[]", "Expected `object`, got `array`"),
        ("tokenizer.json", b"[" * 100_000, "tokenizer.json: "),
        ("tokenizer.json", b'{"model": {"type": "BPE"}}', "missing required field `vocab`"),
        ("tokenizer.json", b'{"model": {"vocab": {}}}', "it has no tokens"),
        ("tokenizer.json", b'{"model": {"vocab": {"a": "b"}}}', "Expected `int`, got `str`"),
        ("tokenizer_config.json", b'{"eos_tok', "tokenizer_config.json: DecodeError"),
        ("special_tokens_map.json", b"7", "special_tokens_map.json: "),
        ("generation_config.json", b'{"eos_token_id": [1,', "generation_config.json: DecodeError"),
    ],
)
def test_a_file_that_is_damaged_is_named(folder: Path, name: str, raw: bytes, said: str) -> None:
    (folder / name).write_bytes(raw)
    found = problem(folder, CONFIG)
    assert found.startswith(name)
    assert said in found
    assert "download the checkpoint again" in found
    assert len(found) < 400
    assert "\n" not in found


@pytest.mark.parametrize(
    ("change_it", "said"),
    [
        (lambda t: t["model"]["vocab"].update({"zz": 300}), "go up to 300, and"),
        (lambda t: t["model"]["vocab"].update({"zz": 2**32 - 1}), "go up to 4294967295"),
        (lambda t: t["model"].update(vocab=WORDS), "model.merges has none, so that 9 of 9"),
        (lambda t: t["model"].update(vocab=WORDS, merges=None), "could never be made"),
        (lambda t: t["model"].update(type="Unigram", vocab=[["a", 0.0]] * 999), "go up to 9"),
        (lambda t: t["added_tokens"][0].update(id=9999), "eos_token '<|end|>' is 9999"),
    ],
)
def test_a_vocabulary_that_is_not_the_model_s_is_refused(
    folder: Path, change_it: Callable[[Any], object], said: str
) -> None:
    change(folder / "tokenizer.json", change_it)
    assert said in problem(folder, CONFIG)


@pytest.mark.parametrize("to", ["tokenizer.json", "nothing.json"])
def test_a_link_that_leads_to_no_file_is_named(folder: Path, to: str) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to(to)
    assert "tokenizer.json is a link to nothing" in problem(folder, CONFIG)
    with pytest.raises(ConfigError, match="its tokenizer cannot be read: "):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    ("change_it", "said"),
    [
        (lambda t: t.update(eos_token="<nowhere>"), "eos_token '<nowhere>' is 300"),
        (lambda t: t.update(eos_token={"content": "<nowhere>"}), "eos_token '<nowhere>'"),
    ],
)
def test_settings_that_name_what_is_not_there_are_refused(
    folder: Path, change_it: Callable[[Any], object], said: str
) -> None:
    change(folder / "tokenizer_config.json", change_it)
    assert said in problem(folder, CONFIG)


def test_words_without_the_file_of_merges_are_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": "b"}')
    assert problem(tmp_path, CONFIG).startswith("vocab.json: ")
    (tmp_path / "vocab.json").write_text(json.dumps(WORDS))
    assert problem(tmp_path, CONFIG).startswith("merges.txt: it is missing")
    (tmp_path / "merges.txt").write_text("w o")
    assert problem(tmp_path, CONFIG) == ""


def test_what_published_checkpoints_have_is_fine(folder: Path) -> None:
    """A token for images beyond the vocabulary, words that need no merges."""
    change(folder / "tokenizer.json", lambda t: t["added_tokens"].append(added(300)))
    (folder / "generation_config.json").write_text('{"eos_token_id": [256, 50256]}')
    assert problem(folder, CONFIG) == ""
    change(folder / "tokenizer.json", lambda t: t["model"].update(vocab=WORDS, ignore_merges=True))
    assert problem(folder, CONFIG) == ""


def test_it_is_refused_before_weights_are_looked_at(folder: Path) -> None:
    from wherry.llm.engine.choice import Here, choose

    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **CONFIG}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer\.json: .*download the checkpoint again"):
        choose(facts_of(str(folder)), Here(frozenset(("wherry", "vllm"))), "vllm")
