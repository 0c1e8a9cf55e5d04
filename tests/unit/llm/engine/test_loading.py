"""What does an engine take of a machine, memory for its cache and threads, and what does it log?"""

import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.llm_memory import resident_mb
from tests.fakes import until
from tests.unit.llm.engine import tiny
from wherry import ConfigError
from wherry.llm.engine import loading
from wherry.llm.engine.checkpoint import Checkpoint, stage
from wherry.llm.engine.linear import MakeLinear, Packed, halved
from wherry.llm.engine.llm import _loading
from wherry.llm.engine.loading import MOST_SECONDS, compile_programs
from wherry.llm.engine.model import Decoder
from wherry.llm.engine.weights import Weights


class Seen(Packed):
    """A packed product that tells which numbers of rows it has had."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self.rows: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.rows.append(len(x))
        return super().__call__(x)


def decoder(folder: Path, linear: MakeLinear) -> Decoder:
    checkpoint = Checkpoint.find(str(folder))
    with checkpoint.tensors() as tensors, torch.inference_mode():
        weights = Weights("tiny", tensors, torch.float32, torch.device("cpu"))
        return Decoder(checkpoint.config(), weights, linear)


def rows_seen(network: Decoder) -> list[list[int]]:
    products = [network.head]
    for layer in network.layers:
        products += [layer.qkv, layer.output, layer.gate_up, layer.down]
    return [product.rows for product in products if isinstance(product, Seen)]


def test_each_shape_meets_each_number_of_rows_once(checkpoint: Callable[[str], Path]) -> None:
    network = decoder(checkpoint("llama"), Seen)
    compile_programs(network, max_step_tokens=22, max_running=10, clock=lambda: 0.0)
    # Above 16 rows they are rounded up to multiples of four. One layer stands for all.
    head, *layers = rows_seen(network)
    assert head == [*range(1, 11)]
    assert layers == [[*range(1, 18), 21]] * 4 + [[]] * 8


def test_a_large_model_is_not_held_up_for_long(checkpoint: Callable[[str], Path]) -> None:
    network = decoder(checkpoint("llama"), Seen)
    seconds: Iterator[float] = (number * MOST_SECONDS / 3 for number in count())
    compile_programs(network, max_step_tokens=512, max_running=64, clock=lambda: next(seconds))
    assert max(max(rows, default=0) for rows in rows_seen(network)) == 2


def test_weights_in_half_precision_need_no_programs(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = decoder(checkpoint("llama"), lambda w, b: halved(w.bfloat16().float(), b))
    products = [network.head, network.layers[0].down]
    monkeypatch.setattr(Packed, "__call__", lambda *_: pytest.fail("it was computed"))
    compile_programs(network, max_step_tokens=4, max_running=4)
    assert not any(isinstance(product, Packed) for product in products)


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


def test_memory_of_the_cache_is_taken_with_use_unless_it_has_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = tiny.SIZES | {"max_position_embeddings": 8192}
    tiny.network(("LlamaConfig", sizes)).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr(loading, "free_bytes", lambda: 10**9)

    def taken(cache_gb: float | None) -> float:
        before = resident_mb(os.getpid())
        made = loading.load_engine(str(tmp_path), "m", "cpu", cache_gb=cache_gb)
        after = resident_mb(os.getpid())
        assert made[0].cache.total_blocks >= 8192 // 16
        return after - before

    taken(0.02)
    with caplog.at_level(logging.INFO, "wherry"):
        assert taken(None) < 100
    (said,) = [one for one in caplog.records if one.message == "key-value cache"]
    assert 240e6 < vars(said)["bytes"] <= 250e6
    assert taken(0.25) > 200


def test_a_load_that_takes_a_while_says_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    asked = threading.Semaphore(0)

    def progress() -> dict[str, str]:
        asked.release()
        return {"tensors": "3 of 7"}

    with caplog.at_level(logging.INFO, "wherry"):
        with stage("reading weights", progress, every=0.01, checkpoint="m"):
            asked.acquire()
            asked.acquire()
        told = len(caplog.records)
        assert not any(thread.name == "wherry-progress" for thread in threading.enumerate())
    first, second, *_ = map(vars, caplog.records)
    assert told == len(caplog.records) >= 2
    assert (first["checkpoint"], first.get("seconds")) == ("m", None)
    assert (second["message"], second["tensors"], second["seconds"]) == (
        "reading weights", "3 of 7", 0,
    )  # fmt: skip


def test_two_models_of_one_process_may_read_transformers_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # As transformers does: at the end another module stands where the first one was.
    (tmp_path / "transformers.py").write_text(
        "import os, sys, types\n"
        "os.read(int(os.environ['READ_UNTIL']), 1)\n"
        "lazy = sys.modules[__name__] = types.ModuleType(__name__)\n"
        "lazy.AutoConfig, lazy.__spec__ = 3, __spec__\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "transformers")
    read, write = os.pipe()
    monkeypatch.setenv("READ_UNTIL", str(read))
    found: list[object] = []

    def load() -> None:
        _loading("tiny")
        from transformers import AutoConfig

        found.append(AutoConfig)

    threads = [threading.Thread(target=load) for _ in range(2)]
    waits: dict[int | None, object] = importlib._bootstrap._blocking_on  # type: ignore[attr-defined]
    with os.fdopen(read), os.fdopen(write, "wb", buffering=0) as gate:
        threads[0].start()
        until(lambda: "transformers" in sys.modules)
        threads[1].start()
        until(lambda: waits.get(threads[1].ident))
        gate.write(b".")
        for thread in threads:
            thread.join()
    assert found == [3, 3]
