"""Has a model answered an equal request before, and with what?

One cache for all models of a runtime that have `response_cache` on: bounded in bytes, the least
recently used entries go first. A hit never reaches a scheduler.
"""

from __future__ import annotations

import copy
import hashlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from time import perf_counter_ns
from typing import Any, Protocol

import msgspec
import numpy as np

from wherry.core.observability.statistics import ModelStatistics
from wherry.core.values.media import FileBytes
from wherry.core.values.reply import Reply
from wherry.core.values.request import Column, Columns, InferRequest, InferResponse, ShapedRow

ENTRY_BYTES = 512


@dataclass(slots=True)
class CacheStatistics:
    """Counters that only grow, and what is there now."""

    lookups: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    lookup_ns: int = 0
    insertion_ns: int = 0
    entries: int = 0
    used_bytes: int = 0
    max_bytes: int = 0

    def looked_up(self, *, hit: bool, ns: int) -> None:
        self.lookups += 1
        self.hits += hit
        self.misses += not hit
        self.lookup_ns += ns


class ResponseCache:
    """Responses of at most `max_bytes` in all, by the hash of their request. Any thread."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        #: With the size of each in bytes, the most recently used at the end.
        self._answers: OrderedDict[bytes, tuple[int, InferResponse]] = OrderedDict()
        self._counted = CacheStatistics(max_bytes=max_bytes)
        self._models = count()

    def statistics(self) -> CacheStatistics:
        with self._lock:
            return copy.copy(self._counted)

    in_thread: None = None

    def of(self, name: str, version: str, model: object = None) -> ModelCache:
        """The part of one loaded model. A model that is loaded again starts with an empty one."""
        return ModelCache(self, f"{name}:{version}:{next(self._models)}".encode())

    def look_up(self, key: bytes) -> InferResponse | None:
        """A copy of this key's response, which the caller may change; None if there is none."""
        started = perf_counter_ns()
        with self._lock:
            found = self._answers.get(key)
            if found is not None:
                self._answers.move_to_end(key)
        answer = None if found is None else _copied(found[1])
        with self._lock:
            self._counted.looked_up(hit=answer is not None, ns=perf_counter_ns() - started)
        return answer

    def insert(self, key: bytes, answer: InferResponse) -> None:
        """Keep a copy, if it is not larger than the whole cache."""
        started = perf_counter_ns()
        size = _size(answer)
        if size is None or size > self.max_bytes:
            return
        entry = size, _copied(answer)
        with self._lock:
            counted = self._counted
            if (replaced := self._answers.pop(key, None)) is not None:
                counted.used_bytes -= replaced[0]
            self._answers[key] = entry
            counted.used_bytes += size
            while counted.used_bytes > self.max_bytes:
                _, (freed, _) = self._answers.popitem(last=False)
                counted.used_bytes -= freed
                counted.evictions += 1
            counted.entries = len(self._answers)
            counted.insertion_ns += perf_counter_ns() - started

    def forget(self, prefix: bytes) -> bytes:
        """Drop all entries of one loaded model, whose keys begin with `prefix`. Returns the prefix
        of its next ones."""
        with self._lock:
            for key in [key for key in self._answers if key.startswith(prefix)]:
                self._counted.used_bytes -= self._answers.pop(key)[0]
            self._counted.entries = len(self._answers)
        return prefix

    def start(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class Store(Protocol):
    """Where responses are kept by the hash of their request."""

    #: Runs a call in a thread, if looking up blocks.
    @property
    def in_thread(self) -> Callable[[Callable[[], None]], None] | None: ...
    def look_up(self, key: bytes) -> InferResponse | None: ...
    def insert(self, key: bytes, answer: InferResponse) -> None: ...
    def forget(self, prefix: bytes) -> bytes: ...


class ModelCache:
    def __init__(self, cache: Store, model: bytes) -> None:
        self._cache = cache
        self._prefix = hashlib.blake2b(model, digest_size=16).digest()
        self._in_thread = cache.in_thread

    def answer(
        self,
        requests: Sequence[InferRequest],
        submit: Callable[[Sequence[InferRequest]], None],
        statistics: ModelStatistics,
        clock: Callable[[], float],
    ) -> None:
        """Settle the requests that have an answer here, and submit the others: in another thread
        if looking up blocks."""

        def look() -> None:
            submit([one for one in requests if not self._answers(one, statistics, clock)])

        if self._in_thread is None:
            look()
        else:
            self._in_thread(look)

    def look_up(self, request: InferRequest) -> tuple[bytes | None, InferResponse | None]:
        """The request's key (None if its inputs cannot be hashed), and the response if there is
        one."""
        key = self._key(request)
        return key, None if key is None else self._cache.look_up(key)

    def keep(self, key: bytes, reply: Reply[InferResponse]) -> None:
        if isinstance(reply.outcome, InferResponse):
            self._cache.insert(key, reply.outcome)

    def forget(self) -> None:
        self._prefix = self._cache.forget(self._prefix)

    def _answers(
        self, request: InferRequest, statistics: ModelStatistics, clock: Callable[[], float]
    ) -> bool:
        """Settle the request from the cache; if that has no answer, insert the one that comes."""
        started = perf_counter_ns()
        key, answer = self.look_up(request)
        if key is None:
            return False
        if answer is None:
            request.reply.first(lambda reply: self.keep(key, reply))
        elif not request.reply.claim():
            return True  # cancelled in between
        ns = perf_counter_ns() - started
        statistics.looked_up(ns, hit=answer is not None, seconds=clock() - request.enqueued_at)
        if answer is not None:
            request.reply.deliver(answer)
        return answer is not None

    def _key(self, request: InferRequest) -> bytes | None:
        hashed = hashlib.blake2b(digest_size=24)
        requested_outputs = (
            None if request.requested_outputs is None else sorted(request.requested_outputs)
        )
        try:
            for named in (request.inputs, request.parameters or {}):
                _feed(hashed, dict(sorted(named.items())))
            _feed(hashed, requested_outputs)
        except (TypeError, ValueError):
            return None
        return self._prefix + hashed.digest()


def _feed(hashed: hashlib.blake2b, value: Any) -> None:
    """Hash a value with its type and sizes, so that no other value has the same hash. TypeError if
    its type is not known."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        hashed.update(f"a{value.dtype.str}{value.shape}".encode())
        hashed.update(np.ascontiguousarray(value).data.cast("B") if value.size else b"")
    elif isinstance(value, bytes | bytearray | memoryview):
        if isinstance(value, FileBytes):
            _feed(hashed, [value.name, value.media_type])
        hashed.update(b"b%d:" % len(value))
        hashed.update(value)
    elif isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        hashed.update(b"s%d:" % len(data))
        hashed.update(data)
    elif value is None or isinstance(value, bool | int | float):
        hashed.update(f"{type(value).__name__}{value!r};".encode())
    elif isinstance(value, Mapping):
        hashed.update(b"m%d:" % len(value))
        for name in value:  # in its order, which a model may see
            _feed(hashed, name)
            _feed(hashed, value[name])
    elif isinstance(value, Sequence | np.ndarray):
        shape = value.shape if isinstance(value, ShapedRow) else len(value)
        hashed.update(f"l{shape}:".encode())
        for element in value:
            _feed(hashed, element)
    else:  # a row of a declared JSON type
        hashed.update(type(value).__qualname__.encode())
        _feed(hashed, msgspec.to_builtins(value))


def _copied(answer: InferResponse) -> InferResponse:
    columns: Columns = {name: _copied_column(c) for name, c in answer.outputs.items()}
    return InferResponse(columns, answer.rows, copy.deepcopy(answer.parameters))


def _copied_column(column: Column) -> Column:
    return copy.deepcopy(column) if isinstance(column, list) else column.copy()


def _size(answer: InferResponse) -> int | None:
    """About how many bytes it holds; None if that is unknown."""
    try:
        return ENTRY_BYTES + sum([_bytes_of(column) for column in answer.outputs.values()])
    except TypeError:
        return None


def _bytes_of(value: Any) -> int:
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.nbytes
    if isinstance(value, str | bytes | bool | int | float | None):
        return sys.getsizeof(value)
    if isinstance(value, Mapping):
        return sum([_bytes_of(name) + _bytes_of(value[name]) for name in value]) + 64
    if isinstance(value, Sequence | np.ndarray):
        return sum([_bytes_of(element) for element in value]) + 64
    return _bytes_of(msgspec.to_builtins(value)) + 64
