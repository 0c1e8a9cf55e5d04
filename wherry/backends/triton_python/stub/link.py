"""How do the threads of a worker share its one connection with the server?

Whoever waits for something reads, for everybody: there is no thread that only reads, and a model
without threads pays for none. A running event loop reads as well, when something is there.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import threading
import time
import weakref
from collections import deque
from typing import Any, Callable  # noqa: UP035 - for Python 3.8

import numpy as np

from . import pb_utils, wire
from .wire import Channel, Incoming, Outgoing

#: Begins a line of the worker's output that is a record of its log.
_LOG_MARK = b"\x1e"
_LEVELS = {0: 20, 1: 30, 2: 40, 3: 10}


class Link:
    """This process's end: requests come in, responses, calls and measurements go out."""

    def __init__(self, channel: Channel, model: str, model_dir: str) -> None:
        self.channel = channel
        self.model = model
        self.model_dir = model_dir
        #: Between initialize() and finalize(), when the model may call others.
        self.serving = False
        #: Metrics that the model has named: a name means what it was given first.
        self.families: dict[str, Any] = {}
        self._process = os.getpid()
        #: What execute() is to get, and `stop`: for the main thread.
        self.work: deque[tuple[list[Any], Incoming]] = deque()
        #: Called (in any thread) when something was added to `work`, while a loop runs.
        self.on_work: Callable[[], object] | None = None
        self._changed = threading.Condition(threading.Lock())
        self._reading = False
        #: Threads that wait for what another one reads.
        self._waiting = 0
        self._sending = threading.Lock()
        #: From destructors, which may run in the middle of sending: they never wait for the lock.
        self._late: deque[list[Any]] = deque()
        #: Weak, so that a request that nobody holds any more is told of; it takes itself out.
        self.exchanges: dict[int, Callable[[], Exchange | None]] = {}
        self._calls: weakref.WeakValueDictionary[int, Call] = weakref.WeakValueDictionary()
        self._call_keys = itertools.count()
        self._arena: Any = None
        self._slab: Any = None
        #: Where the slab begins in this process's memory.
        self.address = 0
        #: Requests that were cancelled before they reached execute().
        self._cancelled_early: set[int] = set()
        #: Event loops that read, and for how many.
        self._watchers: dict[int, int] = {}
        #: One for each part of the slab that no array lies in any more: the server is told with
        #: the next message.
        self._released: deque[int] = deque()
        self._measured: list[list[Any]] = []
        self.executing = False

    def use(self, slab: Any) -> None:
        """The memory that both map: the first half for what comes, the second for what goes."""
        self._slab = self.channel.memory = slab
        self.address = np.frombuffer(slab, np.uint8).ctypes.data
        self._arena = wire.Arena(len(slab) // 2, len(slab))

    # Receiving

    def wait_for(self, done: Callable[[], object]) -> None:
        """Wait, reading if nobody else does, until `done()`."""
        with self._changed:
            while not done():
                if self._reading:
                    self._waiting += 1
                    self._changed.wait()
                    self._waiting -= 1
                    continue
                self._reading = True
                self._changed.release()
                try:
                    message = self._receive()
                finally:
                    self._changed.acquire()
                    self._reading = False
                    if self._waiting:
                        self._changed.notify_all()
                self._take(*message)
                while self.channel.complete():
                    self._take(*self._receive())

    def pump(self) -> None:
        """Take what has come. Does not block."""
        with self._changed:
            if self._reading:
                return  # another thread is at it
            while self.channel.readable():
                self._take(*self._receive())
            self._changed.notify_all()

    def watch(self, loop: Any) -> None:
        """Have an event loop read, until it is told `unwatch` as often."""
        count = self._watchers.get(id(loop), 0)
        self._watchers[id(loop)] = count + 1
        if not count:
            loop.add_reader(self.channel.fileno(), self.pump)
        self.pump()

    def unwatch(self, loop: Any) -> None:
        self._watchers[id(loop)] -= 1
        if not self._watchers[id(loop)]:
            del self._watchers[id(loop)]
            loop.remove_reader(self.channel.fileno())

    def next_work(self) -> tuple[list[Any], Incoming]:
        if not self.work:
            self._cancelled_early.clear()
            self.wait_for(lambda: self.work)
        return self.work.popleft()

    def _receive(self) -> tuple[list[Any], Incoming]:
        try:
            return self.channel.receive()
        except (OSError, EOFError):
            os._exit(1)  # the server is gone: there is nobody to work for

    def _take(self, message: list[Any], incoming: Incoming) -> None:
        """Under the lock. The second element says how much of our slab has been read."""
        kind = message[0]
        if message[1]:
            self._arena.release(message[1])
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

    # Sending

    def _outgoing(self, *, in_slab: bool = True) -> Outgoing:
        return Outgoing(self._slab, self._arena if in_slab else None)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise pb_utils.TritonModelException(
                "a process that the model has forked cannot reach the server: call other models,"
                " send responses, log and measure in the model's own process"
            )

    def send(self, message: list[Any], tensors: Outgoing | None = None) -> None:
        """Send a message. ValueError: it is too large."""
        self._check_process()
        with self._sending:
            self._send(message, tensors)
        self._send_late()

    def post(self, message: list[Any]) -> None:
        """`send` for a destructor: it may run while this very thread sends."""
        if os.getpid() != self._process:  # the model's own process still has what goes here
            return
        self._late.append(message)
        self._send_late()

    def _send_late(self) -> None:
        while self._late and self._sending.acquire(blocking=False):
            try:
                while self._late:
                    self._send(self._late.popleft())
            finally:
                self._sending.release()

    def _send(self, message: list[Any], tensors: Outgoing | None = None) -> None:
        """Under the lock. The second element says what was released and measured since."""
        released = len(self._released)
        for _ in range(released):
            self._released.popleft()
        measured, self._measured = self._measured, []
        try:
            if tensors is not None and tensors.in_slab:
                self._arena.hold()
            self.channel.send([message[0], [released, measured], *message[1:]], tensors)
        except (OSError, EOFError):
            os._exit(1)  # the server is gone
        except ValueError:
            self._released.extend([1] * released)
            self._measured += measured
            if tensors is not None and tensors.in_slab:
                self._arena.release()
            raise
        finally:
            if tensors is not None:
                tensors.close()

    def respond(self, key: int, response: Any, final: bool) -> None:
        self._check_process()
        with self._sending:
            tensors = self._outgoing()
            body = None if response is None else self._body(response, tensors)
            self._send(["response", key, final, body], tensors)
        self._send_late()

    def executed(
        self, started: int, ns: int, failure: list[str] | None, outcomes: list[Any]
    ) -> None:
        """A batch has been run. An outcome is a response, None (it comes by itself, or has),
        "again", or "failed".

        The list is emptied, so that the slab's part of the inputs is free again with this very
        message, if nobody keeps them: whoever calls this holds none of the requests, too.
        """
        with self._sending:
            tensors = self._outgoing()
            answers = [
                one if one is None or isinstance(one, str) else self._body(one, tensors)
                for one in outcomes
            ]
            outcomes.clear()
            self._send(["executed", started, ns, failure, answers], tensors)
        self._send_late()

    def _body(self, response: Any, tensors: Outgoing) -> list[Any]:
        """A response as it is sent: error, parameters, outputs."""
        error = response.error()
        if error is not None:
            return [[error.code(), clean(error.message())], response.parameters(), []]
        outputs = [
            tensors.put(clean(tensor.name()), *tensor._wire()) for tensor in response._outputs
        ]
        return [None, response.parameters(), outputs]

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

    def _exchange(self, key: int, decoupled: bool) -> Exchange:
        """Of a request that runs again the same as before, if somebody holds a sender of it."""
        held = self.exchanges.get(key)
        exchange = None if held is None else held()
        if exchange is None or not exchange.resume():
            exchange = Exchange(self, key, decoupled)
            self.exchanges[key] = exchange.handle
        return exchange

    # Calls of the server

    def call(self, request: Any, decoupled: bool) -> Call:
        """Have another model run a request."""
        self._check_process()
        if not self.serving:  # others may not be loaded yet, or no more: it would work by chance
            raise pb_utils.TritonModelException(
                "BLS is only supported during the 'execute' function."
            )
        call = self._new_call()
        with self._sending:
            tensors = self._outgoing()
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
            self._send(["call", call.key, what, inputs], tensors)
        self._send_late()
        return call

    def control(self, what: str, model: str, version: str, files: dict[str, Any]) -> Any:
        """Load or unload a model, or ask whether it is ready."""
        self._check_process()
        call = self._new_call()
        with self._sending:
            tensors = self._outgoing(in_slab=False)
            given = [
                tensors.put(
                    clean(name), "", [], data.encode() if isinstance(data, str) else bytes(data)
                )
                for name, data in files.items()
            ]
            self._send(["control", call.key, what, clean(model), clean(version), given], tensors)
        return call.told()

    def measured(self, key: list[Any]) -> str:
        call = self._new_call()
        self.send(["value", call.key, key])
        return str(call.told())

    def _new_call(self) -> Call:
        key = next(self._call_keys)
        call = Call(self, key)
        self._calls[key] = call
        return call

    def cancel(self, call: Call) -> None:
        """Have the server end it; its last response says so."""
        if call.key in self._calls:
            self.send(["cancel", call.key])

    def forget(self, call: Call) -> None:
        if self._calls.pop(call.key, None) is not None:
            self.post(["drop", call.key])

    # Log and metrics

    def log(self, level: int, message: str) -> None:
        record = {
            "level": _LEVELS.get(level, 20),
            "logger": "wherry.model",
            "message": message,
            "created": time.time(),
        }
        write_record(record)

    def measure(self, measurement: list[Any]) -> None:
        """At once: whoever reads the metrics while execute() runs is to see it."""
        self._check_process()
        with self._sending:
            self._measured.append(measurement)
            self._send(["measured"])
        self._send_late()

    def release(self) -> None:
        """Called where an array is freed, which may be anywhere: only notes it."""
        self._released.append(1)


class Extent:
    """A part of the slab, in which the tensors of one message lie."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def array(self, offset: int, size: int) -> Any:
        return np.asarray(_Place(self, self._link.address + offset, size))

    def __del__(self) -> None:
        self._link.release()


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


class Exchange:
    """One request's responses: what its request and its senders know together."""

    def __init__(self, link: Link, key: int, decoupled: bool) -> None:
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
            self._link.pump()
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
        """The request is to run again; who holds a sender may go on. False: it has its end."""
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
        # Nobody is left who could send the last response: the client must not wait for ever.
        if not self.ended and not self.resume():
            self.ended = True
            failed: list[Any] | None = None
            if self.decoupled or not self.responded:
                message = "the model dropped the request without a final response"
                failed = [[pb_utils.TritonError.INTERNAL, message], "{}", []]
            self._link.post(["response", self.key, True, failed])


class Call:
    """A call of the server, and an iterator over its responses: from the first one again once it
    has come to the last, as Triton's."""

    def __init__(self, link: Link, key: int) -> None:
        self._link = link
        self.key = key
        self._answers: list[tuple[list[Any], Incoming]] = []
        self._next = 0
        self._done = False
        #: Wakes whoever awaits it.
        self._wake: Callable[[], None] | None = None

    def take(self, message: list[Any], incoming: Incoming) -> None:
        """Under the link's lock."""
        if message[4] is not None:
            self._answers.append((message, incoming))
        if message[3]:
            self._done = True
            self._link._calls.pop(self.key, None)
        if self._wake is not None:
            self._wake()

    def cancel(self) -> None:
        """Have it end: the last response is then an error, CANCELLED. Safe to call at any time."""
        self._link.cancel(self)

    def drop(self) -> None:
        """Want no more of it. Safe to call at any time."""
        if not self._done:
            self._done = True
            self._link.forget(self)

    # For threads

    def only(self) -> Any:
        for response in self:
            return response
        return _no_response()

    def told(self) -> Any:
        """The answer to what is no request."""
        self._link.wait_for(self._ready)
        message, _ = self._answers[0]
        error, value, _ = message[4]
        if error is not None:
            raise pb_utils.TritonModelException(error[1])
        return value

    def __iter__(self) -> Call:
        if self._done and self._next == len(self._answers):
            self._next = 0
        return self

    def __next__(self) -> Any:
        self._link.wait_for(self._ready)
        if self._next == len(self._answers):
            raise StopIteration
        return self._taken()

    def _taken(self) -> Any:
        self._next += 1
        return _response(*self._answers[self._next - 1])

    # For event loops

    async def only_async(self) -> Any:
        async for response in self:
            return response
        return _no_response()

    def __aiter__(self) -> Call:
        return iter(self)

    async def __anext__(self) -> Any:
        import asyncio

        loop = asyncio.get_running_loop()
        while not self._ready():
            woken = asyncio.Event()
            self._wake = functools.partial(_wake, loop, woken)
            self._link.watch(loop)
            try:
                if not self._ready():
                    await woken.wait()
            finally:
                self._link.unwatch(loop)
        if self._next == len(self._answers):
            raise StopAsyncIteration
        return self._taken()

    def _ready(self) -> bool:
        return self._next < len(self._answers) or self._done

    def __del__(self) -> None:
        self.drop()


def _wake(loop: Any, woken: Any) -> None:
    with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits there any more
        loop.call_soon_threadsafe(woken.set)


def _response(message: list[Any], incoming: Incoming) -> Any:
    error, parameters, outputs = message[4]
    tensors = [
        pb_utils.Tensor._of_memory(name, datatype, shape, incoming.get(where, offset, size))
        for name, datatype, shape, where, offset, size in outputs
    ]
    failed = None if error is None else pb_utils.TritonError(error[1], error[0])
    response = pb_utils.InferenceResponse(tensors, failed)
    response._parameters = parameters
    return response


def _no_response() -> Any:
    text = "the model gave no response"
    return pb_utils.InferenceResponse([], pb_utils.TritonError(text))


def clean(text: str) -> str:
    """Text that can be sent: no half of a surrogate pair."""
    return str(text).encode("utf-8", "replace").decode("utf-8")


def write_record(record: dict[str, Any]) -> None:
    """A record of the log among what the worker prints."""
    os.write(2, _LOG_MARK + json.dumps(record).encode() + b"\n")
