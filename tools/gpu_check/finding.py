"""How does a part say what it finds, and how is a call timed on its device?"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

#: Set by the parent of a part.
SMALL: Final = bool(os.environ.get("GPU_CHECK_SMALL"))
DEVICE: Final = "cpu" if SMALL else "cuda:0"


def say(what: str, goals: Mapping[str, float] | None = None, **figures: Any) -> None:
    """Keep a finding at once: what comes later may fail."""
    with Path(os.environ["GPU_CHECK_OUT"], "findings.jsonl").open("a") as file:
        line = {"part": os.environ["GPU_CHECK_PART"], "what": what, "figures": figures}
        file.write(json.dumps({**line, "goals": goals or {}}, default=str) + "\n")


@contextlib.contextmanager
def tried(what: str) -> Iterator[None]:
    """Go on after a failure, which is a finding."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the other parts still run
        traceback.print_exc()
        say(what, failed=f"{type(error).__name__}: {error}")


def wait() -> None:
    """Until the device has done what it was given."""
    if not SMALL:
        import torch

        torch.cuda.synchronize()


def seconds(call: Callable[[], Any], times: int = 10) -> float:
    """Of one of many calls that are queued: the device's time, if it is the slower."""
    call()
    wait()
    began = time.perf_counter()
    for _ in range(times):
        call()
    wait()
    return (time.perf_counter() - began) / times


def median(call: Callable[[], Any], times: int = 7) -> float:
    """Seconds of a call that is waited for."""
    found = []
    for _ in range(times + 1):
        began = time.perf_counter()
        call()
        wait()
        found.append(time.perf_counter() - began)
    return statistics.median(found[1:])


def copies(call: Callable[[], Any]) -> dict[str, Any]:
    """How often a call, in any thread, has the device copied to, from, and within it."""
    import torch

    with torch.profiler.profile() as profile:
        call()
        wait()
    kinds = {"HtoD": "to_device", "DtoH": "to_host", "DtoD": "on_device"}
    found = dict.fromkeys(kinds.values(), 0)
    for event in profile.events():  # "Memcpy HtoD (Pageable -> Device)"
        name, _, kind = event.name.partition(" ")
        if name == "Memcpy" and kind[:4] in kinds:
            found[kinds[kind[:4]]] += 1
    return found


def bandwidth() -> float:
    """Bytes per second that a copy on the device reads and writes."""
    import torch

    source = torch.ones(1 << (20 if SMALL else 30), device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source))


def product_rate() -> float:
    """Operations per second of a product of large matrices in bfloat16."""
    import torch

    n = 256 if SMALL else 8192
    a, b = (torch.randn(n, n, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    return 2 * n**3 / seconds(lambda: a @ b)
