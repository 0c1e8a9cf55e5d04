"""Which messages does a worker exchange with the server?"""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections import deque
from typing import Any, Callable, Iterable  # noqa: UP035 - for Python 3.8

from . import pb_utils, wire
from .exchanges import RequestExchange, ServerCall
from .forks import ForkedCall, Forks
from .text import clean, write_record
from .wire import Channel, Incoming, Outgoing, SlabViews

_LEVELS = {0: 20, 1: 30, 2: 40, 3: 10}


class Inbox:
    """The reading end of the connection, which the threads of a worker share: one that waits for a
    message reads for all others. So a model without threads needs no thread to read. A running
    event loop also reads.

    `take` is called with each message, under this object's lock."""

    def __init__(self, channel: Channel, take: Callable[[list[Any], Incoming], None]) -> None:
        self._channel = channel
        self._take = take
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._reading = False
        #: Number of threads waiting for another thread's reading.
        self._waiting = 0
        #: Event loops that read, with their number of `watch` calls.
        self._watchers: dict[int, int] = {}

    def wait_for(self, done: Callable[[], object]) -> None:
        """Block until `done()`; read if no other thread does."""
        lock = self._lock
        with lock:
            while not done():
                if self._reading:
                    self._waiting += 1
                    self._changed.wait()
                    self._waiting -= 1
                    continue
                self._reading = True
                lock.release()
                try:
                    messages = self._receive()
                finally:
                    lock.acquire()
                    self._reading = False
                    if self._waiting:
                        self._changed.notify_all()
                for message, incoming in messages:
                    self._take(message, incoming)

    def pump(self) -> None:
        """Process the messages that have arrived. Does not block."""
        with self._lock:
            if self._reading:
                return  # another thread reads
            while self._channel.readable():
                for message, incoming in self._receive():
                    self._take(message, incoming)
            self._changed.notify_all()

    def watch(self, loop: Any) -> None:
        """Let an event loop read, until `unwatch` is called as often."""
        count = self._watchers.get(id(loop), 0)
        self._watchers[id(loop)] = count + 1
        if not count:
            loop.add_reader(self._channel.fileno(), self.pump)
        self.pump()

    def unwatch(self, loop: Any) -> None:
        self._watchers[id(loop)] -= 1
        if not self._watchers[id(loop)]:
            del self._watchers[id(loop)]
            loop.remove_reader(self._channel.fileno())

    def _receive(self) -> list[tuple[list[Any], Incoming]]:
        try:
            return self._channel.receive()
        except (OSError, EOFError):
            os._exit(1)  # the server has ended


