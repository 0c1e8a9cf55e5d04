"""triton/repository/checksum.py: Triton's repository agent `checksum`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from wherry.core.values.errors import ConfigError
from wherry.triton.backends.load import backend_for
from wherry.triton.repository import pbtxt
from wherry.triton.repository.checksum import mismatches
from wherry.triton.repository.problems import BadConfig
from wherry.triton.repository.triton_config import TritonConfig
from wherry.triton.repository.validate import without_effect

CONTENT = b"embedding" * 1000


def config(key: str, value: str, agent: str = "checksum") -> TritonConfig:
    agents = f'{{ name: "{agent}" parameters {{ key: "{key}" value: "{value}" }} }}'
    text = f'name: "m" backend: "python" model_repository_agents {{ agents [ {agents} ] }}'
    return pbtxt.parse(text, "config.pbtxt")


def told(folder: Path, given: TritonConfig) -> list[str]:
    return [str(problem) for problem in mismatches(str(folder), given)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "table").write_bytes(CONTENT)
    return tmp_path


@pytest.mark.parametrize("algorithm", ["MD5", "md5", "SHA256", "sha512"])
def test_a_file_with_the_right_checksum_is_fine(folder: Path, algorithm: str) -> None:
    value = hashlib.new(algorithm.lower(), CONTENT).hexdigest()
    assert told(folder, config(f"{algorithm}:1/table", value)) == []
    assert told(folder, config(f"{algorithm}:1/table", value.upper())) == []


def test_another_file_is_refused_in_tritons_words(folder: Path) -> None:
    found = hashlib.md5(CONTENT).hexdigest()
    assert told(folder, config("MD5:1/table", "00")) == [
        "model_repository_agents.agents[0].parameters.MD5:1/table: Mismatched MD5 hash for file"
        f" 1/table, expect: 00, got: {found}"
    ]


def test_a_file_that_is_not_there_is_said(folder: Path) -> None:
    (problem,) = told(folder, config("MD5:1/other", "00"))
    assert "failed to open file '1/other': No such file" in problem


def test_the_model_is_not_loaded(folder: Path) -> None:
    """Before any of its code runs."""
    (folder / "1" / "model.py").write_text("raise SystemExit('it has run')")
    with pytest.raises(ConfigError, match="Mismatched MD5 hash"):
        backend_for(str(folder), "1", config("MD5:1/model.py", "00"))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("1/table", "the key must be ALGORITHM:FILE"),
        ("CRC32:1/table", "the algorithm one of md5, sha1"),
        ("MD5:", "it names no file"),
        ("MD5:../other/1/model.py", "must be a file of the model's folder"),
        ("MD5:/etc/hostname", "must be a file of the model's folder"),
    ],
)
def test_a_key_that_means_nothing_is_a_problem_of_the_file(key: str, text: str) -> None:
    with pytest.raises(BadConfig, match=text):
        config(key, "00")


def test_other_agents_have_no_effect() -> None:
    noticed = dict(without_effect(config("key", "value", "decrypt")))
    assert noticed == {"model_repository_agents 'decrypt'": "the only agent is 'checksum'"}
