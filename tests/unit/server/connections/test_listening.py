"""New connections go to another process on the same port, and none is lost between the two."""

import asyncio
import socket
import sys
from collections.abc import Iterator

import pytest

from wherry.server.connections.listening import (
    accept_all,
    lead_back,
    lead_elsewhere,
    let_no_more_in,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs of Linux")


class Port:
    """Sockets that listen on one port, the eldest first."""

    def __init__(self, host: str, count: int) -> None:
        self.sockets: list[socket.socket] = []
        port = 0
        for _ in range(count):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            sock = socket.create_server((host, port), family=family, reuse_port=True, backlog=512)
            self.sockets.append(sock)
            port = sock.getsockname()[1]
        self._clients: list[socket.socket] = []

    def connect(self, times: int) -> None:
        at = self.sockets[0].getsockname()
        for _ in range(times):
            self._clients.append(socket.create_connection(at[:2], timeout=10))

    def arrived(self, sock: socket.socket) -> int:
        connections = accept_all(sock)
        for connection in connections:
            connection.close()
        return len(connections)

    def close(self) -> None:
        for sock in (*self.sockets, *self._clients):
            sock.close()


@pytest.fixture
def ports() -> Iterator[list[Port]]:
    made: list[Port] = []
    yield made
    for port in made:
        port.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
@pytest.mark.parametrize(("count", "leaving"), [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)])
def test_new_connections_go_to_the_others_wherever_one_stands_among_them(
    ports: list[Port], host: str, count: int, leaving: int
) -> None:
    port = Port(host, count)
    ports.append(port)
    old = port.sockets[leaving]
    port.connect(20)
    had, others = 0, [s for s in port.sockets if s is not old]

    async def lead() -> None:
        nonlocal had
        led, arrived = await lead_elsewhere(old)
        assert led
        had = len(arrived)
        for connection in arrived:
            connection.close()

    asyncio.run(lead())
    had += port.arrived(old)
    probes = 20 - had - sum(port.arrived(s) for s in others)
    assert probes in (0, -1)  # one of ours may have gone to another process
    port.connect(40)
    assert port.arrived(old) == 0
    let_no_more_in(old)
    lead_back(old)
    old.close()
    port.sockets.remove(old)
    assert sum(port.arrived(s) for s in others) == 40
    port.connect(100)
    got = [port.arrived(s) for s in others]
    assert sum(got) == 100
    assert min(got) > 0  # among all of them again


def test_one_that_is_alone_keeps_its_connections(ports: list[Port]) -> None:
    port = Port("127.0.0.1", 1)
    ports.append(port)
    (alone,) = port.sockets
    port.connect(5)

    async def lead() -> int:
        led, arrived = await lead_elsewhere(alone)
        assert not led
        for connection in arrived:
            connection.close()
        return len(arrived)

    assert asyncio.run(lead()) == 5
    port.connect(3)
    assert port.arrived(alone) == 3


def test_a_unix_socket_is_left_as_it_is() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert asyncio.run(lead_elsewhere(ours)) == (False, [])
