"""Which state do a request and its response senders share, and a call of another model and the
readers of its responses?
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from typing import Any, Callable  # noqa: UP035 - for Python 3.8

from . import pb_utils
from .wire import Incoming


class RequestExchange:
    """The responses of one request, for its request object and its response senders. Most requests
    are answered by what execute() returns, and never have one.

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
        #: Whether execute() returned the request to have it run again.
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


class ServerCall:
    """A call to the server, and an iterator over its responses. After the last one it starts again
    from the first, as Triton's does."""

    def __init__(self, link: Any, key: int) -> None:
        self._link = link
        self.key = key
        self._answers: list[tuple[list[Any], Incoming]] = []
        self._next = 0
        self._done = False
        #: Wakes the awaiting coroutine.
        self._wake: Callable[[], None] | None = None

    def take(self, message: list[Any], incoming: Incoming) -> None:
        """Process a message, under the link's lock."""
        if message[4] is not None:
            self._answers.append((message, incoming))
        if message[3]:
            self._done = True
            self._link.ended(self)
        if self._wake is not None:
            self._wake()

    def cancel(self) -> None:
        """Cancel the call: its last response is then the error CANCELLED. Any time."""
        self._link.cancel(self)

    def drop(self) -> None:
        """Cancel the call and ignore its responses. Any time."""
        if not self._done:
            self._done = True
            self._link.forget(self)

    # For threads

    def only(self) -> Any:
        for response in self:
            return response
        return _no_response()

    def result(self) -> Any:
        """The answer to a call that is not an infer request. Blocks."""
        self._link.inbox.wait_for(self._ready)
        message, _ = self._answers[0]
        error, value, _ = message[4]
        if error is not None:
            raise pb_utils.TritonModelException(error[1])
        return value

    def __iter__(self) -> ServerCall:
        if self._done and self._next == len(self._answers):
            self._next = 0
        return self

    def __next__(self) -> Any:
        self._link.inbox.wait_for(self._ready)
        if self._next == len(self._answers):
            raise StopIteration
        return self._taken()

    def _taken(self) -> Any:
        self._next += 1
        return _response(*self._answers[self._next - 1])

    # For event loops

    def begun(self, decoupled: bool) -> Any:
        """A future of the only response, or of this iterator once its first response is there. The
        call has been sent: it goes on whether or not anything awaits the future."""
        import asyncio

        first = self._first() if decoupled else self._only_async()
        task = asyncio.get_running_loop().create_task(first)
        self._link.tasks.add(task)
        task.add_done_callback(self._link.tasks.discard)
        return task

    async def _first(self) -> ServerCall:
        try:
            await self._arrival()
        except BaseException:  # the future was cancelled
            self.drop()
            raise
        return self

    async def _only_async(self) -> Any:
        try:
            async for response in self:
                return response
            return _no_response()
        finally:
            self.drop()

    def __aiter__(self) -> ServerCall:
        return iter(self)

    async def __anext__(self) -> Any:
        await self._arrival()
        if self._next == len(self._answers):
            raise StopAsyncIteration
        return self._taken()

    async def _arrival(self) -> None:
        """Wait until the next response is there, or the end."""
        import asyncio

        loop = asyncio.get_running_loop()
        while not self._ready():
            woken = asyncio.Event()
            self._wake = functools.partial(_wake, loop, woken)
            self._link.inbox.watch(loop)
            try:
                if not self._ready():
                    await woken.wait()
            finally:
                self._link.inbox.unwatch(loop)

    def _ready(self) -> bool:
        return self._next < len(self._answers) or self._done

    def __del__(self) -> None:
        self.drop()


def _wake(loop: Any, woken: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(woken.set)


def _response(message: list[Any], incoming: Incoming) -> Any:
    error, parameters, outputs = message[4]
    tensors = [pb_utils.Tensor._received(one, incoming) for one in outputs]
    failed = None if error is None else pb_utils.TritonError(error[1], error[0])
    response = pb_utils.InferenceResponse(tensors, failed)
    response._parameters = parameters
    return response


def _no_response() -> Any:
    text = "the model gave no response"
    return pb_utils.InferenceResponse([], pb_utils.TritonError(text))
