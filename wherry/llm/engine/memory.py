"""How much memory will a checkpoint's process have once it is ready, and how much is free?

Told from what its files say, before anything is loaded. On a CPU; measured with `wherry serve` of
five checkpoints of 40 to 135 million weights (`tests/integration/test_llm_memory_told.py` holds
two kinds of it).
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wherry.core.api import Machine
from wherry.llm.engine.needs import BYTES, Needs
from wherry.llm.engine.processor import multiplies_bfloat16, reads_halves

#: Share of the free memory, after loading the weights, that the KV cache gets by default.
CPU_SHARE: Final = 0.25
#: Maximum of the KV cache on a CPU by default, as the memory is shared with other programs. Memory
#: is taken where a block is first used.
CPU_MOST_BYTES: Final = 4e9
#: The server's process, and the worker's: torch, transformers and their modules.
SERVER_BYTES, WORKER_BYTES = 47e6, 295e6
#: Datatypes of 16 bits, as which such weights are kept.
HALVES: Final = ("bfloat16", "float16")
#: oneDNN's programs of the engine's own products (precompile.py).
PROGRAM_BYTES: Final = 105e6
#: Sequences that run at once, and tokens of a step and of a block, unless settings say otherwise.
RUNNING, STEP_TOKENS, BLOCK = 64, 512, 16
#: On a GPU: a decode step of 256 takes little longer than one of 64, and 512 tokens of prompts do
#: not fill it.
RUNNING_ON_GPU, STEP_TOKENS_ON_GPU = 256, 8192


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """Some of the memory: whose it is, and how much."""

    name: str
    nbytes: int
    #: Whether it is there from the start. The KV cache is where it has a size by the settings, and
    #: not where each sequence has a cache of its own, as a layer of transformers' has states: which
    #: way it is, is seen at the load.
    certain: bool = True


def total_bytes(parts: Sequence[MemoryPart]) -> tuple[int, int]:
    """The least and the most that these parts take."""
    most = sum(part.nbytes for part in parts)
    return most - sum(part.nbytes for part in parts if not part.certain), most


def parts_on_cpu(
    needs: Needs, *, engine: str, dtype: str, options: Mapping[str, Any], free: int
) -> list[MemoryPart]:
    """The parts of the memory that the server and a worker have once a checkpoint is ready on a
    CPU, with `options` as `llm:FOLDER?...` has them and so much free memory now."""
    weights = needs.weight_bytes(dtype)
    own = engine == "wherry"
    kept = _kept_as(needs, dtype) if own else None
    if kept is not None:  # packed for products, and whole to look tokens up in
        weights = needs.weight_bytes(kept) + needs.shared_head * BYTES[kept]
    parts = [
        MemoryPart("server and libraries", round(SERVER_BYTES + WORKER_BYTES)),
        MemoryPart("weights", weights),
    ]
    numbers = {name: n for name, n in options.items() if type(n) in (int, float)}
    pool = _pool(needs, dtype, numbers, free - weights)
    parts.append(MemoryPart("KV cache", pool, certain=own and "cache_gb" in numbers))
    if kept == dtype:
        parts.append(MemoryPart("compiled products", round(PROGRAM_BYTES)))
    return parts


def _kept_as(needs: Needs, dtype: str) -> str | None:
    """The datatype that products' weights are packed in; None if they are plain (linear.py)."""
    if dtype == "float32":
        return "float16" if needs.stored_as in HALVES and reads_halves() else dtype
    return dtype if dtype == "bfloat16" and multiplies_bfloat16() else None


def _pool(needs: Needs, dtype: str, numbers: Mapping[str, float], free: int) -> int:
    """The KV cache's tensors, with these settings."""
    room = cpu_cache_bytes(numbers.get("cache_gb"), max(0, free))
    context = numbers.get("context_tokens") or needs.context_tokens
    context = int(min(context, needs.context_tokens or context))
    running = int(numbers.get("max_running") or RUNNING)
    most = 2 * running * -(-context // BLOCK) * needs.cache_bytes(BLOCK, dtype)
    return min(room, most) if most else room


def cpu_cache_bytes(cache_gb: float | None, free: int) -> int:
    """The KV cache's size on a CPU: the setting, or a share of the free memory."""
    return int(cache_gb * 1e9 if cache_gb is not None else min(free * CPU_SHARE, CPU_MOST_BYTES))


def free_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Free memory in bytes: of the machine or of the container, whichever is less."""
    free = Machine().available_bytes()
    if free is None:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        most = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        of_files = re.search(r"^file (\d+)$", (cgroup / "memory.stat").read_text(), re.M)
    except (OSError, ValueError):
        return free
    # Cached pages of files, such as the weights, are given up when memory is needed.
    return min(free, max(0, most - used + int(of_files[1] if of_files else 0)))


def give_back_freed() -> None:
    """Give the memory that loading has freed back to the system, where the C library can: it keeps
    pieces of copies, 55 MB of a model of 500."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)
