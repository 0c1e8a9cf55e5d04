"""Answers in a store of a package, as examples/plugins/wherry_redis.

`core/runtime/shared_cache.py`.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wherry
from tests.plugins import install, install_example
from tests.repositories import CONFIG, make, save
from wherry.core.runtime.cache import ModelCache
from wherry.core.runtime.shared_cache import CACHES, SharedCache, cache_of
from wherry.core.values.errors import ConfigError
from wherry.core.values.reply import Reply
from wherry.core.values.request import InferRequest, InferResponse
from wherry.testing.suite import check_cache
from wherry.triton.repository.layout import look


class Shelf:
    """A store in this process."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.fails = False
        self.asked = 0
        self.wrote = threading.Semaphore(0)

    def get(self, key: bytes) -> bytes | None:
        self._ask()
        return self.kept.get(key)

    def set(self, key: bytes, value: bytes) -> None:
        self._ask()
        self.kept[key] = value
        self.wrote.release()

    def ping(self) -> None:
        self._ask()

    def close(self) -> None: ...

    def _ask(self) -> None:
        self.asked += 1
        if self.fails:
            raise ConnectionError("connection refused")


class ShelfOfAPackage(Shelf):
    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__()
        self.settings = settings


@pytest.fixture
def shelf_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    where = f"{__name__}:ShelfOfAPackage"
    stores = {"shelf": where, "other": where, "broken": "nothing_of_this_name:Store"}
    install(monkeypatch, tmp_path, CACHES.group, stores)


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
    here, there = (SharedCache(shelf, clock) for _ in range(2))
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
    first = model(tmp_path).cache_identity()
    assert first == found(tmp_path).cache_identity()
    (tmp_path / "a" / "1" / "number").write_text("22")
    second = found(tmp_path).cache_identity()
    changed = model(tmp_path, config=CONFIG + "response_cache { enable: true }").cache_identity()
    assert len({first, second, changed}) == 3


def test_code_of_a_program_shares_nothing() -> None:
    @wherry.model
    def shout(text: str) -> str:
        return text.upper()

    shelf, clock = Shelf(), Clock()
    cache = SharedCache(shelf, clock)
    assert shout.cache_identity() is None
    keep(cache.of("shout", "1", shout), shelf, "x", "X")
    assert asked(cache.of("shout", "1", shout), "x") is None
    cache.close()


def test_what_is_forgotten_is_not_found_again(tmp_path: Path) -> None:
    shelf = Shelf()
    cache = SharedCache(shelf, Clock())
    ours = cache.of("a", "1", model(tmp_path))
    keep(ours, shelf, "x", "answer")
    ours.forget()
    assert asked(ours, "x") is None
    cache.close()


def test_a_store_that_fails_is_a_miss_and_is_left_alone_for_a_moment(tmp_path: Path) -> None:
    shelf, clock = Shelf(), Clock()
    cache = SharedCache(shelf, clock)
    ours = cache.of("a", "1", model(tmp_path))
    keep(ours, shelf, "x", "answer")
    shelf.fails, shelf.asked = True, 0
    assert asked(ours, "x") is None
    assert asked(ours, "x") is None
    assert shelf.asked == 1
    shelf.fails, clock.now = False, 2.0
    assert asked(ours, "x") == {"y": ["answer"]}
    cache.close()


def test_a_store_that_is_not_there_at_the_start_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shelf = Shelf()
    cache = SharedCache(shelf, Clock())
    cache.start()
    assert not caplog.records
    shelf.fails = True
    cache.start()
    assert [record.message for record in caplog.records] == [
        "the cache does not answer, calling models"
    ]
    cache.close()


def test_the_size_of_a_local_cache_is_said_once() -> None:
    with pytest.raises(ConfigError, match="set twice"):
        cache_of(12345, ["local,size=67890"], Clock())


