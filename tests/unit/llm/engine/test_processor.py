"""llm/engine/processor.py: what Linux says of the processor."""

from pathlib import Path

import pytest

from wherry.llm.engine.processor import multiplies_bfloat16, reads_halves


@pytest.mark.parametrize(
    ("flags", "halves", "bfloat16"),
    [
        ("fpu sse2 avx2 fma f16c avx512f avx512_bf16", True, True),
        ("fpu sse2 avx2 fma f16c", True, False),
        ("fpu avx2 amx_bf16", False, True),
        ("fpu sse2 avx", False, False),
    ],
)
def test_it_is_told_by_the_first_processors_flags(
    flags: str, halves: bool, bfloat16: bool, tmp_path: Path
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t: fma\n")
    assert (reads_halves(file), multiplies_bfloat16(file)) == (halves, bfloat16)


def test_a_machine_that_does_not_say_has_neither(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    assert not reads_halves(file)
    assert not multiplies_bfloat16(file)
    file.write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert not reads_halves(file)
