"""What is left of a model that was loaded and unloaded a thousand times?

    python benchmarks/load_cycles.py [--cycles 1000] [--in-process]

A server with a Python model of a repository, each copy in a worker process; --in-process: a model
in a thread of this process, which makes ten times as many cycles in the same time. After a tenth
of the cycles (what is cached by then, stays) and at the end: resident memory, open files, threads
and children of the server. The exit code is 1 if one of them grew.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import http.client
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import wherry
from wherry.testing.servers import ServerProcess
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.loading.control import ModelControl

CONFIG = """backend: "python" max_batch_size: 8 dynamic_batching { }
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
"""
MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(r, "X").as_numpy())]
            )
            for r in requests
        ]
"""
#: More than this is growth: the allocator keeps some, and a thread may be just about to end.
SLACK = {"rss_kib": 8192, "open files": 3, "threads": 2, "children": 0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--in-process", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "m" / "1").mkdir(parents=True)
        (Path(folder) / "m" / "config.pbtxt").write_text(CONFIG)
        (Path(folder) / "m" / "1" / "model.py").write_text(MODEL)
        cycles = in_process(folder) if arguments.in_process else over_http(folder)
        with cycles as (pid, cycle):
            return watch(pid, cycle, arguments.cycles)


def watch(pid: int, cycle: Callable[[], None], cycles: int) -> int:
    seen: list[dict[str, int]] = []
    busy = 0.0
    for number in range(1, cycles + 1):
        started = time.perf_counter()
        cycle()
        busy += time.perf_counter() - started
        if number % max(1, cycles // 10) == 0:
            seen.append(held(pid))
            print(f"after {number:6}: {seen[-1]}", flush=True)
    print(f"{busy / cycles * 1000:.1f} ms a cycle")
    early, late = seen[0], seen[-1]
    grown = [name for name, slack in SLACK.items() if late[name] > early[name] + slack]
    print(f"grown: {', '.join(grown)}" if grown else "nothing grew")
    return 1 if grown else 0


def held(pid: int) -> dict[str, int]:
    """What the process holds, once nothing more of it ends."""
    time.sleep(1)
    gc.collect()
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    threads = children = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it ended while we were looking
            children += len((task / "children").read_text().split())
            threads += 1
    return {
        "rss_kib": int(status["VmRSS"].split()[0]),
        "open files": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": threads,
        "children": children,
    }


@contextmanager
def over_http(folder: str) -> Iterator[tuple[int, Callable[[], None]]]:
    with ServerProcess(folder, "--model-control-mode=explicit") as server:
        address = urlsplit(server.url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port)

        def post(path: str, body: str = "") -> None:
            connection.request("POST", path, body)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{path}: {answer.status} {text!r}")

        def cycle() -> None:
            post("/v2/repository/models/m/load")
            tensor = '{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}'
            post("/v2/models/m/infer", f'{{"inputs": [{tensor}]}}')
            post("/v2/repository/models/m/unload")

        yield server.pid, cycle
        connection.close()


class Echo(RepositoryModel):
    def execute(self, **columns: object) -> dict[str, object]:
        return {"Y": columns["X"]}


@contextmanager
def in_process(folder: str) -> Iterator[tuple[int, Callable[[], None]]]:
    with wherry.Runtime() as runtime:
        control = ModelControl(
            runtime,
            [folder],
            mode="explicit",
            make_model=lambda folder, version, config, **_: Echo(folder, version, config),
        )

        def cycle() -> None:
            control.load("m")
            runtime.infer("m", X=[1.0])
            control.unload("m")
            for thread in threading.enumerate():
                if thread.name == "wherry-unload-m":
                    thread.join()

        yield os.getpid(), cycle
        control.close()


if __name__ == "__main__":
    sys.exit(main())
