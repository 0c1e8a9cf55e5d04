"""How is a large message of a request read while the event loop goes on?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from wherry.core.api import Buffer
from wherry.server.grpc.wire import Message, Values
from wherry.server.v2.decoded import counted
from wherry.server.v2.entry import Beside
from wherry.server.v2.grpc.entry import GrpcEntry
from wherry.server.v2.grpc.known_requests import Decoded


class LargeRequest:
    """Decodes a large message of a request in steps, in another thread where one takes long.

    `done(self, error)` is told once, perhaps by `start`; without an error, `found` is set.
    """

    found: Decoded

    def __init__(
        self,
        entry: GrpcEntry,
        kind: Message,
        message: Buffer,
        done: Callable[[LargeRequest, Exception | None], None],
    ) -> None:
        #: The request's id, as far as it is known.
        self.id = ""
        self.entry = entry
        self._kind = kind
        self._message = message
        self._done = done
        self._is_light = False
        self._work: Beside | None = None

    def start(self) -> None:
        kind, message = self._kind, self._message
        self._is_light = kind.is_light(message, "raw_input_contents")
        self._step(self._begin, None)

    def cancel(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.cancel()

    def _begin(self, _: None) -> bool:
        self.entry.admission.check()
        decode = partial(self._kind.decode, self._message)
        if self._is_light:
            return self._find(decode())
        return self._beside(decode, self._find)

    def _find(self, wire: Values) -> bool:
        self.id = wire.get("id", "")
        loaded, codec = self.entry.find(wire)
        if self._is_light and codec.reads_in_place(wire):
            return self._take(self.entry.decode(self._message, wire, loaded, codec))
        return self._beside(lambda: (loaded, codec, counted(codec.decode(wire))), self._take)

    def _take(self, found: Decoded) -> bool:
        self.found = found
        return True

    def _beside(self, work: Callable[[], Any], then: Callable[[Any], bool]) -> bool:
        done = partial(self._step, then)
        self._work = Beside(self.entry, work, done, len(self._message))
        return False

    def _step(self, then: Callable[[Any], bool], outcome: Any) -> None:
        """Call `then` with the outcome of a step; it returns whether this was the last one."""
        self._work = None
        error: Exception | None = None
        try:
            if isinstance(outcome, Exception):
                raise outcome
            if not then(outcome):
                return
        except Exception as refused:  # noqa: BLE001 - whatever it is, the client is told
            error = refused
        self._message = b""  # free it: the columns hold what is needed
        self._done(self, error)
