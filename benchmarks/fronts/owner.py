"""The owner at the other end of the link that `benchmarks.fronts.link` measures.

    python -m benchmarks.fronts.owner FD

FD is its end of a socket pair. It ends when the other end is closed.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import wherry
from wherry.core.runtime.threads import ThreadPool
from wherry.core.workers.loop import new_event_loop
from wherry.core.workers.message_socket import MessageSocket
from wherry.server.fronts.link_protocol import FromFront
from wherry.server.fronts.owner import RowsOwner
from wherry.server.v2.common import Common


@wherry.model(max_batch_size=32, isolation="thread")
def row(name: list[str]) -> list[str]:
    return name


async def serve(link: socket.socket) -> None:
    """Answer the front at the other end until it has gone."""
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    with wherry.Runtime(row) as runtime:
        runtime.ports.workers.use(runtime.port())
        await loop.run_in_executor(None, runtime.start)
        owner = RowsOwner(runtime, Common(), http=lambda _: None, grpc=None)
        owner.on_left = lambda *_: gone.set()
        owner.start()
        link.setblocking(False)
        owner.accept(MessageSocket(link, link, FromFront, copies=False), ThreadPool("rows", 1).run)
        await gone.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(socket.socket(fileno=int(sys.argv[1]))))
