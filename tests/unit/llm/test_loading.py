"""How much memory does the cache take, and when?"""

from pathlib import Path

import pytest

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
