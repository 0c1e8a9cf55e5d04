"""A front whose owners are actors of Ray: `wherry serve --on ray`, on one node and on several."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes import until
from tests.integration.pools import APP, callers, owners, parent
from wherry.testing import ServerProcess

pytest.importorskip("ray", reason="needs ray, which is not here")
pytestmark = [pytest.mark.full, pytest.mark.slow]

HERE = Path(__file__).parent
QUIET = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}


def front(folder: Path, replicas: str, **env: str) -> ServerProcess:
    (folder / "app.py").write_text(APP)
    environment = {**QUIET, "PYTHONPATH": str(HERE.parents[1]), **env}
    flags = ["--on", "ray", "--replicas", replicas]
    return ServerProcess("app.py", *flags, cwd=str(folder), env=environment)


def processes_named(name: str, folder: Path) -> list[str]:
    """The command lines with this name that run in this folder."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            line = (one / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if name in line and str(folder) == os.readlink(one / "cwd"):
                found.append(line)
        except OSError:
            continue
    return found


def test_with_one_command_and_nothing_is_lost_when_an_actor_is_killed(tmp_path: Path) -> None:
    with front(tmp_path, "2") as running:
        first = owners(running.url, 2)
        with callers(running.url, 8) as seen:
            until(lambda: seen.total() > 100)
            os.kill(parent(min(first)), signal.SIGKILL)
            until(lambda: "replica serves  replica=2" in running.log)
            second = owners(running.url, 2)
        assert seen == {(200, ""): seen.total()}
        assert first & second == {max(first)}
        assert running.stop() == 0
    until(lambda: not processes_named("wherry", tmp_path))


class RayCluster:
    """ray_cluster_program.py."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = self.told()

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        assert self.told() == "done"

    def told(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def cluster(folder: Path) -> Iterator[RayCluster]:
    with (folder / "ray.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "ray_cluster_program.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder,
            env={**os.environ, **QUIET, "PYTHONPATH": str(HERE.parents[1])},
        )  # fmt: skip
        try:
            yield RayCluster(process)
        finally:
            process.communicate(timeout=60)


def test_a_lost_node_costs_no_request_and_a_new_one_is_used(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes, front(tmp_path, "2", RAY_ADDRESS=nodes.address) as running:
        first = owners(running.url, 2)
        with callers(running.url, 8) as seen:
            until(lambda: seen.total() > 100)
            nodes.tell(f"lose {min(first)}")
            until(lambda: "replica has ended" in running.log or "replica is lost" in running.log)
            nodes.tell("add")
            until(lambda: "replica serves  replica=2" in running.log)
            until(lambda: "replica is gone  replica=" in running.log)
            assert max(first) in owners(running.url, 2)
        assert seen == {(200, ""): seen.total()}
        assert running.stop() == 0
