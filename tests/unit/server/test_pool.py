"""Do owners and fronts find each other, and does a front tell the truth about its pool?"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from tests.fakes import PATIENCE, Gate, gated, until
from tests.tcp_proxy import Proxy
from wherry.remote.handshake import Identity, SkewedVersions
from wherry.remote.members import address_of
from wherry.remote.messages import PROTOCOL
from wherry.remote.tcp import Credentials, admit_front, connected, greet_owner
from wherry.server.server import Server
from wherry.testing import local_server
from wherry.values.errors import ConfigError

TOKEN = "a token of the tests, long enough"
#: The versions of this front and of an owner that is too old.
BOTH = rf"front is wherry {re.escape(wherry.__version__)} .*owner is wherry 0\.0\.7"


@wherry.model(max_batch_size=8)
def hello(name: list[str]) -> list[str]:
    return [f"hello {one}" for one in name]


def ask(url: str, body: Any = None) -> Any:
    """The JSON that a request is answered with; its status and the JSON if that is no 200."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=30) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def call(url: str, name: str = "x") -> Any:
    answer = ask(f"{url}/v2/models/hello/generate", {"name": name})
    return answer["output"] if isinstance(answer, dict) else answer


@contextmanager
def owner(*models: Any, token: str | None = TOKEN, **options: Any) -> Iterator[Server]:
    given = {"rows_port": 0, "cluster_token": token, **options}
    with local_server(*models or (hello,), **given) as serving:
        yield serving


@contextmanager
def front(
    *owners: Server | str, token: str | None = TOKEN, ready: bool = True, **options: Any
) -> Iterator[Server]:
    """A front of these owners; unless `ready`, it is started beside the test."""
    addresses = ",".join(one if isinstance(one, str) else one.rows_address for one in owners)
    given = {"port": 0, "drain_timeout": 5.0, "replicas": addresses, "cluster_token": token}
    server = Server(**{**given, **options})
    if ready:
        with server:
            yield server
        return
    failed: list[BaseException] = []

    def start() -> None:
        try:
            server.start()
        except RuntimeError as error:  # it was stopped as it started
            failed.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    try:
        until(lambda: bool(server.url))
        yield server
    finally:
        server.stop()
        thread.join()


def readiness(server: Server) -> Any:
    return ask(f"{server.url}/v2/health/ready")


def states(server: Server) -> list[str]:
    assert server.pool is not None
    return [one.state for one in server.pool.replicas()]


def test_a_front_serves_the_models_of_its_owner() -> None:
    with owner() as owning, front(owning) as serving:
        assert call(serving.url) == "hello x"
        assert readiness(serving) is None
        (replica,) = serving.pool.replicas()  # type: ignore[union-attr]
        assert (replica.address, replica.state) == (owning.rows_address, "ready")
        assert replica.name == f"{socket.gethostname()}:{owning.rows_address.rpartition(':')[2]}"
        assert (replica.version, replica.device) == (wherry.__version__, "cpu")


@wherry.model
def double(
    x: Annotated[np.ndarray, wherry.FP32[-1]],
) -> Annotated[np.ndarray, wherry.FP32[-1]]:
    return 2 * x


def test_large_arrays_cross_whole() -> None:
    with owner(double) as owning, front(owning) as serving:
        x = np.arange(3_000_000, dtype=np.float32)
        with wherry.Client(serving.url) as client:
            assert (client.infer("double", x=x) == 2 * x).all()


def test_the_models_of_differing_owners_are_all_served() -> None:
    @wherry.model
    def other(name: str) -> str:
        return "other"

    with owner() as first, owner(other) as second, front(first, second) as serving:
        until(lambda: readiness(serving) is None and len(serving.runtime.models()) == 2)
        assert call(serving.url) == "hello x"
        assert ask(f"{serving.url}/v2/models/other/generate", {"name": ""})["output"] == "other"
        listed = ask(f"{serving.url}/v2/models")["models"]
        assert [one["name"] for one in listed] == ["hello", "other"]
        assert ask(f"{serving.url}/v2/models/other/config")["name"] == "other"


def test_the_figures_of_the_pool_are_those_of_all_owners() -> None:
    with owner() as first, owner() as second, front(first, second) as serving:
        until(lambda: states(serving) == ["ready", "ready"])
        for url in (first.url, second.url, serving.url):
            call(url)
        told = ask(f"{serving.url}/v2/models/hello/stats")["model_stats"]
        assert [one["inference_stats"]["success"]["count"] for one in told] == [3]
        with urllib.request.urlopen(f"{serving.url}/metrics") as answer:
            text = answer.read().decode()
        assert "wherry_replicas 2" in text
        for one in (first, second):
            assert f'wherry_replica_up{{replica="{one.rows_address}"}} 1' in text
            assert f'wherry_requests_total{{replica="{one.rows_address}",model="hello"' in text
        explained = ask(f"{serving.url}/v2/models/hello/batching")["replicas"]
        assert {one["replica"] for one in explained} == {first.rows_address, second.rows_address}
        assert {one["device"] for one in explained} == {"cpu"}


