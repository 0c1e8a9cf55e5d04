"""Has any server answered an equal request before? A cache in a store that servers share.

An entry is found by the model's name, version, files and configuration and by the request, so that
another model never answers for this one. The store comes from a package (the entry point group
`wherry.caches`) and is called in threads of this cache's own. One that fails or is slow counts as a
miss, and is left alone for a moment. What can write to it can answer for the models, and can do no
more: what is read makes arrays, strings and numbers.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any, Final, Protocol, runtime_checkable

from wherry.core.models.model import Model
from wherry.core.runtime.cache import CacheStatistics, ModelCache, ResponseCache
from wherry.core.runtime.threads import ThreadPool
from wherry.core.values.errors import ConfigError
from wherry.core.values.plugins import Plugins
from wherry.core.values.request import InferResponse, ShapedRow
from wherry.core.workers.encoding import UNSENDABLE, Garbage, packed, unpacked

log = logging.getLogger("wherry")

PREFIX: Final = b"wherry:answer:"
#: Seconds for which a store is not called after it has failed.
PAUSE: Final = 1.0
THREADS: Final = 8


@runtime_checkable
class AnswerStore(Protocol):
    """Bytes by keys, for all servers that share them. Any thread; what it raises is a miss. It
    bounds its own waiting, and forgets when it likes."""

    def get(self, key: bytes) -> bytes | None: ...
    def set(self, key: bytes, value: bytes) -> None: ...
    def ping(self) -> object:
        """Check that it answers, when the runtime starts. ConfigError if it denies access; other
        errors are logged."""

    def close(self) -> None: ...


#: What makes an AnswerStore of the settings behind its name in `cache_config`. It raises
#: ConfigError for one that makes no sense.
CACHES: Final = Plugins("cache", AnswerStore, {"local": "wherry.core.runtime.cache:ResponseCache"})


class SharedCache:
    """Responses in a store, by the hash of their request. Any thread; `in_thread` runs lookups."""

    def __init__(self, store: AnswerStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._pool = ThreadPool("wherry-cache", THREADS)
        self._lock = threading.Lock()
        self._counted = CacheStatistics()
        self._again_at = 0.0

    def start(self) -> None:
        """Ping the store; log a warning if it does not answer. ConfigError if it denies access.
        Blocks, as long as the store does."""
        try:
            self._store.ping()
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - of the network, of the store: models can answer
            self._log_failure(error)

    def statistics(self) -> CacheStatistics:
        with self._lock:
            return copy.copy(self._counted)

    def of(self, name: str, version: str, model: Model) -> ModelCache:
        """The part of one loaded model. Shared only if files and configuration determine it."""
        known = model.cache_identity()
        if known is None:
            return ModelCache(self, secrets.token_bytes(16))
        digest = hashlib.blake2b(known, digest_size=16).hexdigest()
        return ModelCache(self, f"{name}:{version}:{digest}".encode())

    def in_thread(self, call: Callable[[], None]) -> None:
        self._pool.run(call)

    def look_up(self, key: bytes) -> InferResponse | None:
        """This key's response; None if there is none or the store does not answer. Blocks."""
        started = perf_counter_ns()
        answer = None
        data = self._call_backend(lambda: self._store.get(PREFIX + key))
        if data is not None:
            try:
                answer = from_bytes(data)
            except ValueError as error:
                log.warning("cached answer cannot be read", extra={"why": str(error)})
        with self._lock:
            self._counted.looked_up(hit=answer is not None, ns=perf_counter_ns() - started)
        return answer

    def insert(self, key: bytes, answer: InferResponse) -> None:
        """Keep a copy, which another thread sends."""
        started = perf_counter_ns()
        try:
            data = to_bytes(answer)
        except Unwritable:
            return

        def send() -> None:
            self._call_backend(lambda: self._store.set(PREFIX + key, data))
            with self._lock:
                self._counted.insertion_ns += perf_counter_ns() - started

        self._pool.run(send)

    def forget(self, prefix: bytes) -> bytes:
        """Return a new, empty prefix: entries under the old one expire by themselves."""
        return secrets.token_bytes(len(prefix))

    def close(self) -> None:
        self._pool.join(lambda: 1.0)
        self._store.close()

    def _call_backend(self, call: Callable[[], Any]) -> Any:
        """What the store returns; None if it fails, or has failed just now."""
        if self._clock() < self._again_at:
            return None
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - of the network, of the store: models can answer
            with self._lock:
                first = self._clock() >= self._again_at
                self._again_at = self._clock() + PAUSE
            if first:
                self._log_failure(error)
            return None

    def _log_failure(self, error: Exception) -> None:
        log.warning("the cache does not answer, calling models", extra={"why": str(error)})


def cache_of(
    max_bytes: int, words: Sequence[str], clock: Callable[[], float]
) -> ResponseCache | SharedCache | None:
    """The cache of `max_bytes`, or the one that `words` configure, each NAME,SETTING=VALUE as
    tritonserver's --cache-config; None: there is none. ConfigError."""
    settings: dict[str, str] = {}
    names: set[str] = set()
    for word in words:
        name, _, setting = word.partition(",")
        key, equals, value = setting.partition("=")
        if name == "local":
            if key != "size" or not value.isdecimal():
                raise ConfigError(f"cache_config {word!r}: write local,size=BYTES")
            if max_bytes:
                raise ConfigError(f"cache_config {word!r}: the cache size is set twice")
            max_bytes = int(value)
            continue
        if not equals:
            raise ConfigError(f"cache_config {word!r}: write NAME,SETTING=VALUE")
        names.add(name)
        settings[key] = value
    if not names:
        return ResponseCache(max_bytes) if max_bytes else None
    if max_bytes or len(names) > 1:
        kept = ", ".join(sorted(names | ({"local"} if max_bytes else set())))
        raise ConfigError(f"cache_config: only one cache can be set: {kept}")
    return SharedCache(CACHES.make(names.pop(), settings), clock)


#: Changes with the form: what another form wrote is not read.
FORM: Final = 2


class Unwritable(ValueError):
    """Raised for a response that holds something else than arrays, strings and numbers."""


def to_bytes(answer: InferResponse) -> bytes:
    rows = [row for column in answer.outputs.values() if isinstance(column, list) for row in column]
    if any(isinstance(row, ShapedRow) for row in rows):
        raise Unwritable("a row whose shape msgpack does not keep")
    try:
        return packed([FORM, answer.rows, answer.outputs, answer.parameters])
    except UNSENDABLE as error:
        raise Unwritable(str(error)) from None


def from_bytes(data: bytes) -> InferResponse:
    """Raises ValueError if `to_bytes` has not written this."""
    try:
        form, rows, outputs, parameters = unpacked(memoryview(data))
        if form != FORM or type(rows) is not int or rows < 0 or type(outputs) is not dict:
            raise ValueError("another form")
        return InferResponse(outputs, rows, parameters)
    except (TypeError, Garbage) as error:
        raise ValueError(str(error)) from None
