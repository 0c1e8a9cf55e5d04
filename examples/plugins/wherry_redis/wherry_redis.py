"""Answers that servers share in a Redis: `--cache-config redis,host=HOST`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from wherry.core.api import ConfigError


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """Those of Triton's redis cache, and `ttl`. Timeouts are milliseconds, 0 is none."""

    #: A name, an address, or the path of a socket.
    host: str = "127.0.0.1"
    port: int = 6379
    user: str | None = None
    password: str | None = None
    db: int = 0
    connect_timeout: int = 250
    socket_timeout: int = 250
    #: Connections, at most.
    pool_size: int = 8
    #: Seconds after which an answer is forgotten; 0: never.
    ttl: int = 86400
    tls_enabled: bool = False
    cert: str | None = None
    key: str | None = None
    cacert: str | None = None


class RedisStore:
    """Bytes by keys in a Redis, for wherry's response cache."""

    def __init__(self, said: Mapping[str, str]) -> None:
        """It connects when it is asked. ConfigError for settings that make no sense."""
        environ = {
            key: value
            for key, variable in (("user", "USERNAME"), ("password", "PASSWORD"))
            if (value := os.environ.get(f"TRITONCACHE_REDIS_{variable}"))
        }
        try:
            settings = msgspec.convert({**environ, **said}, Settings, strict=False)
        except msgspec.ValidationError as error:
            known = ", ".join(Settings.__struct_fields__)
            raise ConfigError(f"cache_config redis: {error}; settings: {known}") from None
        self._ttl = settings.ttl or None
        self._redis = _client(settings)

    def get(self, key: bytes) -> bytes | None:
        found: Any = self._redis.get(key)
        return None if found is None else bytes(found)

    def set(self, key: bytes, value: bytes) -> None:
        self._redis.set(key, value, ex=self._ttl)

    def ping(self) -> None:
        try:
            self._redis.ping()
        except redis.AuthenticationError as error:
            raise ConfigError(f"cache_config redis: Redis refuses us: {error}") from None

    def close(self) -> None:
        self._redis.close()


def _client(settings: Settings) -> redis.Redis:
    place: dict[str, Any] = {"unix_socket_path": settings.host}
    if not settings.host.startswith("/"):
        place = {"host": settings.host, "port": settings.port}
    tls: dict[str, Any] = {
        "ssl": True, "ssl_certfile": settings.cert, "ssl_keyfile": settings.key,
        "ssl_ca_certs": settings.cacert,
    }  # fmt: skip
    return redis.Redis(
        **place,
        **(tls if settings.tls_enabled else {}),
        db=settings.db,
        username=settings.user,
        password=settings.password,
        socket_connect_timeout=settings.connect_timeout / 1000 or None,
        socket_timeout=settings.socket_timeout / 1000 or None,
        retry=Retry(NoBackoff(), 0),
        max_connections=2 * settings.pool_size,
    )
