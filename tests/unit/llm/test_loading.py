"""How much of a machine does an engine take: memory for its cache, threads?"""

from pathlib import Path

import pytest
import torch

from wherry import ConfigError
from wherry.llm import loading


def limits(folder: Path, most: str, used: int, of_files: int) -> Path:
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\nfile {of_files}\nfile_dirty 7\n")
    return folder


def test_what_is_free_is_no_more_than_the_container_may_have(tmp_path: Path) -> None:
    assert loading._free_bytes(limits(tmp_path, "5000", 4000, 0)) == 1000
    assert loading._free_bytes(limits(tmp_path, "5000", 4000, 3000)) == 4000
    assert loading._free_bytes(limits(tmp_path, "5000", 6000, 0)) == 0


@pytest.mark.parametrize("most", ["max", "9" * 19])
def test_a_container_without_a_limit_has_what_the_machine_has(tmp_path: Path, most: str) -> None:
    assert loading._free_bytes(limits(tmp_path, most, 0, 0)) > 10**6
    assert loading._free_bytes(tmp_path / "nothing") > 10**6


@pytest.mark.parametrize(
    ("limit", "threads"),
    [("100000 100000", 1), ("150000 100000", 2), ("500000 100000", 4), ("max 100000", 4), ("", 4)],
)
def test_there_are_no_more_threads_than_a_container_may_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, threads: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert loading._threads(tmp_path) == threads
    assert loading._threads(tmp_path / "nothing") == 4


def test_a_number_of_threads_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="'chat': threads must be at least 1, not 0"):
        loading.load_engine("nowhere", "chat", "cpu", threads=0)
