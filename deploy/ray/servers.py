"""Whole wherry servers as actors of Ray, one for each GPU, behind HAProxy.

    python deploy/ray/servers.py app.py --servers 4 --gpus 1 --haproxy /run/haproxy/admin.sock

HAProxy is that of deploy/haproxy, with `stats socket PATH level admin`: of its backend `wherry`
this program sets the addresses of the servers h1, h2, ... Ray places the actors, here, or on the
nodes of the cluster that RAY_ADDRESS names. What comes after `--` are options of `wherry serve`.

A server ends with its actor (SIGTERM from the kernel: it drains), also when the raylet, or this
program, is killed; one that ends is started anew. Ray runs actors at nice 15, and with them the
servers: start Ray with RAY_worker_niceness=0.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import Any

import ray


@ray.remote(max_concurrency=1)
class Server:
    """A server on the actor's node, with the actor's GPUs. One thread: the kernel sends the signal
    at the end of the thread that has started it."""

    def __init__(self, words: list[str]) -> None:
        self.host = ray.util.get_node_ip_address()
        with contextlib.ExitStack() as held:
            free = [held.enter_context(socket.create_server((self.host, 0))) for _ in range(2)]
            self.port, self.agent = (one.getsockname()[1] for one in free)
        ready, theirs = os.pipe()
        command = [
            "setpriv", "--pdeathsig", "TERM", "--", sys.executable, "-m", "wherry", "serve", *words,
            f"--host={self.host}", f"--port={self.port}", f"--agent-port={self.agent}",
            f"--ready-fd={theirs}",
        ]  # fmt: skip
        # A group of its own: the raylet kills that of an actor at once, and it would not drain.
        self.process = subprocess.Popen(command, pass_fds=[theirs], start_new_session=True)
        os.close(theirs)
        with os.fdopen(ready) as pipe:
            if not pipe.readline():
                raise RuntimeError(f"{words[0]}: wherry serve ended with {self.process.wait()}")

    def where(self) -> tuple[str, int, int]:
        """The host, its port, and that of the agent check; the models are ready."""
        return self.host, self.port, self.agent

    def ended(self) -> int:
        """Wait for the server's end; its exit code. Without its raylet the actor ends, too."""
        raylet = os.getppid()
        while os.getppid() == raylet:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(timeout=1)
        os._exit(1)


class HAProxy:
    """The servers of a backend, by the socket of a running HAProxy; without one it does nothing."""

    def __init__(self, path: str, backend: str) -> None:
        self.path, self.backend = path, backend

    def set(self, name: str, host: str, port: int, agent: int) -> None:
        for what in (
            f"addr {host} port {port}", f"check-addr {host} port {port}",
            f"agent-addr {host} port {agent}", "state ready",
        ):  # fmt: skip
            self._send(f"set server {self.backend}/{name} {what}")

    def drop(self, name: str) -> None:
        self._send(f"set server {self.backend}/{name} state maint")

    def _send(self, line: str) -> None:
        if not self.path:
            return
        with socket.socket(socket.AF_UNIX) as admin:
            admin.connect(self.path)
            admin.sendall(line.encode() + b"\n")
            told = admin.makefile().read().strip()
        if told and not told.startswith(("IP changed", "port changed", "no need")):
            print(f"HAProxy: {line}: {told}", file=sys.stderr)  # noqa: T201


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="+", help="what wherry serve takes")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--gpus", type=float, default=0, help="of each server")
    parser.add_argument("--cpus", type=float, default=1, help="of each server")
    parser.add_argument("--haproxy", default="", help="its socket")
    parser.add_argument("--backend", default="wherry")
    options, more = parser.parse_known_args()
    haproxy = HAProxy(options.haproxy, options.backend)
    ray.init()
    made = Server.options(num_gpus=options.gpus, num_cpus=options.cpus)
    words = options.targets + [word for word in more if word != "--"]
    waits: dict[Any, tuple[str, Any]] = {}
    ready: set[str] = set()

    def start(name: str) -> None:
        actor = made.remote(words)
        waits[actor.where.remote()] = name, actor

    for number in range(options.servers):
        start(f"h{number + 1}")
    while waits:
        ((done,), _) = ray.wait(list(waits))
        name, actor = waits.pop(done)
        try:
            told = ray.get(done)
        except ray.exceptions.ActorDiedError as error:
            told = error
        if isinstance(told, tuple):
            haproxy.set(name, *told)
            print(name, *told, flush=True)  # noqa: T201
            ready.add(name)
            waits[actor.ended.remote()] = name, actor
        elif name in ready:
            print(f"{name} ended, and is started anew: {told}", file=sys.stderr)  # noqa: T201
            haproxy.drop(name)
            ray.kill(actor)
            start(name)
        else:
            sys.exit(f"{name} could not be started: {told}")


if __name__ == "__main__":
    main()
