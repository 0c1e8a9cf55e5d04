"""llm/engine/memory.py: what is told of a checkpoint's memory before it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.llm.engine import tiny
from wherry.llm.engine import memory
from wherry.llm.engine.memory import (
    PROGRAM_BYTES,
    cpu_cache_bytes,
    free_bytes,
    multiplies_bfloat16,
    needs_of,
    parts_on_cpu,
    reads_halves,
    total_bytes,
)


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


def told(folder: Path, **options: Any) -> dict[str, int]:
    engine, dtype = options.pop("engine", "wherry"), options.pop("dtype", "float32")
    found = parts_on_cpu(
        needs_of(str(folder)), engine=engine, dtype=dtype, options=options, free=10**9
    )
    return {part.name: part.nbytes for part in found}


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool, bool], None]:
    """Sets what the processor reads and multiplies."""

    def set_it(halves: bool, bfloat16: bool) -> None:
        monkeypatch.setattr(memory, "reads_halves", lambda: halves)
        monkeypatch.setattr(memory, "multiplies_bfloat16", lambda: bfloat16)

    return set_it


Processor = Callable[[bool, bool], None]


def test_an_embedding_that_is_the_head_counts_twice_where_products_are_packed(
    tmp_path: Path, processor: Processor
) -> None:
    processor(True, False)
    tied, untied = tiny.make(tmp_path / "tied"), tiny.make(tmp_path / "untied", "qwen2")
    head = tiny.VOCABULARY * 48
    for folder, again in ((tied, head), (untied, 0)):
        numbers = needs_of(str(folder)).parameters
        assert told(folder)["weights"] == 4 * (numbers + again)
        assert told(folder, dtype="bfloat16")["weights"] == 2 * numbers
        assert told(folder, engine="transformers")["weights"] == 4 * numbers
    processor(True, True)
    assert told(tied, dtype="bfloat16")["weights"] == 2 * (needs_of(str(tied)).parameters + head)


def test_weights_of_16_bits_stay_so_where_the_processor_reads_them(
    tmp_path: Path, processor: Processor
) -> None:
    folder = tmp_path / "m"
    net = tiny.network(("LlamaConfig", tiny.SIZES | {"tie_word_embeddings": True}))
    net.bfloat16().save_pretrained(folder)
    numbers = needs_of(str(folder)).parameters + tiny.VOCABULARY * 48
    processor(True, False)
    assert told(folder)["weights"] == 2 * numbers
    assert "compiled products" not in told(folder)
    processor(False, False)
    assert told(folder)["weights"] == 4 * numbers
    assert told(folder)["compiled products"] == PROGRAM_BYTES


def test_a_cache_for_each_sequence_or_without_a_size_is_not_there_from_the_start(
    tmp_path: Path,
) -> None:
    needs = needs_of(str(tiny.make(tmp_path / "m")))
    made = partial(parts_on_cpu, needs, dtype="bfloat16", options={"cache_gb": 0.001}, free=10**9)
    least, most = total_bytes(made(engine="transformers"))
    assert most - least == 10**6
    assert len({*total_bytes(made(engine="wherry"))}) == 1
    grows = partial(made, engine="wherry", options={})
    assert total_bytes(grows())[0] == total_bytes(made(engine="wherry"))[0] - 10**6
    assert total_bytes(grows())[1] > total_bytes(grows())[0]


def test_only_products_that_are_packed_are_compiled(tmp_path: Path, processor: Processor) -> None:
    folder = tiny.make(tmp_path / "m")
    processor(True, False)
    assert told(folder)["compiled products"] == PROGRAM_BYTES
    for options in ({"dtype": "bfloat16"}, {"engine": "transformers"}, {"dtype": "float16"}):
        assert "compiled products" not in told(folder, **options)
    processor(True, True)
    assert told(folder, dtype="bfloat16")["compiled products"] == PROGRAM_BYTES


def test_the_cache_has_its_setting_a_share_or_all_that_could_run(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "m")  # 3 layers, 2 heads of 8 features, 256 tokens
    each = 2 * 3 * 2 * 8 * 4
    assert told(folder, cache_gb=0.001)["KV cache"] == 10**6
    assert told(folder, cache_gb=5)["KV cache"] == 2 * 64 * 256 * each
    assert told(folder, cache_gb=5, max_running=4)["KV cache"] == 2 * 4 * 256 * each
    assert told(folder, cache_gb=5, context_tokens=100)["KV cache"] == 2 * 64 * 112 * each
    assert told(folder, cache_gb="much")["KV cache"] == told(folder)["KV cache"]
    assert cpu_cache_bytes(None, 10**9) == 25 * 10**7
    assert cpu_cache_bytes(None, 10**12) == 4 * 10**9
