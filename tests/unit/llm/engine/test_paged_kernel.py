"""The kernel of decode attention, interpreted on the CPU: it is attention in float32, and reads
nothing but its own tokens. Compiled for a GPU, without one: its registers.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.unit.llm.engine import tiny
from tests.unit.llm.engine.test_cuda_graphs import Again
from tests.unit.llm.engine.test_engine import answer, engine_of, finish, prompts
from wherry.llm.engine.runner import ModelRunner, Recorded
from wherry.llm.engine.sampling import Sampling

if importlib.util.find_spec("triton") is None:  # comes with torch for CUDA
    pytest.skip("needs Triton", allow_module_level=True)
NAME = "wherry.llm.engine.paged_kernel"
#: Queries, keys, values, table, rows, positions.
Case = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
CPU = torch.device("cpu")
BLOCK = 16
#: How far it may be from attention in float32.
NEAR = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.fixture(scope="module")
def kernel() -> Iterator[ModuleType]:
    """The module as Triton's interpreter runs it, which is chosen when Triton is imported."""

    def imported() -> dict[str, ModuleType]:
        names = [n for n in sys.modules if n == NAME or n.partition(".")[0] == "triton"]
        return {n: sys.modules[n] for n in names if not n.startswith("triton._C")}

    before = imported()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRITON_INTERPRET", "1")
        for name in before:
            del sys.modules[name]
        module = importlib.import_module(NAME)
        patched.setattr(module, "_SPLITS", 4)  # a program takes milliseconds here
        yield module
        for name in imported():
            del sys.modules[name]
        sys.modules.update(before)


