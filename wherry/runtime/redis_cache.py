"""Has any server answered an equal request before? A cache in Redis, which servers share.

An entry is found by the model's name, version, files and configuration and by the request, so that
another model never answers for this one. Redis is asked in threads of this cache's own. One that
fails or is slow counts as a miss, and is left alone for a moment.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any, Final, Protocol

import msgspec

from wherry.backends.repository_model import RepositoryModel
from wherry.models.model import Model
from wherry.repository import layout
from wherry.runtime.answer_bytes import Unwritable, from_bytes, to_bytes
from wherry.runtime.cache import CacheStatistics, ModelCache, ResponseCache
from wherry.runtime.threads import ThreadPool
from wherry.values.errors import ConfigError
from wherry.values.request import InferResponse

log = logging.getLogger("wherry")

#: What stands before each key.
PREFIX: Final = b"wherry:answer:"
#: Seconds for which Redis is not asked after it has failed.
PAUSE: Final = 1.0


class RedisClient(Protocol):
    """What is asked of redis.Redis."""

    def get(self, name: bytes) -> bytes | None: ...
    def set(self, name: bytes, value: bytes, *, ex: int | None) -> Any: ...
    def ping(self) -> Any: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """How Redis is reached. Times are seconds."""

    host: str = "127.0.0.1"
    port: int = 6379
    user: str | None = None
    password: str | None = None
    db: int = 0
    connect_timeout: float = 0.25
    socket_timeout: float = 0.25
    #: Connections, and threads that use them.
    pool_size: int = 8
    #: Time after which an answer is forgotten; 0: never.
    ttl: int = 86400
    tls_enabled: bool = False
    cert: str | None = None
    key: str | None = None
    cacert: str | None = None

    @classmethod
    def of(cls, words: Sequence[str], environ: Mapping[str, str]) -> RedisSettings | None:
        """The settings of `redis,host=HOST` and the like; None if there are none. ConfigError."""
        found: dict[str, Any] = {}
        for word in words:
            kind, _, setting = word.partition(",")
            key, equals, value = setting.partition("=")
            if kind != "redis":
                raise ConfigError(f"cache_config {word!r}: the caches are local (size) and redis")
            if not equals or key not in cls.__dataclass_fields__:
                known = ", ".join(cls.__dataclass_fields__)
                raise ConfigError(f"cache_config redis,{key}: what there is to set: {known}")
            found[key] = value
        if not found:
            return None
        for key, variable in (("user", "USERNAME"), ("password", "PASSWORD")):
            if said := environ.get(f"TRITONCACHE_REDIS_{variable}"):
                found.setdefault(key, said)
        try:
            made = msgspec.convert(found, cls, strict=False)
        except msgspec.ValidationError as error:
            problem, _, place = str(error).partition(" - at `$.")
            raise ConfigError(f"cache_config redis,{place.rstrip('`')}=: {problem}") from None
        # Triton's are milliseconds.
        times = {name: getattr(made, name) / 1000 for name in _TIMES if name in found}
        return replace(made, **times)

    def client(self) -> RedisClient:
        """A client, which connects when it is asked. ConfigError if the package is missing."""
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise ConfigError("cache_config redis: pip install 'wherry[redis]'") from error
        place: dict[str, Any] = {"unix_socket_path": self.host}
        if not self.host.startswith("/"):
            place = {"host": self.host, "port": self.port}
        tls: dict[str, Any] = {
            "ssl": True, "ssl_certfile": self.cert, "ssl_keyfile": self.key,
            "ssl_ca_certs": self.cacert,
        }  # fmt: skip
        made: Any = redis.Redis(
            **place,
            **(tls if self.tls_enabled else {}),
            db=self.db,
            username=self.user,
            password=self.password,
            socket_connect_timeout=self.connect_timeout or None,
            socket_timeout=self.socket_timeout or None,
            retry=Retry(NoBackoff(), 0),
            max_connections=2 * self.pool_size,
        )
        client: RedisClient = made
        return client


_TIMES: Final = ("connect_timeout", "socket_timeout")


class RedisCache:
    """Responses in Redis, by the hash of their request. Any thread; `in_thread` runs what asks."""

    def __init__(
        self, client: RedisClient, clock: Callable[[], float], *, threads: int = 8, ttl: int = 0
    ) -> None:
        self._client = client
        self._clock = clock
        self._ttl = ttl or None
        self._pool = ThreadPool("wherry-redis", threads)
        self._lock = threading.Lock()
        self._counted = CacheStatistics()
        self._again_at = 0.0

    @classmethod
    def of_settings(cls, settings: RedisSettings, clock: Callable[[], float]) -> RedisCache:
        return cls(settings.client(), clock, threads=settings.pool_size, ttl=settings.ttl)

    def start(self) -> None:
        """Ask Redis whether it is there: if not, the log says so. ConfigError if it does not let
        us in. Blocks, at most for the timeouts of its settings."""
        try:
            self._client.ping()
        except Exception as error:  # noqa: BLE001 - of the network, of Redis: the models can answer
            # By name: the package is the client's affair.
            if type(error).__name__ == "AuthenticationError":
                raise ConfigError(f"cache_config redis: Redis refuses us: {error}") from None
            log.warning("Redis does not answer: models do", extra={"why": str(error)})

    def statistics(self) -> CacheStatistics:
        with self._lock:
            return copy.copy(self._counted)

    def of(self, name: str, version: str, model: Model) -> ModelCache:
        """The part of one loaded model. Only what files and configuration say is shared."""
        known = identity(model)
        if known is None:
            return ModelCache(self, secrets.token_bytes(16))
        return ModelCache(self, f"{name}:{version}:{known}".encode())

    def in_thread(self, call: Callable[[], None]) -> None:
        self._pool.run(call)

    def look_up(self, key: bytes) -> InferResponse | None:
        """This key's response; None if there is none or Redis does not answer. Blocks."""
        started = perf_counter_ns()
        answer = None
        data = self._asked(lambda: self._client.get(PREFIX + key))
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
            self._asked(lambda: self._client.set(PREFIX + key, data, ex=self._ttl))
            with self._lock:
                self._counted.insertion_ns += perf_counter_ns() - started

        self._pool.run(send)

    def forget(self, prefix: bytes) -> bytes:
        """Another prefix, under which there is nothing: what is there is left to its time."""
        return secrets.token_bytes(len(prefix))

    def close(self) -> None:
        self._pool.join(lambda: 1.0)
        self._client.close()

    def _asked(self, call: Callable[[], Any]) -> Any:
        """What Redis says; None if it fails, or has failed just now."""
        if self._clock() < self._again_at:
            return None
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - of the network, of Redis: the model can answer
            with self._lock:
                first = self._clock() >= self._again_at
                self._again_at = self._clock() + PAUSE
            if first:
                log.warning("Redis does not answer: models do", extra={"why": str(error)})
            return None