def test_a_change_of_models_is_made_at_all_owners() -> None:
    with owner() as first, owner() as second, front(first, second) as serving:
        until(lambda: states(serving) == ["ready", "ready"])
        assert ask(f"{serving.url}/v2/logging", {"log_verbose_level": 1}) is not None
        assert ask(f"{first.url}/v2/logging")["log_verbose_level"] == 1
        path = "/v2/repository/models/hello/unload"
        assert ask(serving.url + path, {}) == ask(first.url + path, {})


def test_a_front_without_an_owner_says_so_and_is_ready_when_there_is_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with front(f"127.0.0.1:{port}", ready=False) as serving:
        until(lambda: "refused" in str(readiness(serving)))
        status, told = readiness(serving)
        assert status == 503
        assert f"no owner at 127.0.0.1:{port} answers (Connection refused)" in told["error"]
        assert call(serving.url) == (503, {"error": "model 'hello' is not ready: loading"})
        with owner(rows_port=port):
            until(lambda: readiness(serving) is None)
            assert call(serving.url) == "hello x"


def test_an_owner_that_loads_is_connected_and_not_ready() -> None:
    release = threading.Event()

    class Slow(wherry.Model):
        name = "hello"

        def load(self, device: wherry.Device) -> None:
            assert release.wait(PATIENCE)

        def execute(self, name: list[str]) -> list[str]:
            return [f"hello {one}" for one in name]

    serving = Server(Slow, port=0, rows_port=0, cluster_token=TOKEN)
    thread = threading.Thread(target=serving.start)
    thread.start()
    try:
        until(lambda: bool(serving.rows_address))
        with front(serving, ready=False) as asking:
            until(lambda: "model 'hello': loading" in str(readiness(asking)))
            assert states(asking) == ["connected"]
            assert call(asking.url) == (503, {"error": "model 'hello' is not ready: loading"})
            release.set()
            until(lambda: readiness(asking) is None)
            assert call(asking.url) == "hello x"
    finally:
        release.set()
        thread.join()
        serving.stop()