class Outbox:
    """The sending end. The second element of each message reports the parts of the slab that were
    released, and the measurements made, since the previous message."""

    def __init__(self, channel: Channel, memory: Any, views: SlabViews, forks: Forks) -> None:
        self._channel = channel
        #: The shared memory, whose second half is for sending; the arrays over what was received
        #: in it.
        self._memory = memory
        self._arena = wire.Arena(len(memory) // 2, len(memory))
        self._views = views
        self._forks = forks
        self._lock = threading.Lock()
        #: From destructors, which may run during a send and must not wait for the lock.
        self._late: deque[list[Any]] = deque()
        self._measured: list[list[Any]] = []

    def send(self, message: list[Any]) -> None:
        """Send a message without tensors. Blocks while the connection is full. ValueError if it is
        too large."""
        self.send_with_tensors(lambda _: message, in_slab=False)

    def send_with_tensors(
        self, build: Callable[[Outgoing], list[Any]], *, in_slab: bool = True
    ) -> None:
        """Send the message that `build` returns, with the tensors that it adds to its argument:
        into the slab if `in_slab`."""
        if self._forks.forked:
            raise pb_utils.TritonModelException(
                "a process that the model has forked cannot send responses: do it in the model's"
                " own process"
            )
        with self._lock:
            tensors = Outgoing(self._memory, self._arena if in_slab else None)
            try:
                message = build(tensors)
            except BaseException:
                tensors.give_up()
                raise
            self._send(message, tensors)
        if self._late:
            self._send_late()

    def post(self, message: list[Any]) -> None:
        """Send a message from a destructor, which may interrupt a send of this thread."""
        if self._forks.forked:  # the object belongs to the parent
            return
        self._late.append(message)
        self._send_late()

    def measure(self, measurement: list[Any]) -> None:
        """Send a measurement now, so that a scrape during execute() includes it."""
        if self._forks.forked:
            self._forks.call("measure", measurement)
            return

        def build(_: Outgoing) -> list[Any]:
            self._measured.append(measurement)
            return ["measured"]

        self.send_with_tensors(build, in_slab=False)

    def was_released(self, offsets: list[int]) -> None:
        """Note that the server no longer uses the tensors at these offsets of the slab."""
        for offset in offsets:
            self._arena.release(offset)

    def _send_late(self) -> None:
        while self._late and self._lock.acquire(blocking=False):
            try:
                while self._late:
                    self._send(self._late.popleft(), Outgoing())
            finally:
                self._lock.release()

    def _send(self, message: list[Any], tensors: Outgoing) -> None:
        """Send, under the lock."""
        released = self._views.take_released()
        measured, self._measured = self._measured, []
        message.insert(1, [released, measured])
        try:
            self._channel.send(message, tensors)
        except (OSError, EOFError):
            os._exit(1)  # the server has ended
        except (ValueError, TypeError):
            self._views.put_back(released)
            self._measured += measured
            tensors.give_up()
            raise
        finally:
            if tensors.file is not None:
                tensors.close()


class Link:
    """The worker's end: receives requests, sends responses, calls and measurements."""

    def __init__(self, channel: Channel, memory: Any, model: str, model_dir: str) -> None:
        self.model = model
        self.model_dir = model_dir
        #: Of the model, once it is initialized.
        self.decoupled = False
        self.output_names: list[str] = []
        #: Between initialize() and finalize(), where the model may call others.
        self.serving = False
        self.executing = False
        #: Kind and description of metric families, by name, as first defined.
        self.families: dict[str, tuple[int, str]] = {}
        #: Batches for execute(), and `stop`: for the main thread.
        self.work: deque[tuple[list[Any], Incoming]] = deque()
        #: Called in any thread after an addition to `work`, while a loop runs.
        self.on_work: Callable[[], object] | None = None
        self.inbox = Inbox(channel, self._take)
        channel.views = SlabViews(memory)
        self.forks = Forks(self._for_fork)
        self.outbox = Outbox(channel, memory, channel.views, self.forks)
        #: Weak references: an exchange that is freed without a last response reports that, and
        #: removes itself.
        self.exchanges: dict[int, Callable[[], RequestExchange | None]] = {}
        self._calls: weakref.WeakValueDictionary[int, ServerCall] = weakref.WeakValueDictionary()
        self._call_keys = itertools.count()
        #: Of async_exec(): an event loop holds its tasks weakly.
        self.tasks: set[Any] = set()
        #: Requests that were cancelled before they had an exchange.
        self._cancelled: set[int] = set()
        #: For the exchanges of requests, which any thread may begin.
        self.opening = threading.Lock()

    # Receiving

    def next_work(self) -> tuple[list[Any], Incoming]:
        if not self.work:
            self._cancelled.clear()  # what was in execute() has an exchange, or has ended
            self.inbox.wait_for(self.work.__len__)
        return self.work.popleft()

    def _take(self, message: list[Any], incoming: Incoming) -> None:
        """Process a message, under the inbox's lock. Its second element lists the tensors of ours
        that the server has released."""
        kind = message[0]
        if message[1]:
            self.outbox.was_released(message[1])
        if kind == "answer":
            call = self._calls.get(message[2])
            if call is not None:
                call.take(message, incoming)
        elif kind == "cancel":
            with self.opening:
                self._cancelled.add(message[2])
                exchange = self._exchange_of(message[2])
            if exchange is not None:
                exchange.cancelled = True
        elif kind != "read":
            self.work.append((message, incoming))
            if self.on_work is not None:
                self.on_work()

    # Responses

    def respond(self, key: int, response: Any, final: bool) -> None:
        def build(tensors: Outgoing) -> list[Any]:
            body = None if response is None else response._wire(tensors)
            return ["response", key, final, body]

        self.outbox.send_with_tensors(build)

    def executed(
        self, started: int, ns: int, failure: list[str] | None, outcomes: list[Any]
    ) -> None:
        """Report a finished batch. An outcome is a response, None (it was or will be sent
        separately), "again", or "failed".

        Clears the list: then the inputs' blocks in the slab are released with this message unless
        the model keeps arrays. The caller must not hold the requests either.
        """

        def build(tensors: Outgoing) -> list[Any]:
            answers: list[Any] = []
            for one in outcomes:
                wired = one if one is None or one.__class__ is str else one._wire(tensors)
                answers.append(wired)
            outcomes.clear()
            return ["executed", started, ns, failure, answers]

        self.outbox.send_with_tensors(build)

    # Requests

    def requests(self, wire_requests: list[list[Any]], incoming: Incoming) -> list[Any]:
        received, requests = pb_utils.InferenceRequest._received, []
        for one in wire_requests:
            requests.append(received(self, one, incoming))  # noqa: PERF401 - takes less
        return requests

    def exchange(self, key: int, *, ended: bool) -> RequestExchange:
        exchange = RequestExchange(self, key, ended=ended)
        exchange.cancelled = key in self._cancelled
        self.exchanges[key] = exchange.handle
        return exchange

    def resumed(self, key: int) -> RequestExchange | None:
        """The exchange of a request that runs again, if one of its senders is held."""
        exchange = self._exchange_of(key)
        return exchange if exchange is not None and exchange.resume() else None

    def end(self, keys: Iterable[int]) -> None:
        """Note that these requests are answered."""
        for key in keys:
            exchange = self._exchange_of(key)
            if exchange is not None:
                exchange.ended = True

    def _exchange_of(self, key: int) -> RequestExchange | None:
        held = self.exchanges.get(key)
        return None if held is None else held()

    # Calls to the server

    def call(self, request: Any, decoupled: bool) -> ServerCall | ForkedCall:
        if self.forks.forked:
            if decoupled:
                raise pb_utils.TritonModelException(
                    "a process that the model has forked cannot call with decoupled=True: do it in"
                    " the model's own process"
                )
            return ForkedCall(self.forks, request)
        if not self.serving:  # other models may not be loaded yet, or not any more
            raise pb_utils.TritonModelException(
                "BLS is only supported during the 'execute' function."
            )
        call = self._new_call()
        made = time.perf_counter_ns()  # the clock is the server's, too

        def build(tensors: Outgoing) -> list[Any]:
            inputs = [tensors.put(*tensor._wire()) for tensor in request._inputs]
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
                made,
                request.trace().key,
            ]
            return ["call", call.key, what, inputs]

        self.outbox.send_with_tensors(build)
        return call

    def control(self, what: str, model: str, version: str, files: dict[str, Any]) -> Any:
        """Load or unload a model, or query whether it is ready. Blocks until the answer."""
        if self.forks.forked:
            return self.forks.call("control", what, model, version, files)
        call = self._new_call()

        def build(tensors: Outgoing) -> list[Any]:
            arguments = [
                tensors.put(
                    clean(name), "", [], data.encode() if isinstance(data, str) else bytes(data)
                )
                for name, data in files.items()
            ]
            return ["control", call.key, what, clean(model), clean(version), arguments]

        self.outbox.send_with_tensors(build, in_slab=False)
        return call.result()

    def measured(self, key: list[Any]) -> str:
        """The value of a metric. Blocks."""
        if self.forks.forked:
            return str(self.forks.call("measured", key))
        call = self._new_call()
        self.outbox.send(["value", call.key, key])
        return str(call.result())

    def _for_fork(self, what: str, *values: Any) -> Any:
        if what == "exec":
            (request,) = values
            return request.exec()
        actions: dict[str, Callable[..., Any]] = {
            "control": self.control,
            "measured": self.measured,
            "measure": self.outbox.measure,
        }
        return actions[what](*values)

    def _new_call(self) -> ServerCall:
        key = next(self._call_keys)
        call = ServerCall(self, key)
        self._calls[key] = call
        return call

    def ended(self, call: ServerCall) -> None:
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
