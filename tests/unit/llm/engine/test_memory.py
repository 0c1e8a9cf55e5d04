"""llm/engine/memory.py: what is told of a checkpoint's memory before it is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from wherry.llm.engine.memory import cpu_cache_bytes, free_bytes, multiplies_bfloat16


@pytest.mark.parametrize(
    ("flags", "bfloat16"),
    [
        ("fpu sse2 avx2 fma f16c avx512f avx512_bf16", True),
        ("fpu sse2 avx2 fma f16c", False),
        ("fpu avx2 amx_bf16", True),
    ],
)
def test_it_is_told_by_the_first_processors_flags(
    flags: str, bfloat16: bool, tmp_path: Path
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t: amx_bf16\n")
    assert multiplies_bfloat16(file) is bfloat16


def test_a_machine_that_does_not_say_has_none(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    assert not multiplies_bfloat16(file)
    file.write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert not multiplies_bfloat16(file)


def limits(folder: Path, most: str, used: int, of_files: int) -> Path:
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\nfile {of_files}\nfile_dirty 7\n")
    return folder


def test_what_is_free_is_no_more_than_the_container_may_have(tmp_path: Path) -> None:
    assert free_bytes(limits(tmp_path, "5000", 4000, 0)) == 1000
    assert free_bytes(limits(tmp_path, "5000", 4000, 3000)) == 4000
    assert free_bytes(limits(tmp_path, "5000", 6000, 0)) == 0


@pytest.mark.parametrize("most", ["max", "9" * 19])
def test_a_container_without_a_limit_has_what_the_machine_has(tmp_path: Path, most: str) -> None:
    assert free_bytes(limits(tmp_path, most, 0, 0)) > 10**6
    assert free_bytes(tmp_path / "nothing") > 10**6


def test_the_cache_has_its_setting_or_a_share_of_what_is_free() -> None:
    assert cpu_cache_bytes(0.001, 10**9) == 10**6
    assert cpu_cache_bytes(None, 10**9) == 25 * 10**7
    assert cpu_cache_bytes(None, 10**12) == 4 * 10**9
