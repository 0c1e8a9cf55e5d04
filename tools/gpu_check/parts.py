"""What is looked at? Each part runs in a process of its own, for so many seconds at most."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

import wherry
from tools.gpu_check.finding import (
    DEVICE,
    SMALL,
    bandwidth,
    copies,
    median,
    product_rate,
    say,
    seconds,
    tried,
    wait,
)
from tools.gpu_check.report import ROOT

MODELS: Final = str(Path(__file__).with_name("models.py"))
DURATION, WARMUP = ("0.5s", "0.1s") if SMALL else ("3s", "1s")


def machine() -> None:
    """Is it ready, and what are its ceilings?"""
    import torch

    command = [sys.executable, "-m", "wherry", "doctor", "--gpu", "--json"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False).stdout
    for one in map(json.loads, told.splitlines()):
        if one["topic"].startswith(("GPU", "torch")):
            say(f"doctor: {one['topic']}", state=one["state"], found=one["found"])
    with tried("ceilings"):
        say("on the device", copy_tb_s=bandwidth() / 1e12, product_tflops=product_rate() / 1e12)
    with tried("copies"):
        host = torch.ones(1 << (12 if SMALL else 24))
        there = host.to(DEVICE)
        pinned = host if SMALL else host.pin_memory()
        say(
            "to and from the device",
            pageable_gb_s=host.nbytes / median(lambda: there.copy_(host)) / 1e9,
            pinned_gb_s=host.nbytes / median(lambda: there.copy_(pinned, non_blocking=True)) / 1e9,
            back_gb_s=host.nbytes / median(there.cpu) / 1e9,
        )
    with tried("starts"):
        small = torch.ones(8, device=DEVICE)

        def many() -> None:
            for _ in range(1000):
                small.add_(1)

        say(
            "start of a kernel", us=seconds(many, 3) * 1e3, in_a_graph_us=seconds(graph(many)) * 1e3
        )


def graph(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call as a CUDA graph; as it is on a CPU."""
    import torch

    call()
    if SMALL:
        return call
    made = torch.cuda.CUDAGraph()
    with torch.cuda.graph(made):
        call()
    return made.replay


# Over HTTP


def bench(target: str, *flags: str, **options: Any) -> list[dict[str, Any]]:
    """`wherry bench`: the figures of each point."""
    command = [sys.executable, "-m", "wherry", "bench", target, "--quiet", "--duration", DURATION]
    command += ["--warmup", WARMUP, *flags]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "report.json")
        done = subprocess.run(
            [*command, "--json", str(file)], capture_output=True, text=True, check=False
        )
        print(done.stdout, done.stderr, flush=True)
        if not file.exists():
            raise RuntimeError(f"wherry bench: {done.stderr[-300:]}")
        return [point["figures"] for point in json.loads(file.read_text())["points"]]


def rates(figures: dict[str, Any]) -> dict[str, Any]:
    latency = figures["latency"] or {}
    found = {
        "rows_s": figures["rows_per_second"],
        "rps": figures["requests_per_second"],
        "p50_ms": 1e3 * latency.get("p50", 0.0),
        "p95_ms": 1e3 * latency.get("p95", 0.0),
    }
    return found | ({"failed": figures["failed"]} if figures["failed"] else {})


def _bare(model: Any, batches: Sequence[Any]) -> float:
    """Rows per second of a model that is called in a loop, in this process."""
    for batch in batches[:3]:
        model.execute(batch)
    wait()
    began = time.perf_counter()
    for batch in batches:
        model.execute(batch)
    wait()
    return sum(map(len, batches)) / (time.perf_counter() - began)


def _texts(count: int, shortest: int, longest: int) -> list[str]:
    dice = random.Random(1)
    return ["x" * dice.randint(shortest, longest) for _ in range(count)]


def texts() -> None:
    """Seeds S0 and S1: texts over HTTP, more and more callers, one and several instances."""
    from tools.gpu_check import models

    with tried("S0"):
        models.detector.load(_device())
        rows = sorted(_texts(64 if SMALL else 2048, 1, 300), key=len)
        bare = _bare(models.detector, [rows[n : n + 32] for n in range(0, len(rows), 32)])
        say("S0: bare loop, sorted, batches of 32", rows_s=bare)
        models.detector.net = None
        callers = (1, 4) if SMALL else (1, 20, 64, 200)
        points = bench(f"{MODELS}:detector", callers=",".join(map(str, callers)), length="1-300")
        found = [point["rows_per_second"] for point in points]
        for count, point in zip(callers, points, strict=True):
            say(f"S0: {count} callers over HTTP", **rates(point))
        rising = min(more / fewer for fewer, more in itertools.pairwise(found[:3]))
        most = found[callers.index(4 if SMALL else 64)]
        say("S0: shares", {"texts": most / bare, "rising": rising})
    with tried("S1"):
        models.sentiment.load(_device())
        each = 4 if SMALL else 64
        bare = _bare(models.sentiment, [_texts(each, 60, 60)] * (2 if SMALL else 40))
        say(f"S1: bare loop, batches of {each}", rows_s=bare)
        models.sentiment.net = None
        instances = (1, 2) if SMALL else (1, 2, 3)
        points = bench(
            f"{MODELS}:sentiment", "--set", f"instances={','.join(map(str, instances))}",
            callers=2 if SMALL else 20, rows=each, length=60,
        )  # fmt: skip
        for count, point in zip(instances, points, strict=True):
            share = {"batches": point["rows_per_second"] / bare} if count == 1 else {}
            say(f"S1: {count} instances", share, **rates(point))


