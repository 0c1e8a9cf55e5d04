"""Does a transport that is given several buffers say when it is full?"""

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from wherry.server.connections.gathered import gathered_write


class ResponsePart(asyncio.Protocol):
    def __init__(self) -> None:
        self.paused = False

    def pause_writing(self) -> None:
        self.paused = True


@pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
@pytest.mark.parametrize("forgets", [None, True])
def test_a_transport_that_is_full_pauses_its_protocol(
    new_loop: Callable[[], asyncio.AbstractEventLoop], forgets: bool | None
) -> None:
    """asyncio's does not by itself in Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1."""

    async def main() -> None:
        ours, peers = socket.socketpair()
        with peers:
            transport, told = await asyncio.get_running_loop().create_connection(
                ResponsePart, sock=ours
            )
            write = (
                gathered_write(transport)
                if forgets is None
                else gathered_write(transport, forgets=forgets)
            )
            write([b"head", bytearray(2**20), memoryview(bytes(2**20))])
            assert told.paused
            assert transport.get_write_buffer_size() > 2**19
            transport.abort()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


def test_what_is_written_arrives_in_order() -> None:
    async def main() -> None:
        ours, peers = socket.socketpair()
        with peers:
            transport, _ = await asyncio.get_running_loop().create_connection(
                ResponsePart, sock=ours
            )
            gathered_write(transport, forgets=True)([b"a", bytearray(b"b"), memoryview(b"c")])
            gathered_write(transport, forgets=False)([b"d", bytearray(b"e"), memoryview(b"f")])
            assert peers.recv(16) == b"abcdef"
            transport.abort()

    asyncio.run(main())