def case(lengths: list[int], heads: int, kv_heads: int, size: int, dtype: torch.dtype) -> Case:
    """Queries, a cache of which all other slots are not numbers, scattered blocks, positions."""
    dice = torch.Generator().manual_seed(sum(lengths) + heads)
    most = -(-max(lengths) // BLOCK)
    blocks = torch.randperm(len(lengths) * most + 3, generator=dice)[: len(lengths) * most]
    table = blocks.view(len(lengths), most).to(torch.int32)
    shape = ((len(blocks) + 3) * BLOCK, kv_heads, size)
    keys, values = (torch.full(shape, float("nan"), dtype=dtype) for _ in range(2))
    for line, length in zip(table.long(), lengths, strict=True):
        places = torch.arange(length)
        slots = line[places // BLOCK] * BLOCK + places % BLOCK
        for cache in (keys, values):
            cache[slots] = torch.randn(length, kv_heads, size, generator=dice).to(dtype)
    rows = torch.randperm(len(lengths), generator=dice)
    # As a slice of queries and keys together, which is not contiguous.
    q = torch.randn(len(lengths), heads + kv_heads, size, generator=dice).to(dtype)[:, :heads]
    return q, keys, values, table, rows, torch.tensor(lengths)[rows] - 1


def expected(
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, rows: Tensor, positions: Tensor,
    window: int | None,
) -> Tensor:  # fmt: skip
    outs = []
    for query, line, position in zip(q, table[rows].long(), positions.tolist(), strict=True):
        places = torch.arange(max(0, position + 1 - window) if window else 0, position + 1)
        slots = line[places // BLOCK] * BLOCK + places % BLOCK
        k, v = (cache[slots].transpose(0, 1)[None].float() for cache in (keys, values))
        out = F.scaled_dot_product_attention(query[None, :, None].float(), k, v, enable_gqa=True)
        outs.append(out[0, :, 0])
    return torch.stack(outs)


LENGTHS = [1, 2, 15, 16, 17, 31, 33, 64, 100, 129, 257]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "window", "lengths"),
    [
        (2, 2, 64, None, [1, 16, 17]),
        (4, 1, 128, None, [257, 33]),
        (7, 1, 64, 24, [100, 24, 25, 1]),
        (8, 1, 128, 32, [129, 31]),
        (6, 2, 80, None, [15, 64]),  # a size that is not a power of two
        (3, 1, 8, 5, [2, 40]),
    ],
)
def test_it_is_attention_in_float32(
    kernel: ModuleType,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    size: int,
    window: int | None,
    lengths: list[int],
) -> None:
    given = case(lengths, heads, kv_heads, size, dtype)
    found = kernel.attend(*given, BLOCK, window)
    assert found.shape == (len(lengths), heads, size)
    assert found.dtype == dtype
    off = (found.float() - expected(*given, window)).abs().max()
    assert off < NEAR[dtype]


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("size", [64, 128])
def test_all_groups_and_lengths(
    kernel: ModuleType, group: int, size: int, window: int | None
) -> None:
    given = case(LENGTHS, 2 * group, 2, size, torch.float32)
    found = kernel.attend(*given, BLOCK, window)
    assert (found - expected(*given, window)).abs().max() < NEAR[torch.float32]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mistral", "qwen3"])  # with a window, and without
def test_through_the_whole_engine_tokens_are_those_of_transformers(
    kernel: ModuleType, family: str, checkpoint: Callable[[str], Path]
) -> None:
    folder, record = checkpoint(family), Again()

    def runner(*given: Any, **options: Any) -> ModelRunner:
        return ModelRunner(*given, **options, paged=True, recorded=Recorded(record, kernel.attend))

    engine = engine_of(folder, blocks=60, max_step_tokens=12, max_running=3, make_runner=runner)
    wish = Sampling(temperature=0.0, max_tokens=6, ignore_eos=True)
    asked = prompts(30, 5, 41)
    answers = finish(engine, [(prompt, wish) for prompt in asked])
    assert [answer(one) for one in answers] == [tiny.reference(folder, p, 6) for p in asked]
    assert record.replayed >= 6


def test_contexts_have_as_many_parts_as_fill_a_gpu(
    kernel: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "_SPLITS", 32)
    assert [kernel.splits_for(n) for n in (1, 8, 64, 256, 264, 512, 2048)] == [
        32,
        32,
        8,
        2,
        1,
        1,
        1,
    ]


def test_the_check_at_the_load_finds_a_kernel_that_is_wrong(
    kernel: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.check(4, 2, 16, 4, torch.float32, CPU)
    attend = kernel.attend

    def off_by_one(*given: Any) -> Any:
        *others, positions, size, window = given
        return attend(*others, (positions - 1).clamp(min=0), size, window)

    for wrong in (off_by_one, lambda *given: attend(*given) * float("nan")):
        monkeypatch.setattr(kernel, "attend", wrong)
        with pytest.raises(RuntimeError, match="off by"):
            kernel.check(4, 2, 16, 4, torch.float32, CPU)


COMPILE = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from wherry.llm.engine.paged_kernel import attend_part

group, size, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
fixed = dict(heads=group * 8, group=group, GROUP=16, size=size, SIZE=size, block=16, TOKENS=32,
             window=0, upcast=False)
types = dict(q="*" + kind, k="*" + kind, v="*" + kind, table="*i32", rows="*i64",
             positions="*i64", part="*fp32", lse="*fp32", scale="fp32")
names = attend_part.arg_names
signature = {name: "constexpr" if name in fixed else types.get(name, "i32") for name in names}
aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in names if name not in fixed
           and name != "scale"}
source = ASTSource(attend_part, signature, {(names.index(n),): v for n, v in fixed.items()},
                   aligned)
made = compile(source, target=GPUTarget("cuda", 90, 32), options=dict(num_warps=4, num_stages=2))
open(sys.argv[4], "w").write(made.asm["ptx"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("group", "size"), [(1, 64), (7, 128), (8, 128)])
def test_compiled_for_an_h100_it_spills_no_registers(group: int, size: int, tmp_path: Path) -> None:
    import triton

    found = sorted(Path(triton.__file__).parent.glob("backends/nvidia/bin/ptxas"))
    ptxas = str(found[0]) if found else shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("no ptxas here")
    ptx = tmp_path / "kernel.ptx"
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    arguments = [str(group), str(size), "bf16", str(ptx)]
    subprocess.run([sys.executable, "-c", COMPILE, *arguments], check=True, env=plain)
    told = subprocess.run(
        [ptxas, "-v", "-arch=sm_90a", str(ptx), "-o", str(tmp_path / "kernel.cubin")],
        check=True, capture_output=True, text=True,
    ).stderr  # fmt: skip
    assert re.search(r"\b0 bytes spill stores, 0 bytes spill loads", told)
    registers = int(re.findall(r"Used (\d+) registers", told)[0])
    assert registers <= 128  # 4 programs of 128 threads at a time
    assert "mma.sync" in ptx.read_text()  # tensor cores
