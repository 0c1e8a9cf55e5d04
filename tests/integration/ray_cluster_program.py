"""A Ray cluster of several nodes on this machine, for test_on_ray.py, which starts it.

Its head has no room for owners, each node has room for one. Says the address as its first line,
then a line after each line of its input: `lose PID` (kill the agent of the node on which this
process runs) or `add` (a node). Ends with its input.
"""

import os
import sys
import tempfile
from pathlib import Path

from ray.cluster_utils import Cluster


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - the test reads it


def ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        found.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def main() -> None:
    small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    folder = tempfile.mkdtemp(prefix="ray-")
    head = {"num_cpus": 0, "_system_config": {"health_check_failure_threshold": 2}, **small}
    cluster = Cluster(initialize_head=True, head_node_args={**head, "temp_dir": folder})
    nodes = [cluster.add_node(num_cpus=1, **small) for _ in range(2)]
    say(cluster.address)
    for line in sys.stdin:
        if line == "add\n":
            nodes.append(cluster.add_node(num_cpus=1, **small))
        else:
            line_of = ancestors(int(line.removeprefix("lose ")))
            for node in nodes:
                (raylet,) = node.all_processes["raylet"]
                if raylet.process.pid in line_of:
                    os.kill(raylet.process.pid, 9)
        say("done")
    cluster.shutdown()


if __name__ == "__main__":
    main()
