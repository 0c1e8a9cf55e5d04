"""Is a request lost when more models are served than fit, and some of their workers are killed?

    python -m benchmarks.many_models [--seconds 120] [--clients 16] [--kills 20] [--json FILE]

A server with eight models, of which three fit, loads of 0.1 to 0.6 s. One of the eight streams, two
share a worker process, two rest with their weights in host memory.
Every client asks models by Zipf's law and in bursts, each request with a number of its own; some
leave before their answer, some open a stream. Meanwhile workers that load or run are killed by
SIGKILL. Exit code 1 if a request is lost, has another one's answer, or a stream is cut.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.sleeping_models import COUNT, FIT, LENGTH, MEMORY
from wherry.testing import ServerProcess

#: What may become of a request.
OUTCOMES = ("answered", "streamed", "left", "lost", "mixed up", "cut")
MODELS = (*(f"m{number}" for number in range(COUNT - 1)), "streamed")


class Ledger:
    """What has become of all requests. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.texts: list[str] = []

    def add(self, outcome: str, seconds: float = 0.0, text: str = "") -> None:
        with self._lock:
            self.counts[outcome] += 1
            if seconds:
                self.seconds.append(seconds)
            if text:
                self.texts.append(text[:300])


class Client(threading.Thread):
    def __init__(self, number: int, url: str, ledger: Ledger, ends_at: float) -> None:
        super().__init__()
        self._numbers = iter(range(number << 32, (number + 1) << 32))
        self._chance = random.Random(number)
        self._address = url.removeprefix("http://")
        self._ledger, self._ends_at = ledger, ends_at

    def run(self) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=120)
        weights = [1 / (place + 1) for place in range(COUNT)]
        while time.monotonic() < self._ends_at:
            (model,) = self._chance.choices(range(COUNT), weights)
            for _ in range(self._chance.choice((1, 1, 4, 40))):  # a burst to one model
                x = next(self._numbers)
                began = time.monotonic()
                if model == COUNT - 1:
                    outcome, text = self._stream(x)
                elif self._chance.random() < 0.01:
                    outcome, text = self._leave(model, x)
                else:
                    outcome, text = self._ask(connection, model, x)
                self._ledger.add(outcome, time.monotonic() - began, text)
                if model == COUNT - 1 or time.monotonic() > self._ends_at:
                    break
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection, model: int, x: int) -> tuple[str, str]:
        try:
            connection.request("POST", f"/v2/models/m{model}/generate", json.dumps({"x": x}))
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return "lost", repr(error)
        if answer.status != 200:
            return "lost", f"{answer.status}: {body.decode()}"
        got = json.loads(body)["output"]
        return ("answered", "") if got == x * COUNT + model else ("mixed up", f"{x}: {got}")

    def _leave(self, model: int, x: int) -> tuple[str, str]:
        body = json.dumps({"x": x}).encode()
        host, _, port = self._address.rpartition(":")
        head = f"POST /v2/models/m{model}/generate HTTP/1.1\r\nHost: x\r\n"
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            time.sleep(self._chance.uniform(0.0, 0.2))
        return "left", ""

    def _stream(self, x: int) -> tuple[str, str]:
        connection = http.client.HTTPConnection(self._address, timeout=120)
        with contextlib.closing(connection):
            try:
                connection.request(
                    "POST", "/v2/models/streamed/generate_stream", json.dumps({"x": x})
                )
                text = connection.getresponse().read().decode()
            except (OSError, http.client.HTTPException) as error:
                return "cut", repr(error)
        events = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
        got = [json.loads(event).get("output") for event in events]
        whole = got == list(range(x, x + LENGTH))
        return ("streamed", "") if whole else ("cut", text[-200:])


def kill(folder: Path, chance: random.Random) -> bool:
    """Kill the worker of a model that does not stream, loaded or loading. False: there is none."""
    files = [file for file in folder.iterdir() if file.name.startswith("m")]
    for file in chance.sample(files, len(files)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGKILL)
            return True
    return False


def run(seconds: float, clients: int, kills: int) -> dict[str, Any]:
    """What became of the requests, and of the models."""
    ledger, chance = Ledger(), random.Random(1)
    targets = [f"benchmarks/sleeping_models.py:{name}" for name in MODELS]
    budget = f"cpu={MEMORY * FIT}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = (*targets, "--device-memory", budget)
        with ServerProcess(*arguments, env={"MANY_MODELS": name}, cwd=str(harness.ROOT)) as server:
            ends_at = time.monotonic() + seconds
            threads = [Client(number, server.url, ledger, ends_at) for number in range(clients)]
            for thread in threads:
                thread.start()
            killed = 0
            while killed < kills and time.monotonic() < ends_at:
                time.sleep(chance.uniform(0.5, 1.5) * seconds / (kills + 1))
                with contextlib.suppress(OSError):
                    killed += kill(folder, chance)
            for thread in threads:
                thread.join()
            scraped = urllib.request.urlopen(f"{server.url}/metrics").read().decode()
    found = re.findall(r"^wherry_model_wakes_total{.*} (\S+)", scraped, re.MULTILINE)
    took = sorted(ledger.seconds)
    return {
        **{name: ledger.counts[name] for name in OUTCOMES},
        "kills": killed,
        "wakes": round(sum(map(float, found))),
        "p50_seconds": round(took[len(took) // 2], 3),
        "p99_seconds": round(took[int(len(took) * 0.99)], 3),
        "longest_seconds": round(took[-1], 3),
        "errors": ledger.texts[:20],
    }


def main() -> int:
    parser = harness.arguments(__doc__)
    parser.set_defaults(seconds=120.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--kills", type=int, default=20)
    given = parser.parse_args()
    row = run(given.seconds, given.clients, given.kills)
    for text in row.pop("errors"):
        print(text, file=sys.stderr)
    harness.report("eight models, of which three fit", [row], given.json)
    return 1 if row["lost"] or row["mixed up"] or row["cut"] else 0


if __name__ == "__main__":
    sys.exit(main())
