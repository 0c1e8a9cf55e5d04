"""Does the memory of a language model's server stay flat, however long it serves?

    python -m benchmarks.llm_memory [--requests 10000 | --minutes 60] [--json PATH]

`wherry serve llm:...` and requests of every kind by 16 callers, no two alike: whole, streamed, long
prompts in chunks, several answers, log probabilities, stop texts, schemas and regular expressions;
callers that leave in the middle of an answer, or before its first token; and requests that are
refused: prompts longer than the context, schemas that cannot be met, fields out of range. The cache
is small, so that sequences are put back.

Resident memory of the server and of the engine's worker, MB, is read whenever nothing is under way.
Its growth is a line through the second half of the readings; before that caches and the
allocator fill. MB for 1,000 requests, with a 95 % interval. Without a checkpoint it is a random
one, so small that ten thousand take some minutes: what a request leaves behind does not depend on
the weights.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness import arguments, report, server
from wherry.bench.observe import process_tree

CALLERS = 16
#: Requests between two readings, and the fewest readings for a line.
BETWEEN, READINGS = 500, 12
#: The growth that is called flat, MB for 1,000 requests: 100,000 requests may then take 5 MB.
FLAT = 0.05
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def body(number: int, model: str) -> tuple[dict[str, Any], int]:
    """Request number `number`, and the status that it should have. No two are alike."""
    rng = random.Random(number)
    words = " ".join(str(rng.randrange(1000)) for _ in range(rng.randrange(1, 40)))
    wanted: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": f"{number} {words}"}],
        "max_tokens": rng.randrange(1, 24),
        "stream": rng.random() < 0.6,
        "seed": number,
        "user": f"user {number}",
    }
    match number % 16:
        case 1:
            wanted["response_format"] = _schema({**SCHEMA, "title": str(number)})
        case 2 | 10:
            wanted |= {"logprobs": True, "top_logprobs": 3}
        case 3:
            wanted |= {"stop": [f"{number}", "a"], "presence_penalty": 0.5, "top_p": 0.9}
        case 4 | 12:
            wanted |= {"n": 3, "logit_bias": {str(number % 256): 5}}
        case 5:
            wanted["messages"][0]["content"] = f"{number} " + words[:100] * 2
        case 6:
            wanted |= {"structured_outputs": {"regex": f"[a-c]{{1,8}}{number}"}}
        case 7:
            wanted["messages"][0]["content"] = f"{number} " + "x" * 4000
            return wanted, 400
        case 8:
            wanted["response_format"] = _schema({"type": "nothing of the kind", "title": words})
            return wanted, 400
        case 9:
            wanted["temperature"] = -1.0 - number
            return wanted, 400
        case 11:
            wanted["messages"].insert(0, {"role": f"role {number}", "content": words})
            return wanted, 400  # the template raises
    return wanted, 200


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


class Caller:
    """One connection that asks again and again; now and then it leaves in the middle."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, wanted: dict[str, Any], *, leaves: str = "") -> int:
        """The status. It may leave "early", before the answer begins: 0, or "late", within it."""
        data = json.dumps(wanted).encode()
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(
                self._address.hostname, self._address.port
            )
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Length: {len(data)}\r\n"
        self._writer.write(f"{head}\r\n".encode() + data)
        if leaves == "early":
            await self._writer.drain()
            await asyncio.sleep(0.001 * (len(data) % 8))
            self.close()
            return 0
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        status = int(lines[0].split()[1])
        if leaves:
            self.close()
            return status
        length = next((line for line in lines if line.startswith("content-length:")), "")
        if length:
            await self._reader.readexactly(int(length.split(":")[1]))
        else:
            await self._reader.readuntil(b"0\r\n\r\n")
        return status

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None


