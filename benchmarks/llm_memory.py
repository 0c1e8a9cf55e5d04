"""Is the memory after 10,000 requests what it was after 100?

    python -m benchmarks.llm_memory [--requests 10000] [--checkpoint FOLDER] [--json PATH]

`wherry serve llm:...` and chats of every kind by 16 callers: whole, streamed, left in the middle,
held to a schema, with log probabilities, with stop texts, all prompts different. Resident memory
of the server and of the engine's worker, MB, at 1, 10, 20 .. 100 % of the requests, when nothing
is under way. Without a checkpoint it is a random one, so small that ten thousand take a minute or
two: what a request leaves behind does not depend on the weights.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness import arguments, report, server
from wherry.loadtest.machine import process_tree

CALLERS = 16
#: How much may come on top after the first hundredth, MB: the allocator keeps some.
SLACK_MB = 10.0
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def body(number: int, model: str) -> dict[str, Any]:
    """Request number `number`: no two are alike."""
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
    match number % 8:
        case 1:
            schema = {**SCHEMA, "title": str(number)}
            wanted["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
        case 2:
            wanted |= {"logprobs": True, "top_logprobs": 3}
        case 3:
            wanted |= {"stop": [f"{number}", "a"], "presence_penalty": 0.5, "top_p": 0.9}
        case 4:
            wanted |= {"n": 3, "logit_bias": {str(number % 256): 5}}
    return wanted


class Caller:
    """One connection that asks again and again; now and then it leaves in the middle."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, wanted: dict[str, Any], *, leaves: bool) -> int:
        """The status."""
        data = json.dumps(wanted).encode()
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(
                self._address.hostname, self._address.port
            )
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Length: {len(data)}\r\n"
        self._writer.write(f"{head}\r\n".encode() + data)
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


async def ask_all(url: str, model: str, numbers: Iterator[int], until: int) -> int:
    """Requests up to number `until`; how many were not answered with 200."""

    async def work() -> int:
        caller, bad = Caller(url), 0
        while (number := next(numbers)) < until:
            wanted = body(number, model)
            bad += await caller.ask(wanted, leaves=wanted["stream"] and number % 5 == 0) != 200
        caller.close()
        return bad

    return sum(await asyncio.gather(*(work() for _ in range(CALLERS))))


def resident_mb(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * 4096 / 1e6


@contextmanager
def checkpoint(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    from tests.unit.llm import tiny

    with tempfile.TemporaryDirectory() as folder:
        yield tiny.make(Path(folder) / "tiny")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--checkpoint", type=Path, help="a folder as save_pretrained writes it")
    options = parser.parse_args()
    total: int = options.requests
    rows: list[dict[str, Any]] = []
    with checkpoint(options.checkpoint) as folder, server(f"llm:{folder}") as (url, pid):
        done = 0
        for share in (1, *range(10, 101, 10)):
            until = total * share // 100
            numbers = count(done)
            bad = asyncio.run(ask_all(url, folder.name, numbers, until))
            done = until
            parent, *workers = process_tree(pid)
            memory = {"server MB": resident_mb(parent)}
            memory |= {"worker MB": max(resident_mb(worker) for worker in workers)}
            rows.append({"what": f"after {done} requests", **memory, "not answered": bad})
            print(rows[-1], flush=True)
    report("memory of a language model's server", rows, options.json)
    first, last = rows[0], rows[-1]
    grown = [n for n in ("server MB", "worker MB") if last[n] > first[n] + SLACK_MB]
    if grown:
        sys.exit(f"grown: {', '.join(grown)}")


if __name__ == "__main__":
    main()
