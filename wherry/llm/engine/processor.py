"""Which numbers does this machine's processor multiply by itself? Read without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: Half precision is read as floats; products of bfloat16 have instructions.
_HALVES: Final = frozenset(("avx2", "fma", "f16c"))
_BFLOAT16: Final = frozenset(("avx512_bf16", "amx_bf16"))


def reads_halves(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether weights of half precision can be multiplied with floats as fast as they are read."""
    return _flags(cpuinfo) >= _HALVES


def multiplies_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    return not _BFLOAT16.isdisjoint(_flags(cpuinfo))


def _flags(cpuinfo: Path) -> frozenset[str]:
    """What Linux says that the first processor can do; nothing where it does not say."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    found = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(found.partition(":")[2].split())
