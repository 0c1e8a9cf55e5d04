"""Is the memory that `wherry check` tells of a checkpoint what its server has once it is ready?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.unit.llm.engine import tiny
from wherry.bench.observe import process_tree
from wherry.llm.engine.memory import free_bytes, needs_of, parts_on_cpu, total_bytes
from wherry.testing.servers import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(600)]
#: The largest difference, as a part of what is measured.
NEAR = 0.1


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 million weights, stored so, which are a third of the memory."""
    folder = tmp_path_factory.mktemp("medium")
    sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 9,
             "num_attention_heads": 12, "num_key_value_heads": 4}  # fmt: skip
    net = tiny.network(("LlamaConfig", tiny.SIZES | sizes))
    net.to(getattr(torch, request.param)).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("engine", "dtype"),
    [("wherry", "float32"), ("wherry", "bfloat16"), ("transformers", "float32")],
)
def test_it_is_within_a_tenth(folder: Path, engine: str, dtype: str) -> None:
    options = {"cache_gb": 0.1}
    told = parts_on_cpu(
        needs_of(str(folder)), engine=engine, dtype=dtype, options=options, free=free_bytes()
    )
    least, most = total_bytes(told)
    target = f"llm:{folder}?cache_gb=0.1&dtype={dtype}&engine={engine}"
    with ServerProcess(target) as server:
        measured = sum(map(proportional_bytes, process_tree(server.pid)))
    assert least - NEAR * measured <= measured <= most + NEAR * measured, (told, measured)
    assert engine == "transformers" or least == most


def proportional_bytes(pid: int) -> int:
    """A process's memory, of what it shares with others its part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
