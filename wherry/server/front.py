"""What does a front process do from its start to its end?

    python -m wherry.server.front LINK NUMBER

LINK is the descriptor of its end of a socket pair: first its options come, then messages. NUMBER
says which of the server's fronts it is. It ends
when it is told so (SIGTERM), or when the owner is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from wherry.frontends.connections.full_memory import MemoryPlan
from wherry.frontends.rows.pass_on import PassOn
from wherry.observability.logging import configure
from wherry.remote.link import OwnerLink
from wherry.remote.messages import PROTOCOL, FromOwner, Hello, OwnedModels
from wherry.runtime.remote_models import RemoteModels
from wherry.runtime.runtime import Runtime
from wherry.runtime.threads import ThreadPool
from wherry.server.listeners import Listeners
from wherry.server.options import OF_A_SERVER, Options
from wherry.server.parts import Applications, applications
from wherry.server.server import Server
from wherry.workers.message_socket import MessageSocket

log = logging.getLogger("wherry")

#: Seconds that clients have to take their answers when the owner is gone.
OWNER_GONE: Final = 1.0


class FrontRuntime(Runtime):
    """A runtime whose models are those of an owner."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock = sock
        self._models: RemoteModels | None = None
        self.link: OwnerLink | None = None
        #: Set when the owner has told of its models.
        self.told = asyncio.Event()
        #: Called when the owner is gone.
        self.on_end: Callable[[], None] = lambda: None

    def owner(self) -> OwnerLink | None:
        """The link to the owner, if there is one."""
        return self.link if self.link is not None and self.link.is_open else None

    async def connect(self, version: str) -> None:
        """Say hello to the owner. In the loop."""
        port = self.port()
        self._sock.setblocking(False)
        messages = MessageSocket(self._sock, self._sock, FromOwner, copies=False)
        self._models = RemoteModels(self)
        self.link = OwnerLink(port, messages, self, "owner", ThreadPool("wherry-rows", 2).run)
        self.link.start()
        self.link.add(Hello(PROTOCOL, version, f"front {os.getpid()}", False))
        self.link.write_soon()

    def models_of(self, link: OwnerLink, models: OwnedModels) -> None:
        assert self._models is not None
        self._models.update(link, models)
        self.told.set()

    def leaving(self, link: OwnerLink) -> None:
        """The owner takes no more: those that come are refused."""
        assert self._models is not None
        self._models.withdraw_all(link)

    def ended(self, link: OwnerLink, error: Exception) -> None:
        """The owner is gone, and this front with it."""
        log.info("the owner has ended", extra={"why": str(error) or type(error).__name__})
        self.leaving(link)
        self.told.set()
        self.on_end()


class FrontServer(Server):
    """Serves the clients of one front process."""

    def __init__(self, runtime: FrontRuntime, options: Options) -> None:
        self._front = runtime
        super().__init__(runtime, **{name: getattr(options, name) for name in OF_A_SERVER})

    def _make_listeners(self, options: Options, plan: MemoryPlan) -> tuple[Applications, Listeners]:
        made = applications(self.control, options, plan, PassOn(self._front.owner))
        return made, Listeners(made, options, plan, is_front=True)

    def _signals(self) -> list[int]:
        return [signal.SIGTERM]

    def _end_now(self, number: int) -> None:
        """Do nothing: a signal to all processes of a service comes from the owner, too."""

    def _say(self, event: str, **fields: object) -> None:
        # Of the whole server the owner says it.
        log.debug(event, extra=fields)

    async def _load(self) -> bool:
        self._front.on_end = self._owner_is_gone
        await self._front.connect(self._applications.common.version)
        await self._front.told.wait()  # the first request finds the models here
        return True

    def _owner_is_gone(self) -> None:
        """Send the answers that there are, and end."""
        self.drain_timeout = min(self.drain_timeout, OWNER_GONE)
        self._stopping.set()


def main(link: int, number: int) -> int:
    """Serve until SIGTERM, as the front of this number. Returns the exit code."""
    sock = socket.socket(fileno=link)
    size = int.from_bytes(_exactly(sock, 4), "little")
    options = msgspec.json.decode(_exactly(sock, size), type=Options)
    handler = configure(options.command_line.log_level, options.command_line.log_format)

    def say_which(record: logging.LogRecord) -> bool:
        record.front = number
        return True

    handler.addFilter(say_which)
    return FrontServer(FrontRuntime(sock), options).run()


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise SystemExit(0)  # the owner is gone already
        data += part
    return data


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
