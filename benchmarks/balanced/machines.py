"""Machines that are network namespaces of this one, each on a wire of its own to the proxy's."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

TUNSETIFF: Final = 0x400454CA
IFF_TUN_WITHOUT_HEADER: Final = 0x1001
CLONE_NEWNET: Final = 0x40000000
PROXY: Final = "192.0.2.1"


def address(number: int) -> str:
    """That of a host, as deploy/haproxy has it."""
    return f"192.0.2.{10 + number}"


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """This thread, and the processes that it starts, are on that machine. For root."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        _enter(libc, there)
        yield
    finally:
        _enter(libc, here)
        os.close(here)
        os.close(there)


def _enter(libc: ctypes.CDLL, namespace: int) -> None:
    if libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Machines:
    """The proxy's machine and those of hosts 1 to `count`; gone when the block is left."""

    def __init__(self, count: int) -> None:
        self._mark = f"balanced-{os.getpid()}"
        self.proxy = f"{self._mark}-proxy"
        self.hosts = [f"{self._mark}-h{number + 1}" for number in range(count)]

    def __enter__(self) -> Machines:
        fds: list[int] = []
        for name in (self.proxy, *self.hosts):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        for number, host in enumerate(self.hosts, 1):
            fds.append(_device(self.proxy, f"h{number}", PROXY, address(number)))
            fds.append(_device(host, "wire", address(number), PROXY))
        pairs = [f"{a}:{b}" for a, b in zip(fds[::2], fds[1::2], strict=True)]
        command = [sys.executable, "-m", "benchmarks.balanced.relay", *pairs]
        self._relay = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=fds)
        for fd in fds:
            os.close(fd)
        return self

    def __exit__(self, *exc: object) -> None:
        self._relay.communicate()
        for name in (self.proxy, *self.hosts):
            _ip("netns", "del", name)

    def wire(self, number: int, **how: Any) -> None:
        """Set the wire of a host: delay (seconds), loss (a share), bits_per_second, up."""
        assert self._relay.stdin is not None
        self._relay.stdin.write(json.dumps({"wire": number - 1, **how}).encode() + b"\n")
        self._relay.stdin.flush()


def _device(namespace: str, name: str, own: str, other: str) -> int:
    with inside(namespace):
        fd = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN_WITHOUT_HEADER))
    _ip("-n", namespace, "addr", "add", own, "peer", other, "dev", name)
    _ip("-n", namespace, "link", "set", name, "up")
    return fd


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
