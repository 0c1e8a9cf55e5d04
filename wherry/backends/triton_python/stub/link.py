"""What does a worker say to the server, and what does it hear of it?"""

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
    """This process's end: requests come in, responses, calls and measurements go out."""

    def __init__(self, channel: Channel, model: str, model_dir: str) -> None:
        self.model = model
        self.model_dir = model_dir
        #: Between initialize() and finalize(), when the model may call others.
        self.serving = False
        self.executing = False
        #: Metrics that the model has named: a name means what it was given first.
        self.families: dict[str, Any] = {}
        #: What execute() is to get, and `stop`: for the main thread.
        self.work: deque[tuple[list[Any], Incoming]] = deque()
        #: Called (in any thread) when something was added to `work`, while a loop runs.
        self.on_work: Callable[[], object] | None = None
        self.inbox = Inbox(channel, self._take)
        self.outbox = Outbox(channel)
        self._channel = channel
        #: Where the slab begins in this process's memory.
        self.address = 0
        #: Weak, so that the server is told of a request that no object holds any more; it takes
        #: itself out.
        self.exchanges: dict[int, Callable[[], RequestExchange | None]] = {}
        self._calls: weakref.WeakValueDictionary[int, ServerCall] = weakref.WeakValueDictionary()
        self._call_keys = itertools.count()
        #: Requests that were cancelled before they reached execute().
        self._cancelled_early: set[int] = set()

    def use(self, slab: Any) -> None:
        """The memory that both map: the first half for what comes, the second for what goes."""
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
        """Under the inbox's lock. The second element says how much of our slab has been read."""
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
        """A batch has been run. An outcome is a response, None (it comes by itself, or has),
        "again", or "failed".

        The list is emptied, so that the slab's part of the inputs is free again with this very
        message, if nothing keeps them: the caller holds none of the requests, either.
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
        """What execute() is given."""
        requests = [self._request(one, incoming) for one in wanted]
        incoming.slab = None  # from now on only their arrays keep it in use
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
        """The exchange of a request; of one that runs again the same, if a sender of it is held."""
        held = self.exchanges.get(key)
        exchange = None if held is None else held()
        if exchange is None or not exchange.resume():
            exchange = RequestExchange(self, key, decoupled)
            self.exchanges[key] = exchange.handle
        return exchange

    # Calls of the server

    def call(self, request: Any, decoupled: bool) -> ServerCall:
        """Have another model run a request."""
        self.outbox.check_process()
        if not self.serving:  # others may not be loaded yet, or no more: it would work by chance
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
        """Load or unload a model, or ask whether it is ready."""
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
        """Its last response has come."""
        self._calls.pop(call.key, None)

    def cancel(self, call: ServerCall) -> None:
        """Have the server end it; its last response says so."""
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
    """A part of the slab, in which the tensors of one message lie."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def array(self, offset: int, size: int) -> Any:
        return np.asarray(_Place(self, self._link.address + offset, size))

    def __del__(self) -> None:
        self._link.outbox.release()


class _Place:
    """What numpy makes an array of, which keeps the extent in use as long as it lives."""

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
    """A response as it is sent: error, parameters, outputs."""
    error = response.error()
    if error is not None:
        return [[error.code(), clean(error.message())], response.parameters(), []]
    outputs = [tensors.put(clean(tensor.name()), *tensor._wire()) for tensor in response._outputs]
    return [None, response.parameters(), outputs]
