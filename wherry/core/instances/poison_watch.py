"""Is this request equal to one that kills workers?

Requests are compared while some are remembered, and only then: first by a sketch that costs some
microseconds however large they are, and by all of their bytes if the sketch is a known one.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from wherry.core.scheduler.poison import Poisons
from wherry.core.values.errors import PoisonRequest, WorkerDied
from wherry.core.values.request import Column, InferRequest

log = logging.getLogger("wherry")

#: How many elements and rows of each input a sketch looks at.
SAMPLES = 8

#: A sketch, and a digest of all of it.
Key = tuple[Hashable, bytes]


class PoisonWatch:
    """Remembers the requests that killed one model's workers. Safe from any thread.

    `active` is False while there is nothing to compare with: check that first.
    """

    def __init__(self, model: str, clock: Callable[[], float]) -> None:
        self.active = False
        self._model = model
        self._clock = clock
        self._lock = threading.Lock()
        self._poisons: Poisons[Key] = Poisons()
        self._sketches: frozenset[Hashable] = frozenset()

    def died(
        self, requests: Iterable[InferRequest], instance: int, error: WorkerDied
    ) -> tuple[dict[InferRequest, PoisonRequest], Sequence[int]]:
        """Record that a worker has died with `requests`. Returns those that are poison, each with
        its error, and the instances whose earlier deaths they explain."""
        keys = {request: (sketch_of(request), digest_of(request)) for request in requests}
        now = self._clock()
        with self._lock:
            keys_had = frozenset(keys.values())
            verdict = self._poisons.died(keys_had, instance, now, alone=error.alone)
            self._remembered()
            seconds = {key: self._poisons.refused_for(key, now) for key in verdict.poison}
        poison = {
            request: self._refusal(seconds[key], str(error))
            for request, key in keys.items()
            if key in seconds
        }
        ids = {keys[request]: request.id for request in poison}
        for key, request_id in ids.items():
            log.error(
                "request refused from now on: its workers die",
                extra={
                    "model": self._model,
                    "request_id": request_id,
                    "refused_seconds": seconds[key],
                    "why": str(error),
                },
            )
        return poison, verdict.excused

    def refusal(self, request: InferRequest) -> PoisonRequest | None:
        """Why this request must not run; None if it may."""
        if (key := self._known(request)) is None:
            return None
        now = self._clock()
        with self._lock:
            seconds = self._poisons.refused_for(key, now)
            if not seconds:
                self._poisons.forget(now)
                self._remembered()
        return self._refusal(seconds) if seconds else None

    def survived(self, requests: Iterable[InferRequest]) -> None:
        """Record that a worker has run these without dying."""
        for request in requests:
            if (key := self._known(request)) is not None:
                with self._lock:
                    self._poisons.survived(key)
                    self._remembered()

    def _refusal(self, seconds: float, how: str = "") -> PoisonRequest:
        last = f"; the last: {how}" if how else ""
        return PoisonRequest(
            f"model {self._model!r}: the worker that runs this request dies each time{last}; it is"
            f" refused for {seconds:.0f} s, do not send it again unchanged"
        )

    def _known(self, request: InferRequest) -> Key | None:
        """Its key, if it might be one of those remembered."""
        sketch = sketch_of(request)
        return (sketch, digest_of(request)) if sketch in self._sketches else None

    def _remembered(self) -> None:
        """What is remembered has changed. Under the lock."""
        self._sketches = frozenset(sketch for sketch, _ in self._poisons)
        self.active = bool(self._sketches)


def sketch_of(request: InferRequest) -> Hashable:
    """Sizes, and some of the contents: equal for equal requests."""
    return hash(tuple((name, _sketch(column)) for name, column in request.inputs.items()))


def digest_of(request: InferRequest) -> bytes:
    """Digest of all inputs, in their order, and of the parameters."""
    digest = hashlib.blake2b(digest_size=16)
    for name, column in request.inputs.items():
        parts = [column] if isinstance(column, np.ndarray) else column
        digest.update(_encoded([name, type(column).__name__, len(parts)]))
        for part in parts:
            if isinstance(part, np.ndarray):
                digest.update(_encoded([part.dtype.str, part.shape]))
                digest.update(np.ascontiguousarray(part).reshape(-1).data)
            else:
                digest.update(_encoded(part))
    digest.update(_encoded(request.parameters))
    return digest.digest()


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value, enc_hook=repr)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return repr(value).encode(errors="backslashreplace")


def _sketch(column: Column) -> Hashable:
    if isinstance(column, np.ndarray):
        step = max(1, column.size // SAMPLES)
        return (column.dtype.char, column.shape, column.flat[::step].tobytes())
    return (len(column), *map(_sketch_of_row, column[:: max(1, len(column) // SAMPLES)]))


def _sketch_of_row(row: Any) -> Hashable:
    if isinstance(row, np.ndarray):
        return _sketch(row)
    if isinstance(row, str | bytes):
        return (len(row), row[:64], row[-64:])
    return (type(row).__name__, len(row) if isinstance(row, list | dict) else 0)
