"""What do a request and its response senders know together?"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from . import pb_utils


class RequestExchange:
    """One request's responses, for its request object and its response senders."""

    def __init__(self, link: Any, key: int, decoupled: bool) -> None:
        self._link = link
        self.key = key
        self.decoupled = decoupled
        self.cancelled = False
        #: It has its last response.
        self.ended = False
        self.responded = False
        #: execute() has given its request back, and is to get it again.
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
        """Take the right to send the last response; False if it has been sent."""
        with self._lock:
            mine = not self.ended
            self.ended = True
            return mine

    def give_back(self) -> bool:
        """The request is to run again; a sender that is held may go on. False: it has its end."""
        with self._lock:
            self.again = not self.ended
            return self.again

    def resume(self) -> bool:
        """The request runs again. False: not with this exchange."""
        with self._lock:
            again, self.again = self.again and not self.ended, False
            return again

    def __del__(self) -> None:
        if self._link.exchanges.get(self.key) is self.handle:
            del self._link.exchanges[self.key]
        # No sender is left for the last response: the client must not wait for ever.
        if not self.ended and not self.resume():
            self.ended = True
            failed: list[Any] | None = None
            if self.decoupled or not self.responded:
                message = "the model dropped the request without a final response"
                failed = [[pb_utils.TritonError.INTERNAL, message], "{}", []]
            self._link.outbox.post(["response", self.key, True, failed])
