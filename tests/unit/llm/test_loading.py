"""How much of a machine does an engine take: memory for its cache, threads?"""

from pathlib import Path

import pytest
import torch

from wherry import ConfigError
from wherry.llm import loading


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