def cache_of(
    max_bytes: int, words: Sequence[str], clock: Callable[[], float]
) -> ResponseCache | RedisCache | None:
    """The cache of `max_bytes`, or the one that `words` configure, as tritonserver's
    --cache-config; None: there is none. ConfigError."""
    others = [word for word in words if not word.startswith("local,")]
    for word in words:
        if word not in others:
            size = word.partition("size=")[2]
            if not size.isdecimal():
                raise ConfigError(f"cache_config {word!r}: write local,size=BYTES")
            if max_bytes:
                raise ConfigError(f"cache_config {word!r}: the size of the cache is said twice")
            max_bytes = int(size)
    settings = RedisSettings.of(others, os.environ)
    if settings is None:
        return ResponseCache(max_bytes) if max_bytes else None
    if max_bytes:
        raise ConfigError("cache_config: answers are kept here or in Redis, not in both")
    return RedisCache.of_settings(settings, clock)


def identity(model: Model) -> str | None:
    """A text that is another one when the model's files or its configuration are; None if these do
    not tell what it answers, as with an ensemble, whose members do, or code of a program."""
    if not isinstance(model, RepositoryModel) or model.triton.ensemble_scheduling is not None:
        return None
    files = [
        (os.path.relpath(path, model.folder), changed, size)
        for path, changed, size in layout.fingerprint(model.folder)
    ]
    said = msgspec.json.encode([files, model.triton])
    return hashlib.blake2b(said, digest_size=16).hexdigest()
