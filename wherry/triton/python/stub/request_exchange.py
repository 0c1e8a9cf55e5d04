"""Which state do a request and its response senders share?

Most requests are answered by what execute() returns, and never have any.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from . import pb_utils


class RequestExchange:
    """The responses of one request, for its request object and its response senders.

    `ended`: it was answered by what execute() returned.
    """

    def __init__(self, link: Any, key: int, *, ended: bool) -> None:
        self._link = link
        self.key = key
        self.decoupled = link.decoupled
        self.cancelled = False
        #: Whether the last response was sent.
        self.ended = ended
        self.responded = False
        #: Whether the request was returned by execute() to be run again.
        self.again = False
        self.handle = weakref.ref(self)
        self._lock = threading.Lock()

    def is_cancelled(self) -> bool:
        if not self.cancelled:
            self._link.inbox.pump()
        return self.cancelled

    def send(self, response: Any, final: bool) -> None:
        error = pb_utils.TritonModelException
        with self._lock:
            if self.ended:
                raise error("Unable to send response. Response sender has been closed.")
            if not self.decoupled and response is not None and self.responded:
                raise error(
                    "Unable to send response. Non-decoupled model cannot send more than one"
                    " response."
                )
            if not self.decoupled and response is None and not self.responded:
                raise error(
                    "Unable to send response. Non-decoupled model cannot send complete final before"
                    " sending a response."
                )
            self._link.respond(self.key, response, final)
            self.responded = self.responded or response is not None
            self.ended = final

    def end(self) -> bool:
        """Reserve the right to send the last response; False if it was sent."""
        with self._lock:
            mine = not self.ended
            self.ended = True
            return mine

    def give_back(self) -> bool:
        """Note that the request is to run again; its senders stay valid. False if it has ended."""
        with self._lock:
            self.again = not self.ended
            return self.again

    def resume(self) -> bool:
        """Note that the request runs again. False if it needs a new exchange."""
        with self._lock:
            again, self.again = self.again and not self.ended, False
            return again

    def __del__(self) -> None:
        if self._link.exchanges.get(self.key) is self.handle:
            del self._link.exchanges[self.key]
        # No sender is left that could send the last response: the client must not wait for it.
        if not self.ended and not self.resume():
            self.ended = True
            failed: list[Any] | None = None
            if self.decoupled or not self.responded:
                message = "the model dropped the request without a final response"
                failed = [[pb_utils.TritonError.INTERNAL, message], "{}", []]
            self._link.outbox.post(["response", self.key, True, failed])