async def ask_all(url: str, model: str, numbers: range) -> Counter[str]:
    """Requests of these numbers; how many had which status, and how many another than expected."""
    left, seen = iter(numbers), Counter[str]()

    async def work() -> None:
        caller = Caller(url)
        for number in left:
            wanted, expected = body(number, model)
            leaves = "early" if number % 16 == 13 else ""
            if wanted["stream"] and number % 5 == 0:
                leaves = leaves or "late"
            status = await caller.ask(wanted, leaves=leaves)
            seen[str(status or "left")] += 1
            seen["unexpected"] += status not in (0, expected)
        caller.close()

    await asyncio.gather(*(work() for _ in range(CALLERS)))
    return seen


def resident_mb(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * 4096 / 1e6


def growth(requests: Sequence[float], megabytes: Sequence[float]) -> tuple[float, float]:
    """The slope of a line through these readings, MB for 1,000 requests, and the half width of its
    95 % interval.

    Readings that follow each other are alike, so the residuals' correlation widens the interval.
    """
    count = len(requests)
    x0, y0 = sum(requests) / count, sum(megabytes) / count
    spread = sum((x - x0) ** 2 for x in requests)
    slope = sum((x - x0) * (y - y0) for x, y in zip(requests, megabytes, strict=True)) / spread
    off = [y - y0 - slope * (x - x0) for x, y in zip(requests, megabytes, strict=True)]
    squares = sum(one * one for one in off) or 1e-12
    alike = sum(one * other for one, other in pairwise(off)) / squares
    alike = min(0.9, max(0.0, alike))
    variance = squares / (count - 2) / spread * (1 + alike) / (1 - alike)
    return 1000 * slope, 1000 * 2.2 * variance**0.5


@contextmanager
def checkpoint(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    from tests.unit.llm.engine import tiny

    with tempfile.TemporaryDirectory() as folder:
        yield tiny.make(Path(folder) / "tiny")


def readings(
    folder: Path, total: int | None, minutes: float, cache_gb: float
) -> Iterator[dict[str, Any]]:
    """What the memory is after each few requests, until there were enough."""
    ends = time.monotonic() + 60 * minutes
    with server(f"llm:{folder}?cache_gb={cache_gb}") as (url, pid):
        done = 0
        while time.monotonic() < ends if total is None else done < total:
            step = BETWEEN if total is None else max(CALLERS, min(BETWEEN, total // READINGS))
            seen = asyncio.run(ask_all(url, folder.name, range(done, done + step)))
            done += step
            parent, *workers = process_tree(pid)
            memory = {"server MB": resident_mb(parent)}
            memory |= {"worker MB": max(resident_mb(worker) for worker in workers)}
            yield {"what": f"after {done} requests", "requests": done, **memory, **sorted_(seen)}


def sorted_(seen: Counter[str]) -> dict[str, int]:
    return {name: seen[name] for name in ("200", "400", "left", "unexpected")}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, help="so long, instead of so many requests")
    parser.add_argument("--cache-gb", type=float, default=0.001, help="small: sequences wait")
    parser.add_argument("--checkpoint", type=Path, help="a folder as save_pretrained writes it")
    options = parser.parse_args()
    total = None if options.minutes else options.requests
    rows: list[dict[str, Any]] = []
    with checkpoint(options.checkpoint) as folder:
        for row in readings(folder, total, options.minutes or 0, options.cache_gb):
            rows.append(row)
            print(row, flush=True)
    later = rows[len(rows) // 2 :]
    wrong = sum(row["unexpected"] for row in rows)
    grown = []
    for name in ("server MB", "worker MB"):
        slope, half = growth([row["requests"] for row in later], [row[name] for row in later])
        what = f"{name} for 1,000 requests: {slope:+.3f} ± {half:.3f}"
        rows.append({**dict.fromkeys(rows[0], ""), "what": what})
        if slope - half > FLAT:
            grown.append(name)
    report("memory of a language model's server", rows, options.json)
    if grown or wrong:
        sys.exit(f"grown: {', '.join(grown) or 'nothing'}; {wrong} unexpected answers")


if __name__ == "__main__":
    main()