def _device() -> wherry.Device:
    return wherry.Device() if SMALL else wherry.Device("cuda", 0)


def images() -> None:
    """Seed S3: ResNet-50 in the process and over HTTP, and a chain from JPEG."""
    from tools.gpu_check import models

    callers, rows = (4, 4) if SMALL else (64, 64)
    models.resnet.load(_device())
    batch = np.zeros((rows, 3, models.SIDE, models.SIDE), np.float32)
    bare = _bare(models.resnet, [batch] * (2 if SMALL else 60))
    say("S3: bare loop", rows_s=bare)
    with tried("S3: in the process"):
        image = batch[0]
        with wherry.Runtime(models.resnet) as runtime:
            local = _called(lambda: runtime.infer("resnet", image=image), callers)
            say(f"S3: {callers} callers in the process", {"images": local / bare}, rows_s=local)
    with tried("S3: over HTTP"):
        (point,) = bench(f"{MODELS}:resnet", callers=callers, processes=1 if SMALL else 4)
        share = point["rows_per_second"] / bare
        say(f"S3: {callers} callers over HTTP", {"images_http": share}, **rates(point))
    with tried("S3: chain"):
        from PIL import Image

        from tools.gpu_check import photos

        kept = io.BytesIO()
        Image.new("RGB", (640, 480)).save(kept, "JPEG")
        photo = kept.getvalue()
        stages = photos.decode, photos.resize, photos.network
        with wherry.Runtime(*stages, photos.decoding, photos.chain) as runtime:
            decoded = _called(lambda: runtime.infer("decoding", photo=photo), callers)
            both = _called(lambda: runtime.infer("chain", photo=photo), callers)
            one = copies(lambda: runtime.infer("chain", photo=photo))
        slower = min(decoded, local)
        by = "the GPU" if photos.decode.io and not SMALL else "the processor"
        say(
            "S3: chain from JPEG", {"chain": both / slower}, rows_s=both, decoded_s=decoded,
            decoded_by=by,
        )  # fmt: skip
        say("S3: copies of one photo's way through the chain", **one)


def _called(call: Callable[[], Any], callers: int) -> float:
    """Calls per second of so many threads."""
    counts, until = [0] * callers, time.perf_counter() + (0.3 if SMALL else 2.5)

    def work(number: int) -> None:
        while time.perf_counter() < until:
            call()
            counts[number] += 1

    call()
    began = time.perf_counter()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def faults() -> None:
    """Does it answer after a lack of memory, and after an assertion on the device?"""
    from wherry.testing import running_server

    targets = [f"{MODELS}:hungry", f"{MODELS}:asserts"]
    with running_server(*targets) as url, wherry.Client(url) as client:
        with tried("out of memory"):
            answers: list[str] = []

            def ask() -> None:
                try:
                    client.infer("hungry", x=[1.0])
                    answers.append("")
                except wherry.WherryError as error:
                    answers.append(str(error))

            threads = [threading.Thread(target=ask) for _ in range(48)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            wrong = [*filter(None, answers)]
            say("48 rows that do not fit at once", answered=48 - len(wrong), why="".join(wrong[:1]))
        with tried("an assertion on the device"):
            client.infer("asserts", x=[3])
            told, back = "no error", None
            try:
                client.infer("asserts", x=[99])
            except wherry.WherryError as error:
                told = str(error)
            began = time.perf_counter()
            while back is None and time.perf_counter() - began < 20:
                try:
                    client.infer("asserts", x=[3])
                    back = time.perf_counter() - began
                except wherry.WherryError:
                    time.sleep(0.2)
            say("an assertion on the device", error=told, answers_again_after_s=back)


def fronts() -> None:
    """What more front processes give."""
    from wherry.testing import running_server

    rate = {}
    for count in (1, 2) if SMALL else (1, 2, 4, 8):
        with (
            tried(f"--fronts {count}"),
            running_server(f"{MODELS}:echo", "--fronts", str(count)) as url,
        ):
            processes = 1 if SMALL else max(2, min(6, (os.cpu_count() or 1) - count - 2))
            (point,) = bench(
                url, model="echo", callers=8 if SMALL else 256, processes=processes, length="20"
            )
            rate[count] = point["requests_per_second"]
            share = {f"fronts_{count}": rate[count] / rate[1]} if count in (2, 4) else {}
            say(f"--fronts {count}", share, **rates(point))


def tests() -> None:
    """`pytest -m gpu`; another torch has other warnings, which are shown."""
    files = (
        str(one) for one in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in one.read_text()
    )
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-W", "default", "-q", "--tb=short"]
    command += ["-p", "no:cacheprovider", *sorted(files), *(["--collect-only"] if SMALL else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    lines = done.stdout.splitlines()
    say("pytest -m gpu", rc=done.returncode, last=lines[-1] if lines else done.stderr)
    for line in [one for one in lines if one.startswith(("FAILED", "ERROR"))][:20]:
        say("test", failed=line)


# Language models


def decode() -> None:
    """Decode of 1, 64 and 256 streams, and prompts, beside what the device can do."""
    from tools.gpu_check import language

    language.decode()


def continuous() -> None:
    """Whole requests, beside generate_batch() of transformers."""
    from tools.gpu_check import language

    language.continuous()


#: By worth: what no time is left for is left out. With the seconds that each may take.
PARTS: Final[dict[str, tuple[Callable[[], None], int]]] = {
    "machine": (machine, 40),
    "faults": (faults, 40),
    "texts": (texts, 75),
    "decode": (decode, 100),
    "images": (images, 50),
    "tests": (tests, 70),
    "continuous": (continuous, 70),
    "fronts": (fronts, 45),
}