@pytest.mark.parametrize("theirs", ["another token, as long", None])
def test_a_wrong_or_missing_token_is_refused_by_both_and_shown_by_neither(
    theirs: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with owner() as owning, front(owning, token=theirs, ready=False) as serving:
        until(lambda: "the front has another cluster token, or none" in str(readiness(serving)))
        assert readiness(serving)[0] == 503
    lines = [one for one in caplog.records if one.message == "a link was refused"]
    assert lines
    shown = " ".join(str(vars(one)) for one in caplog.records)
    assert TOKEN not in shown
    assert theirs is None or theirs not in shown


def test_attempts_that_fail_make_one_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    with owner() as owning:
        host, _, port = owning.rows_address.partition(":")
        for _ in range(50):
            with socket.create_connection((host, int(port))) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
                while sock.recv(4096):
                    pass
        lines = [one for one in caplog.records if one.message == "a link was refused"]
        assert 1 <= len(lines) < 25


def test_more_than_this_machine_needs_a_token() -> None:
    with pytest.raises(ConfigError, match="set WHERRY_CLUSTER_TOKEN"):
        Server(hello, port=0, rows_port=0, rows_host="0.0.0.0").start()


@pytest.mark.parametrize(
    ("models", "options", "told"),
    [
        ((hello,), {"replicas": "a:1"}, "a front has no models"),
        ((), {"replicas": "a:1", "rows_port": 0}, "a front or an owner, not both"),
        ((), {"replicas": "a"}, "is not HOST:PORT"),
        ((), {"replicas": "managed", "fronts": 2}, "set fronts to 0"),
        ((hello,), {"rows_port": 0, "cluster_token": "short"}, "16 characters or more"),
        ((hello,), {"rows_port": 0, "cluster_token_file": "/nowhere"}, "No such file"),
    ],
)
def test_what_cannot_be_meant_is_said(models: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Server(*models, port=0, **options)


def test_addresses_come_and_go_at_run_time() -> None:
    with owner() as first, owner() as second, front("managed", ready=False) as serving:
        pool = serving.pool
        assert pool is not None
        pool.add(first.rows_address)
        until(lambda: readiness(serving) is None)
        pool.add(second.rows_address)
        until(lambda: [one.state for one in pool.replicas()] == ["ready", "ready"])
        pool.remove(first.rows_address)
        until(lambda: [one.address for one in pool.replicas()] == [second.rows_address])
        assert call(serving.url) == "hello x"
        pool.remove(second.rows_address)
        until(lambda: not pool.replicas())
        assert readiness(serving)[0] == 503
        with pytest.raises(ConfigError):
            pool.add("nonsense")


def shout(url: str, text: str = "x") -> Any:
    answer = ask(f"{url}/v2/models/gated/generate", {"text": text})
    return answer["output"] if isinstance(answer, dict) else answer


def test_an_owner_that_ends_answers_what_it_has_first() -> None:
    gate = Gate()
    with owner(gated(gate)) as first, front(first) as serving:
        answers: list[Any] = []
        caller = threading.Thread(target=lambda: answers.append(shout(serving.url)))
        caller.start()
        gate.started()
        stopped: list[bool] = []
        stopping = threading.Thread(target=lambda: stopped.append(first.stop()))
        stopping.start()
        until(lambda: "leaving" in states(serving))
        status, told = shout(serving.url)
        assert (status, told["error"]) == (503, "model 'gated' is not ready: no server has it")
        gate.open()
        caller.join()
        stopping.join()
        assert stopped == [True]
        assert answers == ["X"]


def test_a_front_that_ends_has_its_requests_cancelled_at_the_owner() -> None:
    gate = Gate()
    with owner(gated(gate, max_batch_size=1)) as owning:
        with front(owning, drain_timeout=0.0) as serving:
            callers = [threading.Thread(target=shout, args=(serving.url, str(n))) for n in range(3)]
            for caller in callers:
                caller.start()
            gate.started()
            loaded = owning.runtime.model("gated")
            until(lambda: loaded.runner.queued_requests == 2)
        until(lambda: loaded.runner.queued_requests == 0)
        gate.open()
        for caller in callers:
            caller.join()
        assert len(gate.batches) == 1


def test_what_a_lost_owner_had_is_run_by_the_other() -> None:
    gates = Gate(), Gate()
    with ExitStack() as stack:
        proxies = []
        for gate in gates:
            owning = stack.enter_context(owner(gated(gate)))
            proxies.append(stack.enter_context(Proxy(owning.rows_address)))
        serving = stack.enter_context(front(*(one.address for one in proxies)))
        until(lambda: states(serving) == ["ready", "ready"])
        answers: list[Any] = []
        caller = threading.Thread(target=lambda: answers.append(shout(serving.url)))
        caller.start()
        until(lambda: any(gate.batches for gate in gates))
        has = 0 if gates[0].batches else 1
        gates[1 - has].open()
        proxies[has].cut()
        caller.join()
        assert answers == ["X"]
        assert gates[1 - has].batches == [["x"]]
        gates[has].open()


def test_a_link_that_is_cut_in_the_middle_of_a_frame_loses_nothing() -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(owner()) for _ in range(2))
        proxy = stack.enter_context(Proxy(first.rows_address))
        serving = stack.enter_context(front(proxy.address, second))
        until(lambda: states(serving) == ["ready", "ready"])
        proxy.cut_after = proxy.passed + 30  # of the next message, which is longer
        assert [call(serving.url, str(n)) for n in range(20)] == [f"hello {n}" for n in range(20)]
        until(lambda: proxy.cuts == 1)


def test_a_slow_link_answers_late_and_whole() -> None:
    with (
        owner() as owning,
        Proxy(owning.rows_address, delay=0.05) as proxy,
        front(proxy.address) as serving,
        ThreadPoolExecutor(8) as pool,
    ):
        names = "abcdefgh" * 4
        answers = list(pool.map(lambda name: call(serving.url, name), names))
        assert answers == [f"hello {name}" for name in names]
        assert readiness(serving) is None


def test_versions_that_differ_are_named_by_both(caplog: pytest.LogCaptureFixture) -> None:
    old = Identity(PROTOCOL, "0.0.7", "old owner", 2**20)

    async def shake(sock: socket.socket) -> None:
        sock.setblocking(False)
        await admit_front(sock, Credentials(old, TOKEN.encode()))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with front(address, ready=False) as serving:
            sock, _ = listening.accept()
            with sock, pytest.raises(SkewedVersions, match=BOTH):
                asyncio.run(shake(sock))
            until(lambda: re.search(BOTH, str(readiness(serving))) is not None)
    assert any(re.search(BOTH, str(vars(one))) for one in caplog.records)


def test_a_front_of_another_version_is_refused_by_name(caplog: pytest.LogCaptureFixture) -> None:
    async def shake(address: tuple[str, int]) -> None:
        with await connected(*address) as sock:
            old = Identity(PROTOCOL, "0.0.7", "old front", 2**20)
            await greet_owner(sock, Credentials(old, TOKEN.encode()))

    skew = r"front is wherry 0\.0\.7 .*owner is wherry " + re.escape(wherry.__version__)
    with owner() as owning:
        with pytest.raises(SkewedVersions, match=skew):
            asyncio.run(shake(address_of(owning.rows_address)))
        until(lambda: any(re.search(skew, str(vars(one))) for one in caplog.records))
