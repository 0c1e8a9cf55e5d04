"""What becomes of a request with one answer, whatever protocol it came over?"""

from __future__ import annotations

from abc import ABC, abstractmethod

from wherry.frontends.v2.entry import Entry
from wherry.runtime.loaded_model import LoadedModel
from wherry.values.reply import Reply
from wherry.values.request import InferRequest, InferResponse


class InferCall(Reply[InferResponse], ABC):
    """The reply of one request, with all that its answer needs: one object on the hot path.

    It is settled in any thread; everything else happens in the loop.
    """

    __slots__ = ("entry", "loaded", "port", "request")

    request: InferRequest | None

    def __init__(self, entry: Entry, loaded: LoadedModel) -> None:
        super().__init__(_hand_over)  # type: ignore[arg-type]  # it gets this very object
        self.entry = entry
        self.loaded = loaded
        self.port = entry.port()
        self.request = None

    def cancel(self) -> None:
        """Cancel the request: the client has left."""
        if self.request is not None:
            self.loaded.cancel(self.request)

    @abstractmethod
    def forget(self) -> None:
        """Break the reference of the exchange to this call: nothing is left to cancel."""

    @abstractmethod
    def write(self, response: InferResponse) -> None:
        """Encode and send the answer. What it raises goes to `fail`."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Answer with an error, of the model or ours."""


def _hand_over(call: InferCall) -> None:
    """Pass a call from the thread that settled it to the loop."""
    call.port.call(_answer, call)


def _answer(call: InferCall) -> None:
    outcome = call.outcome
    call.entry.admission.leave()
    # Without the circle of references the garbage collector has nothing to find.
    call.request = None
    call.forget()
    try:
        if isinstance(outcome, Exception):
            call.fail(outcome)
        else:
            call.write(outcome)
    except Exception as error:  # noqa: BLE001 - of the model or ours: the client is told either way
        call.fail(error)