def test_an_answer_that_is_none_is_a_miss(tmp_path: Path) -> None:
    shelf = Shelf()
    cache = SharedCache(shelf, Clock())
    ours = cache.of("a", "1", model(tmp_path))
    keep(ours, shelf, "x", "answer")
    shelf.kept = dict.fromkeys(shelf.kept, b"something else")
    assert asked(ours, "x") is None
    cache.close()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["memcached,host=h"],
            r"no installed package provides the cache 'memcached'; .*local, broken, other, shelf",
        ),
        (["shelf"], "write NAME,SETTING=VALUE"),
        (["broken,a=b"], "'broken' of a-package 1 cannot be imported: .*nothing_of_this_name"),
        (["local,size=many"], "write local,size=BYTES"),
        (["local,size=9", "shelf,host=h"], "only one cache can be set: local, shelf"),
        (["other,a=b", "shelf,host=h"], "only one cache can be set: other, shelf"),
        (["local,size=9", "local,size=9"], "set twice"),
    ],
)
@pytest.mark.usefixtures("shelf_package")
def test_settings_that_make_no_sense_are_refused(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        cache_of(0, words, Clock())


@pytest.mark.usefixtures("shelf_package")
def test_a_store_of_a_package_gets_its_settings() -> None:
    cache = cache_of(0, ["shelf,host=h", "shelf,path=/a,b=c"], Clock())
    assert isinstance(cache, SharedCache)
    assert cache._store.settings == {"host": "h", "path": "/a,b=c"}  # type: ignore[attr-defined]
    cache.close()


def test_a_local_cache_may_be_said_in_the_same_words() -> None:
    cache = cache_of(0, ["local,size=99"], Clock())
    assert cache is not None
    assert cache.statistics().max_bytes == 99
    assert cache_of(0, [], Clock()) is None


# With Redis itself


@pytest.fixture(scope="module")
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


@pytest.fixture
def redis_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_example(monkeypatch, tmp_path / "installed", "wherry_redis")


@pytest.mark.slow
@pytest.mark.usefixtures("redis_package")
def test_servers_share_answers_in_redis(tmp_path: Path, redis_socket: str) -> None:
    cached = model(tmp_path, config=CONFIG + "response_cache { enable: true }")
    words = [f"redis,host={redis_socket}", "redis,socket_timeout=30000"]
    inserted = threading.Event()
    for server in range(2):
        with wherry.Runtime(cached, cache_config=words) as runtime:
            assert isinstance(runtime.cache, SharedCache)
            if not server:
                _tell(runtime.cache, inserted)
            answer = runtime.infer_batch("a", X=np.array([[3]], np.int32))
            assert np.asarray(answer["Y"]).tolist() == [[4]]
            if not server:
                assert inserted.wait(60)
            assert runtime.cache.statistics().hits == server


@pytest.mark.slow
@pytest.mark.usefixtures("redis_package")
def test_redis_keeps_what_wherry_counts_on(redis_socket: str) -> None:
    check_cache("redis", host=redis_socket, socket_timeout="30000")


@pytest.mark.slow
@pytest.mark.usefixtures("redis_package")
def test_a_password_that_redis_refuses_ends_the_start(
    redis_socket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = pytest.importorskip("redis")
    words = [f"redis,host={redis_socket}", "redis,socket_timeout=30000"]
    with redis.Redis(unix_socket_path=redis_socket) as client:
        client.config_set("requirepass", "right")
        try:
            wherry.Runtime(cache_config=[*words, "redis,password=right"]).start().close()
            for said in ("redis,password=wrong", "redis,user=default"):
                with pytest.raises(ConfigError, match="Redis refuses us"):
                    wherry.Runtime(cache_config=[*words, said]).start()
            monkeypatch.setenv("TRITONCACHE_REDIS_PASSWORD", "right")
            wherry.Runtime(cache_config=words).start().close()
        finally:
            client.config_set("requirepass", "")


@pytest.mark.usefixtures("redis_package")
@pytest.mark.parametrize(
    ("said", "told"), [("redis,hots=h", "unknown field `hots`"), ("redis,port=x", "port")]
)
def test_settings_of_redis_that_make_no_sense_are_refused(said: str, told: str) -> None:
    pytest.importorskip("redis")
    with pytest.raises(ConfigError, match=f"cache_config redis: .*{told}"):
        cache_of(0, [said], Clock())


def _tell(cache: SharedCache, inserted: threading.Event) -> None:
    """Have the event set once an answer is in the store."""
    store = cache._store
    keep_it = store.set

    def set_and_tell(key: bytes, value: bytes) -> None:
        keep_it(key, value)
        inserted.set()

    store.set = set_and_tell  # type: ignore[method-assign]
