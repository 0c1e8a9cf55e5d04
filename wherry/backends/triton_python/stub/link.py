"""Which messages does a worker exchange with the server?"""

from __future__ import annotations

import itertools
import time
import weakref
from collections import deque
from typing import Any, Callable  # noqa: UP035 - for Python 3.8

import numpy as np

from . import pb_utils
from .inbox import Inbox
from .outbox import Outbox
from .request_exchange import RequestExchange
from .server_call import ServerCall
from .text import clean, write_record
from .wire import Channel, Incoming, Outgoing

_LEVELS = {0: 20, 1: 30, 2: 40, 3: 10}


class Link:
    """The worker's end: receives requests, sends responses, calls and measurements."""

    def __init__(self, channel: Channel, model: str, model_dir: str) -> None:
        self.model = model
        self.model_dir = model_dir
        #: Between initialize() and finalize(), where the model may call others.
        self.serving = False
        self.executing = False
        #: Metric families by name, as first defined.
        self.families: dict[str, Any] = {}
        #: Batches for execute(), and `stop`: for the main thread.
        self.work: deque[tuple[list[Any], Incoming]] = deque()
        #: Called in any thread after an addition to `work`, while a loop runs.
        self.on_work: Callable[[], object] | None = None
        self.inbox = Inbox(channel, self._take)
        self.outbox = Outbox(channel)
        self._channel = channel
        #: Address of the slab in this process.
        self.address = 0
        #: Weak references: an exchange that is freed without a last response reports that, and
        #: removes itself.
        self.exchanges: dict[int, Callable[[], RequestExchange | None]] = {}
        self._calls: weakref.WeakValueDictionary[int, ServerCall] = weakref.WeakValueDictionary()
        self._call_keys = itertools.count()
        #: Requests cancelled before they reached execute().
        self._cancelled_early: set[int] = set()

    def use(self, slab: Any) -> None:
        """Set the shared memory: the first half is for receiving, the second for sending."""
        self._channel.memory = slab
        self.address = np.frombuffer(slab, np.uint8).ctypes.data
        self.outbox.use(slab)

    # Receiving

    def next_work(self) -> tuple[list[Any], Incoming]:
        if not self.work:
            self._cancelled_early.clear()
            self.inbox.wait_for(lambda: self.work)
        return self.work.popleft()

    def _take(self, message: list[Any], incoming: Incoming) -> None:
        """Process a message, under the inbox's lock. Its second element is the number of our
        messages that the server has read from the slab."""
        kind = message[0]
        if message[1]:
            self.outbox.sent_was_read(message[1])
        if kind in ("answer", "execute") and incoming.in_slab:
            incoming.slab = Extent(self).array
        if kind == "answer":
            call = self._calls.get(message[2])
            if call is not None:
                call.take(message, incoming)
        elif kind == "cancel":
            found = self.exchanges.get(message[2])
            exchange = None if found is None else found()
            if exchange is not None:
                exchange.cancelled = True
            elif self.work:
                self._cancelled_early.add(message[2])
        elif kind != "read":
            self.work.append((message, incoming))
            if self.on_work is not None:
                self.on_work()

    # Responses

    def respond(self, key: int, response: Any, final: bool) -> None:
        def build(tensors: Outgoing) -> list[Any]:
            body = None if response is None else _body(response, tensors)
            return ["response", key, final, body]

        self.outbox.send_with_tensors(build)

    def executed(
        self, started: int, ns: int, failure: list[str] | None, outcomes: list[Any]
    ) -> None:
        """Report a finished batch. An outcome is a response, None (it was or will be sent
        separately), "again", or "failed".

        Clears the list: then the inputs' part of the slab is released with this message unless the
        model keeps arrays. The caller must not hold the requests either.
        """

        def build(tensors: Outgoing) -> list[Any]:
            answers = [
                one if one is None or isinstance(one, str) else _body(one, tensors)
                for one in outcomes
            ]
            outcomes.clear()
            return ["executed", started, ns, failure, answers]

        self.outbox.send_with_tensors(build)

    # Requests

    def requests(self, wanted: list[Any], incoming: Incoming) -> list[Any]:
        """The request objects for execute()."""
        requests = [self._request(one, incoming) for one in wanted]
        incoming.slab = None  # now only the arrays keep it in use
        return requests

    def _request(self, wanted: list[Any], incoming: Incoming) -> Any:
        key, id, correlation_id, flags, timeout, parameters, names, decoupled, inputs = wanted
        request = pb_utils.InferenceRequest.__new__(pb_utils.InferenceRequest)
        request._id, request._correlation_id, request._flags = id, correlation_id, flags
        request._timeout, request._parameters, request._names = timeout, parameters, names
        request._inputs = [
            pb_utils.Tensor._of_memory(name, datatype, shape, incoming.get(where, offset, size))
            for name, datatype, shape, where, offset, size in inputs
        ]
        request._model = self.model
        request._exchange = exchange = self._exchange(key, decoupled)
        if key in self._cancelled_early:
            exchange.cancelled = True
        return request

    def _exchange(self, key: int, decoupled: bool) -> RequestExchange:
        """The exchange of a request; the same as before if it runs again and one of its senders is
        held."""
        held = self.exchanges.get(key)
        exchange = None if held is None else held()
        if exchange is None or not exchange.resume():
            exchange = RequestExchange(self, key, decoupled)
            self.exchanges[key] = exchange.handle
        return exchange

    # Calls to the server

    def call(self, request: Any, decoupled: bool) -> ServerCall:
        """Send a request for another model."""
        self.outbox.check_process()
        if not self.serving:  # other models may not be loaded yet, or not any more
            raise pb_utils.TritonModelException(
                "BLS is only supported during the 'execute' function."
            )
        call = self._new_call()

        def build(tensors: Outgoing) -> list[Any]:
            inputs = [tensors.put(clean(t.name()), *t._wire()) for t in request._inputs]
            correlation_id = request._correlation_id
            if isinstance(correlation_id, str):
                correlation_id = clean(correlation_id)
            what = [
                clean(request._model),
                request._version,
                clean(request._id),
                correlation_id,
                request._flags,
                request._timeout,
                request._parameters,
                [clean(name) for name in request._names],
                bool(decoupled),
                self.executing,
            ]
            return ["call", call.key, what, inputs]

        self.outbox.send_with_tensors(build)
        return call

    def control(self, what: str, model: str, version: str, files: dict[str, Any]) -> Any:
        """Load or unload a model, or ask whether it is ready. Blocks until the answer."""
        self.outbox.check_process()
        call = self._new_call()

        def build(tensors: Outgoing) -> list[Any]:
            given = [
                tensors.put(
                    clean(name), "", [], data.encode() if isinstance(data, str) else bytes(data)
                )
                for name, data in files.items()
            ]
            return ["control", call.key, what, clean(model), clean(version), given]

        self.outbox.send_with_tensors(build, in_slab=False)
        return call.told()

    def measured(self, key: list[Any]) -> str:
        call = self._new_call()
        self.outbox.send(["value", call.key, key])
        return str(call.told())

    def _new_call(self) -> ServerCall:
        key = next(self._call_keys)
        call = ServerCall(self, key)
        self._calls[key] = call
        return call

    def ended(self, call: ServerCall) -> None:
        """Forget a call after its last response."""
        self._calls.pop(call.key, None)

    def cancel(self, call: ServerCall) -> None:
        """Cancel a call on the server; its last response reports that."""
        if call.key in self._calls:
            self.outbox.send(["cancel", call.key])

    def forget(self, call: ServerCall) -> None:
        if self._calls.pop(call.key, None) is not None:
            self.outbox.post(["drop", call.key])

    def log(self, level: int, message: str) -> None:
        record = {
            "level": _LEVELS.get(level, 20),
            "logger": "wherry.model",
            "message": message,
            "created": time.time(),
        }
        write_record(record)


class Extent:
    """The part of the slab with the tensors of one message."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def array(self, offset: int, size: int) -> Any:
        return np.asarray(_Place(self, self._link.address + offset, size))

    def __del__(self) -> None:
        self._link.outbox.release()


class _Place:
    """The base object of a numpy array; keeps the extent in use while the array exists."""

    __slots__ = ("__array_interface__", "_extent")

    def __init__(self, extent: Extent, address: int, size: int) -> None:
        self._extent = extent
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": (size,),
            "typestr": "|u1",
        }


def _body(response: Any, tensors: Outgoing) -> list[Any]:
    """A response in wire form: error, parameters, outputs."""
    error = response.error()
    if error is not None:
        return [[error.code(), clean(error.message())], response.parameters(), []]
    outputs = [tensors.put(clean(tensor.name()), *tensor._wire()) for tensor in response._outputs]
    return [None, response.parameters(), outputs]
