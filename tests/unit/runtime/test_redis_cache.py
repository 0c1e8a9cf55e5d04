from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wherry
from tests.repositories import CONFIG, make, save
from wherry.repository.layout import look
from wherry.runtime.cache import ModelCache
from wherry.runtime.redis_cache import RedisCache, RedisSettings, cache_of, identity
from wherry.values.errors import ConfigError
from wherry.values.reply import Reply
from wherry.values.request import InferRequest, InferResponse


class Shelf:
    """What a Redis is asked for, in this process."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.fails = False
        self.asked = 0
        self.wrote = threading.Semaphore(0)

    def get(self, name: bytes) -> bytes | None:
        self._ask()
        return self.kept.get(name)

    def set(self, name: bytes, value: bytes, *, ex: int | None) -> None:
        self._ask()
        assert ex == 60
        self.kept[name] = value
        self.wrote.release()

    def ping(self) -> None:
        self._ask()

    def close(self) -> None: ...

    def _ask(self) -> None:
        self.asked += 1
        if self.fails:
            raise ConnectionError("connection refused")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def question(*rows: str) -> InferRequest:
    return InferRequest({"x": list(rows)}, len(rows), Reply(lambda _: None))


def asked(cache: ModelCache, *rows: str) -> Any:
    key, answer = cache.look_up(question(*rows))
    assert key is not None
    return None if answer is None else answer.outputs


def keep(cache: ModelCache, shelf: Shelf, row: str, answer: str) -> None:
    key, _ = cache.look_up(question(row))
    assert key is not None
    reply: Reply[InferResponse] = Reply(lambda _: None)
    reply.outcome = InferResponse({"y": [answer]})
    cache.keep(key, reply)
    assert shelf.wrote.acquire(timeout=60)


def model(folder: Path, name: str = "a", config: str = CONFIG) -> Any:
    save(folder, name, 1, config=config)
    return found(folder, name)


def found(folder: Path, name: str = "a") -> Any:
    there = look(name, [str(folder)])
    return make(there.folder, "1", there.config)


def test_what_one_server_has_answered_another_one_finds(tmp_path: Path) -> None:
    shelf, clock = Shelf(), Clock()
    here, there = (RedisCache(shelf, clock, ttl=60) for _ in range(2))
    same = model(tmp_path)
    ours, theirs = here.of("a", "1", same), there.of("a", "1", same)
    assert asked(ours, "x") is None
    keep(ours, shelf, "x", "answer")

    assert asked(theirs, "x") == {"y": ["answer"]}
    assert asked(theirs, "z") is None
    assert asked(there.of("a", "2", same), "x") is None
    assert asked(there.of("b", "1", same), "x") is None
    counted = there.statistics()
    assert (counted.lookups, counted.hits, counted.misses) == (4, 1, 3)
    for cache in (here, there):
        cache.close()


def test_another_file_or_configuration_is_another_model(tmp_path: Path) -> None:
    first = identity(model(tmp_path))
    assert first == identity(found(tmp_path))
    (tmp_path / "a" / "1" / "number").write_text("22")
    second = identity(found(tmp_path))
    changed = identity(model(tmp_path, config=CONFIG + "response_cache { enable: true }"))
    assert len({first, second, changed}) == 3


def test_code_of_a_program_shares_nothing() -> None:
    @wherry.model
    def shout(text: str) -> str:
        return text.upper()

    shelf, clock = Shelf(), Clock()
    cache = RedisCache(shelf, clock, ttl=60)
    assert identity(shout) is None
    keep(cache.of("shout", "1", shout), shelf, "x", "X")
    assert asked(cache.of("shout", "1", shout), "x") is None
    cache.close()


def test_what_is_forgotten_is_not_found_again(tmp_path: Path) -> None:
    shelf = Shelf()
    cache = RedisCache(shelf, Clock(), ttl=60)
    ours = cache.of("a", "1", model(tmp_path))
    keep(ours, shelf, "x", "answer")
    ours.forget()
    assert asked(ours, "x") is None
    cache.close()


def test_a_redis_that_fails_is_a_miss_and_is_left_alone_for_a_moment(tmp_path: Path) -> None:
    shelf, clock = Shelf(), Clock()
    cache = RedisCache(shelf, clock, ttl=60)
    ours = cache.of("a", "1", model(tmp_path))
    keep(ours, shelf, "x", "answer")
    shelf.fails, shelf.asked = True, 0
    assert asked(ours, "x") is None
    assert asked(ours, "x") is None
    assert shelf.asked == 1
    shelf.fails, clock.now = False, 2.0
    assert asked(ours, "x") == {"y": ["answer"]}
    cache.close()


def test_a_redis_that_is_not_there_at_the_start_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shelf = Shelf()
    cache = RedisCache(shelf, Clock())
    cache.start()
    assert not caplog.records
    shelf.fails = True
    cache.start()
    assert [record.message for record in caplog.records] == ["Redis does not answer: models do"]
    cache.close()


def test_the_size_of_a_local_cache_is_said_once() -> None:
    with pytest.raises(ConfigError, match="said twice"):
        cache_of(12345, ["local,size=67890"], Clock())


def test_an_answer_that_is_none_is_a_miss(tmp_path: Path) -> None:
    shelf = Shelf()
    cache = RedisCache(shelf, Clock(), ttl=60)
    ours = cache.of("a", "1", model(tmp_path))
    keep(ours, shelf, "x", "answer")
    shelf.kept = dict.fromkeys(shelf.kept, b"something else")
    assert asked(ours, "x") is None
    cache.close()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], None),
        (["redis,host=h"], RedisSettings(host="h")),
        (
            ["redis,host=h", "redis,port=7", "redis,socket_timeout=50", "redis,tls_enabled=true"],
            RedisSettings(host="h", port=7, socket_timeout=0.05, tls_enabled=True),
        ),
    ],
)
def test_settings_are_those_of_tritons_cache(
    words: list[str], expected: RedisSettings | None
) -> None:
    assert RedisSettings.of(words, {}) == expected


def test_a_name_and_a_password_may_come_from_the_environment() -> None:
    environ = {"TRITONCACHE_REDIS_USERNAME": "u", "TRITONCACHE_REDIS_PASSWORD": "p"}
    made = RedisSettings.of(["redis,host=h", "redis,password=other"], environ)
    assert made == RedisSettings(host="h", user="u", password="other")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["memcached,host=h"], r"the caches are local \(size\) and redis"),
        (["redis,hots=h"], "what there is to set: host, port"),
        (["redis,port=x"], "redis,port=: Expected `int`"),
        (["local,size=many"], "write local,size=BYTES"),
        (["local,size=9", "redis,host=h"], "not in both"),
        (["local,size=9", "local,size=9"], "said twice"),
    ],
)
def test_settings_that_make_no_sense_are_refused(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        cache_of(0, words, Clock())


def test_a_local_cache_may_be_said_in_the_same_words() -> None:
    cache = cache_of(0, ["local,size=99"], Clock())
    assert cache is not None
    assert cache.statistics().max_bytes == 99
    assert cache_of(0, [], Clock()) is None


# With Redis itself


@pytest.fixture
def redis_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    redis = pytest.importorskip("redis")
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("there is no redis-server")
    socket = str(tmp_path_factory.mktemp("redis") / "socket")
    options = ["--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no"]
    with subprocess.Popen([program, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "Ready to accept" in line or "ready to accept" in line:
                break
        with redis.Redis(unix_socket_path=socket) as client:
            assert client.ping()
        yield socket
        process.terminate()


@pytest.mark.slow
def test_servers_share_answers_in_redis(tmp_path: Path, redis_socket: str) -> None:
    cached = model(tmp_path, config=CONFIG + "response_cache { enable: true }")
    words = [f"redis,host={redis_socket}", "redis,socket_timeout=30000"]
    inserted = threading.Event()
    for server in range(2):
        with wherry.Runtime(cached, cache_config=words) as runtime:
            assert isinstance(runtime.cache, RedisCache)
            if not server:
                _tell(runtime.cache, inserted)
            answer = runtime.infer_batch("a", X=np.array([[3]], np.int32))
            assert np.asarray(answer["Y"]).tolist() == [[4]]
            if not server:
                assert inserted.wait(60)
            assert runtime.cache.statistics().hits == server


@pytest.mark.slow
@pytest.mark.parametrize("said", ["redis,password=wrong", "redis,user=default"])
def test_a_password_that_redis_refuses_ends_the_start(redis_socket: str, said: str) -> None:
    redis = pytest.importorskip("redis")
    with redis.Redis(unix_socket_path=redis_socket) as client:
        client.config_set("requirepass", "right")
    words = [f"redis,host={redis_socket}", "redis,socket_timeout=30000"]
    wherry.Runtime(cache_config=[*words, "redis,password=right"]).start().close()
    with pytest.raises(ConfigError, match="Redis refuses us"):
        wherry.Runtime(cache_config=[*words, said]).start()


def _tell(cache: RedisCache, inserted: threading.Event) -> None:
    """Have the event set once an answer is in Redis."""
    client = cache._client
    keep_it = client.set

    def set_and_tell(*args: Any, **kwargs: Any) -> Any:
        result = keep_it(*args, **kwargs)
        inserted.set()
        return result

    client.set = set_and_tell  # type: ignore[method-assign]
