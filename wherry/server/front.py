"""What does a front process do from its start to its end?

    python -m wherry.server.front LINK NUMBER

LINK is the descriptor of its end of a socket pair: first its options come, then messages. NUMBER
is that of this front among the server's. It ends on SIGTERM, or when the owner is gone.
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

from wherry.core.api import (
    FrontFigures,
    MessageSocket,
    ProcessFigures,
    Runtime,
    ThreadPool,
    configure,
    in_thread,
    process_figures,
)
from wherry.server.connections.limits import MemoryPlan
from wherry.server.fronts.link import News, OwnerLink
from wherry.server.fronts.link_protocol import (
    FromOwner,
    FrontMeasured,
    FrontSettings,
    Hello,
    Measure,
)
from wherry.server.fronts.pass_on import PassOn
from wherry.server.fronts.runner import RemoteModels
from wherry.server.listeners import Listeners
from wherry.server.options import OF_A_SERVER, Options
from wherry.server.parts import Applications, applications
from wherry.server.server import Server
from wherry.server.v2.shared_memory import SharedRegion

log = logging.getLogger("wherry")

#: Seconds that clients have to take their answers when the owner is gone.
OWNER_GONE: Final = 1.0
#: Seconds without a message of the owner, which sends one every 10, until it counts as hung.
OWNER_SILENCE: Final = 45.0


class LocalOwner:
    """The link to the process that has started this one, and owns its models.

    `on_settings` gets what its fronts must know alike, `on_measure` is called when it requests
    this one's figures, `on_end` when it is gone.
    """

    def __init__(self, runtime: Runtime, sock: socket.socket) -> None:
        self.on_end: Callable[[], None] = lambda: None
        self._runtime = runtime
        self._sock = sock
        self._models: RemoteModels | None = None
        self._link: OwnerLink | None = None
        #: Set when the owner has sent its models.
        self.received_models = asyncio.Event()
        self.on_settings: Callable[[FrontSettings], None] = lambda _: None
        self.on_measure: Callable[[], None] = lambda: None
        self._last_message_at = float("inf")  # by the loop's clock; none has come yet

    @property
    def is_silent(self) -> bool:
        """Whether it has been silent for so long that it hangs. In the loop."""
        return asyncio.get_running_loop().time() - self._last_message_at > OWNER_SILENCE

    def link(self) -> OwnerLink | None:
        """None before `start` and after the end."""
        return self._link if self._link is not None and self._link.is_open else None

    def start(self) -> None:
        """Send Hello. In the loop."""
        port = self._runtime.port()
        self._sock.setblocking(False)
        messages = MessageSocket(self._sock, self._sock, FromOwner, copies=False)
        self._models = RemoteModels(self._runtime)
        aside = ThreadPool("wherry-rows", 2).run
        self._link = OwnerLink(port, messages, aside, on_news=self._news, on_end=self._ended)
        self._link.start()
        self._link.add(Hello(f"front {os.getpid()}"))
        self._link.write_soon()

    def _news(self, message: News) -> None:
        self._last_message_at = asyncio.get_running_loop().time()
        if isinstance(message, FrontSettings):
            self.on_settings(message)
        elif isinstance(message, Measure):
            self.on_measure()
        else:
            assert self._models is not None
            assert self._link is not None
            self._models.update(self._link, message)
            self.received_models.set()

    def _ended(self, error: Exception) -> None:
        log.info("the owner has ended", extra={"why": str(error) or type(error).__name__})
        self.received_models.set()
        self.on_end()


class FrontServer(Server):
    def __init__(self, sock: socket.socket, options: Options) -> None:
        runtime = Runtime()
        self._owner = LocalOwner(runtime, sock)
        super().__init__(runtime, **{name: getattr(options, name) for name in OF_A_SERVER})

    def _make_listeners(self, options: Options, plan: MemoryPlan) -> tuple[Applications, Listeners]:
        made = applications(self.control, options, plan, PassOn(self._owner.link))
        made.watched.level = logging.DEBUG  # the owner logs it
        return made, Listeners(made, options, plan, is_front=True)

    def _signals(self) -> list[int]:
        return [signal.SIGTERM]

    def _end_now(self, number: int) -> None:
        """Do nothing: a signal to all processes of a service comes from the owner, too."""

    def _log(self, event: str, **fields: object) -> None:
        # The owner logs it for the whole server.
        log.debug(event, extra=fields)

    async def _load(self) -> bool:
        self._owner.on_end = self._owner_is_gone
        self._owner.on_settings = self._use
        self._owner.on_measure = self._measure
        self._applications.http.live_while(lambda: not self._owner.is_silent)
        self._owner.start()
        await self._owner.received_models.wait()  # the first request finds the models here
        return True

    def _use(self, settings: FrontSettings) -> None:
        common = self._applications.common
        common.tenant_key = settings.tenant_key
        common.log_settings.update(settings.log)
        common.shared_memory.use([SharedRegion(*one) for one in settings.regions])

    def _measure(self) -> None:
        try:
            looks = in_thread(process_figures, "wherry-metrics")
        except RuntimeError:  # the system gives no thread, and the owner takes silence for a hang
            self._send_figures(process_figures())
        else:
            looks.add_done_callback(lambda looked: self._send_figures(looked.result()))

    def _send_figures(self, process: ProcessFigures) -> None:
        link, listeners, common = self._owner.link(), self._listeners, self._applications.common
        if link is not None:
            stall = common.loop_stall
            figures = FrontFigures(
                listeners.connections,
                listeners.calls,
                common.admission.refused,
                list(stall.seconds.counts),
                stall.seconds.total,
                stall.longest,
                process,
            )
            link.add(FrontMeasured(figures))
            link.write_soon()

    def _owner_is_gone(self) -> None:
        """Send the answers that there are, and end."""
        self.drain_timeout = min(self.drain_timeout, OWNER_GONE)
        self._stopping.set()


def main(link: int, number: int) -> int:
    """Serve until SIGTERM, as the front of this number. Returns the exit code. Other signals that a
    service manager sends to all processes are the owner's to act upon."""
    for signal_number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)
    sock = socket.socket(fileno=link)
    size = int.from_bytes(_exactly(sock, 4), "little")
    options = msgspec.json.decode(_exactly(sock, size), type=Options)
    flags = options.command_line
    handler = configure(
        flags.log_level,
        flags.log_format,
        file=flags.log_file,
        off=flags.log_off,
    )

    def add_front(record: logging.LogRecord) -> bool:
        record.front = number
        return True

    handler.addFilter(add_front)
    return FrontServer(sock, options).run()


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
