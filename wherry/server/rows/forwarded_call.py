"""How does an owner answer a gRPC call that a front has passed on?"""

from __future__ import annotations

from collections.abc import Callable

from wherry.core.api import Buffer
from wherry.server.grpc.rpc import Metadata, Rpc
from wherry.server.remote.link_protocol import AskCall, CallResponsePart


class ForwardedCall(Rpc):
    """A gRPC call that came over a link. `tell` takes the parts of its answer."""

    __slots__ = ("_id", "_tell", "answers_after")

    def __init__(self, ask: AskCall, tell: Callable[[CallResponsePart], None]) -> None:
        super().__init__(ask.path, ask.metadata, timeout=ask.timeout, message=ask.message)
        self._id = ask.id
        self._tell = tell
        #: Calls the function that it is given when the answer may leave.
        self.answers_after: Callable[[Callable[[], None]], None] | None = None

    def respond(self, *message: Buffer) -> None:
        self._end(CallResponsePart(self._id, b"".join(message), "OK"))

    def send(self, *message: Buffer, sent: Callable[[], None] | None = None) -> None:
        """Send one message. `sent` is called at once: the front keeps what its client is slow to
        take, which is little of what is passed on."""
        if not self.ended:
            self._tell(CallResponsePart(self._id, b"".join(message)))
            self.tell(sent)

    def finish(self) -> None:
        self._end(CallResponsePart(self._id, None, "OK"))

    def fail(self, code: str, text: str, metadata: Metadata = ()) -> None:
        self._end(CallResponsePart(self._id, None, code, text, list(metadata)))

    def pause(self) -> None:
        """Do nothing: the one message is here."""

    def resume(self) -> None:
        """Do nothing: the one message is here."""

    def _end(self, part: CallResponsePart) -> None:
        if self.ended:
            return
        self.forget()
        if self.answers_after is None:
            self._tell(part)
        else:
            self.answers_after(lambda: self._tell(part))
