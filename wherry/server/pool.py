"""How does a front get its links to owners, and keep them?"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from wherry.remote.handshake import HandshakeFailed, Identity, identity
from wherry.remote.held import HOLD
from wherry.remote.link import OwnerLink
from wherry.remote.members import (
    Address,
    ReplicaSource,
    ReplicaStatus,
    WantedOwners,
    address_of,
    text_of,
)
from wherry.remote.messages import PROTOCOL, FromOwner, FrontSettings, Hello, Measure, OwnedModels
from wherry.remote.tcp import Credentials, connected, greet_owner, message_socket, round_trip
from wherry.runtime.loop_port import LoopPort
from wherry.runtime.remote_models import RemoteModels
from wherry.runtime.runtime import Runtime
from wherry.runtime.threads import ThreadPool
from wherry.workers.frames import Garbage

log = logging.getLogger("wherry")

#: Seconds from one look at a name to the next.
RESOLVE: Final = 2.0

#: What an attempt to get a link may raise.
_NO_LINK: Final = (HandshakeFailed, Garbage, OSError, EOFError)


@dataclass(slots=True, eq=False)
class _Linked:
    """One link and what is known of its other end."""

    address: str
    link: OwnerLink
    identity: Identity
    device: str = ""
    state: str = "connected"


class OwnerPool:
    """The links of one front.

    `add`, `remove` and `replicas` are for any thread; everything else happens in the loop that
    calls `start`. `on_change` is called there after the state of a replica has changed.
    """

    def __init__(
        self, runtime: Runtime, replicas: ReplicaSource, *, token: bytes, most_bytes: int
    ) -> None:
        """`most_bytes`: of a message, either way."""
        self.on_change: Callable[[], None] = lambda: None
        self._runtime = runtime
        self._replicas = replicas
        self._token = token
        self._most_bytes = most_bytes
        self._credentials: Credentials | None = None
        self._members = WantedOwners(random.random)
        self._owners: dict[OwnerLink, _Linked] = {}
        #: `replicas` for other threads; replaced, not changed.
        self._shown: tuple[tuple[ReplicaStatus, OwnerLink | None], ...] = ()
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._before: list[tuple[Callable[[Address], None], Address]] = []
        #: Why the name has no addresses.
        self._name_error = ""
        self._port: LoopPort | None = None
        self._models: RemoteModels | None = None
        self._aside = ThreadPool("wherry-rows", 2).run

    # Any thread

    def add(self, address: str) -> None:
        """Have links to this owner, HOST:PORT, until `remove`. ConfigError if it is no address."""
        self._do(self._add, address_of(address))

    def remove(self, address: str) -> None:
        """Send nothing new to this owner; the link is closed when all is answered."""
        self._do(self._remove, address_of(address))

    def replicas(self) -> Sequence[ReplicaStatus]:
        """The owners that are wanted or still have requests."""
        return [one if link is None else replace(one, rows=link.rows) for one, link in self._shown]

    def _do(self, call: Callable[[Address], None], address: Address) -> None:
        port = self._port
        if port is None:
            self._before.append((call, address))
        else:
            port.call(call, address)

    # Life

    def start(self, version: str) -> None:
        """Get links to the owners, and to those that are added. This front is of `version`."""
        self._models = RemoteModels(self._runtime, hold=HOLD)
        name = f"{socket.gethostname()}:{os.getpid()}"
        self._credentials = Credentials(
            identity(version, name, most_bytes=self._most_bytes), self._token
        )
        replicas = self._replicas
        for address in replicas.addresses:
            self._members.add(address)
        self._port = self._runtime.port()
        before, self._before = self._before, []
        for call, address in before:
            call(address)
        self._spawn(self._connect_all())
        if replicas.name is not None:
            self._spawn(self._resolve(*replicas.name))
        self._note()

    async def ready(self) -> None:
        """Wait until every model that an owner has told of is ready."""
        while not self.is_ready():
            self._changed.clear()
            await self._changed.wait()

    def is_ready(self) -> bool:
        with self._runtime.registry.quietly() as life:
            missing = dict(life.missing)
        told = any(owner.state == "ready" for owner in self._owners.values())
        return told and not missing and not self._runtime.not_ready()

    def not_ready_reason(self) -> str:
        """Why no owner can be reached; "" if one can."""
        if any(owner.state != "leaving" for owner in self._owners.values()):
            return ""
        errors = self._members.errors()
        last = next(iter(errors.values()), self._name_error)
        return f"no owner at {self._replicas} answers" + (f" ({last})" if last else "")

    # For what is passed on

    def links(self) -> Sequence[OwnerLink]:
        """Owners that can be asked what is not for a model, the ready ones first."""
        owners = [one for one in self._owners.values() if one.state != "leaving"]
        owners.sort(key=lambda one: (one.link.is_quiet, one.state != "ready"))
        return [one.link for one in owners]

    def choose(self) -> OwnerLink | None:
        return next(iter(self.links()), None)

    async def end(self) -> None:
        """Close every link."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in list(self._owners):
            link.close()

    # LinkEvents

    def models_of(self, link: OwnerLink, models: OwnedModels) -> None:
        assert self._models is not None
        owner = self._owners[link]
        owner.device = models.device
        if owner.state != "leaving":
            owner.state = "ready" if models.cards else "connected"
            self._models.update(owner.address, link, models)
        self._note()

    def of_this_machine(self, link: OwnerLink, message: FrontSettings | Measure) -> None:
        """Do nothing: it is for fronts that the owner has started itself."""

    def leaving(self, link: OwnerLink) -> None:
        """The owner takes no more: its requests go elsewhere from now on."""
        owner = self._owners[link]
        log.info("an owner takes no more requests", extra={"replica": owner.address})
        self._leave(owner)

    def ended(self, link: OwnerLink, error: Exception) -> None:
        assert self._models is not None
        owner = self._owners.pop(link)
        why = "it has left" if owner.state == "leaving" else _told(error)
        log.info("an owner has gone", extra={"replica": owner.address, "why": why})
        self._models.withdraw(link)
        self._lost(address_of(owner.address), why)
        self._note()

    # Links

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _add(self, address: Address) -> None:
        self._members.add(address)
        self._note()
        self._wake.set()

    def _remove(self, address: Address) -> None:
        if self._members.remove(address):
            self._gone([address])

    def _gone(self, addresses: Iterable[Address]) -> None:
        """These are not wanted any more."""
        assert self._models is not None
        for address in map(text_of, addresses):
            for owner in list(self._owners.values()):
                if owner.address == address and owner.state != "leaving":
                    self._leave(owner)
            self._models.forget(address)
        self._note()

    def _leave(self, owner: _Linked) -> None:
        assert self._models is not None
        owner.state = "leaving"
        self._models.withdraw(owner.link)
        self._note()
        owner.link.leave()

    async def _connect_all(self) -> None:
        """Connect to what is due, for ever."""
        while True:
            now = time.monotonic()
            for address in self._members.due(now):
                self._spawn(self._connect(address))
            next_at = self._members.next_at()
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if next_at is None else max(0.0, next_at - now)):
                    await self._wake.wait()

    async def _connect(self, address: Address) -> None:
        credentials = self._credentials
        assert credentials is not None
        try:
            sock = await connected(*address)
            try:
                owner = await greet_owner(sock, credentials)
            except BaseException:
                sock.close()
                raise
        except _NO_LINK as error:
            self._lost(address, _told(error))
            self._note()
            return
        if address not in self._members:
            sock.close()
            return
        self._members.connected(address)
        most = self._most_bytes
        messages = message_socket(
            sock, FromOwner, receives=most, sends=min(most, owner.most_bytes or most)
        )
        link = OwnerLink(
            self._runtime.port(),
            messages,
            self,
            text_of(address),
            self._aside,
            reports=True,
            round_trip=round_trip(sock),
        )
        self._owners[link] = _Linked(text_of(address), link, owner)
        link.start()
        said = credentials.identity
        link.add(Hello(PROTOCOL, said.version, said.name, reports=True))
        link.write_soon()
        self._note()
        extra = {"replica": text_of(address), "owner": owner.name, "version": owner.version}
        log.info("connected to an owner", extra=extra)

    def _lost(self, address: Address, why: str) -> None:
        if self._members.ended(address, time.monotonic(), why):
            log.warning("no link to an owner", extra={"replica": text_of(address), "why": why})
        self._wake.set()

    async def _resolve(self, name: str, port: int) -> None:
        """Follow the addresses of a name, for ever. While it has none, those that it had stay:
        that the name service fails is no reason to leave them."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            except OSError as error:
                self._name_error = _told(error)
            else:
                self._name_error = ""
                self._gone(self._members.set((str(one[4][0]), port) for one in found))
                self._wake.set()
            self._note()
            await asyncio.sleep(RESOLVE)

    # What is shown

    def _note(self) -> None:
        """Something has changed."""
        assert self._models is not None
        if self._models.no_owner != (why := self.not_ready_reason()):
            self._models.no_owner = why
            self._models.settle()
        shown: list[tuple[ReplicaStatus, OwnerLink | None]] = [
            (ReplicaStatus(one.address, one.state, who.name, who.version, one.device), one.link)
            for one, who in ((one, one.identity) for one in self._owners.values())
        ]
        errors = self._members.errors()
        linked = {one.address for one in self._owners.values() if one.state != "leaving"}
        for address, text in ((one, text_of(one)) for one in self._members):
            if text not in linked:
                error = errors.get(address, "")
                shown.append((ReplicaStatus(text, "connecting", error=error), None))
        self._shown = tuple(shown)
        self._changed.set()
        self.on_change()


def _told(error: BaseException) -> str:
    """The reason as people read it."""
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, OSError):
        if error.errno is not None and error.errno > 0:
            return os.strerror(error.errno)  # asyncio's own text names the address again
        return error.strerror or str(error)
    return str(error) or type(error).__name__
