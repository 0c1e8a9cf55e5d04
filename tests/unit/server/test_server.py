"""How does a server begin, become ready, and end without losing a request?"""

import asyncio
import json
import threading
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any
from urllib.error import HTTPError

import numpy as np
import pytest

import wherry
from tests.fakes import TIMEOUT, until
from tests.unit.server.asking import get, upper
from wherry.server.server import Server
from wherry.testing import GatedModel, local_server


@wherry.model(max_batch_size=4)
def double(x: Annotated[np.ndarray, wherry.FP32[2]]) -> Annotated[np.ndarray, wherry.FP32[2]]:
    return np.asarray(x * 2)


class Broken(wherry.Model):
    def load(self, device: wherry.Device) -> None:
        raise OSError("no weights")

    def execute(self, text: list[str]) -> list[str]:
        return text


def test_a_server_serves_while_its_block_runs() -> None:
    with wherry.Server(upper, double, port=0) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert get(f"{server.url}/v2/health/ready")[0] == 200
        with wherry.Client(server.url) as client:
            assert client.infer("upper", text="x") == "X"
            assert server.runtime.infer("upper", text="y") == "Y"
        url = server.url
    with pytest.raises(OSError):  # noqa: PT011 - its kind depends on the moment
        urllib.request.urlopen(f"{url}/v2")


def test_stopping_answers_what_was_accepted() -> None:
    gated = GatedModel(max_batch_size=1)
    with (
        ThreadPoolExecutor(5) as pool,
        local_server(gated, drain_timeout=TIMEOUT) as server,
        wherry.Client(server.url) as client,
    ):
        answers = [pool.submit(client.infer, "gated", text=f"{i}") for i in range(4)]
        gated.wait_started()
        runner = server.runtime.model("gated").runner
        until(lambda: runner.queued_requests == 3)
        stopped = pool.submit(server.stop)
        until(lambda: not client.ready())
        gated.let_finish(4)
        assert sorted(answer.result(TIMEOUT) for answer in answers) == ["0", "1", "2", "3"]
        assert stopped.result(TIMEOUT) is True


def test_what_does_not_finish_in_time_is_refused_and_stop_says_so() -> None:
    gated = GatedModel()
    server = wherry.Server(gated, port=0, drain_timeout=0.05).start()
    with wherry.Client(server.url) as client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.infer, "gated", text="x")
        gated.wait_started()
        assert server.stop() is False
        assert isinstance(answer.exception(TIMEOUT), wherry.ModelNotReady)
    gated.open()


def test_a_model_that_cannot_be_loaded_is_raised_with_its_cause_and_leaves_nothing() -> None:
    with pytest.raises(wherry.LoadFailed, match="'broken'") as raised:
        wherry.Server(upper, Broken, port=0).start()
    assert isinstance(raised.value.__cause__, OSError)


class SlowToLoad(wherry.Model):
    def __init__(self) -> None:
        super().__init__()
        self.loading, self.may_load = threading.Event(), threading.Event()

    def load(self, device: wherry.Device) -> None:
        self.loading.set()
        self.may_load.wait(TIMEOUT)

    def execute(self, text: list[str]) -> list[str]:
        return text


@pytest.mark.parametrize("becomes_ready", [True, False])
def test_a_successor_on_the_same_ports_gets_nothing_before_its_models_are_loaded(
    becomes_ready: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def listening() -> int:
        return sum(record.message == "listening" for record in caplog.records)

    caplog.set_level("INFO", "wherry")
    model = SlowToLoad()
    with (
        ThreadPoolExecutor(2) as pool,
        local_server(upper, grpc_port=0, management_port=0, reuse_port=True) as old,
        ExitStack() as stack,
    ):
        successor = wherry.Server(
            model,
            port=int(old.url.rpartition(":")[2]),
            grpc_port=int(old.grpc_url.rpartition(":")[2]),
            management_port=int(old.management_url.rpartition(":")[2]),
            reuse_port=True,
        )
        stack.callback(successor.stop)
        stack.callback(model.may_load.set)
        started = pool.submit(successor.start)
        assert model.loading.wait(TIMEOUT)
        assert listening() == 3  # the old one, on each of its ports
        for _ in range(16):
            assert get(f"{old.url}/v2/models/upper/ready")[0] == 200
            assert get(f"{old.management_url}/v2/models/upper/ready")[0] == 200
        if becomes_ready:
            model.may_load.set()
            assert started.result(TIMEOUT) is successor
            assert listening() == 6
            assert old.stop()
            assert get(f"{successor.url}/v2/models/slow_to_load/ready")[0] == 200
        else:
            stopped = pool.submit(successor.stop)
            model.may_load.set()
            assert stopped.result(TIMEOUT)


def test_a_port_in_use_is_raised() -> None:
    with local_server(upper) as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            wherry.Server(double, port=port).start()
        with wherry.Client(server.url) as client:
            assert client.infer("upper", text="still here") == "STILL HERE"


def test_a_runtime_that_is_loaded_already_stays_its_owners() -> None:
    with wherry.Runtime(upper) as runtime:
        with Server(runtime, port=0) as server:
            assert server.runtime is runtime
            with wherry.Client(server.url) as client:
                assert client.infer("upper", text="x") == "X"
        assert runtime.infer("upper", text="y") == "Y"


def test_a_runtime_that_is_not_loaded_is_started_and_closed_here() -> None:
    runtime = wherry.Runtime(upper)
    with Server(runtime, port=0):
        assert runtime.infer("upper", text="y") == "Y"
    assert runtime.models() == []


def test_a_server_that_could_hear_no_signal_says_how_to_serve_there() -> None:
    server = Server(upper, port=0)

    async def in_a_loop() -> None:
        server.run()

    with pytest.raises(RuntimeError, match=r"an event loop runs already.* start\(\) and stop\(\)"):
        asyncio.run(in_a_loop())
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(server.run).exception(TIMEOUT)
    assert isinstance(refused, RuntimeError)
    assert "not the main one" in str(refused)


def test_a_server_needs_models_or_one_runtime() -> None:
    with pytest.raises(wherry.ConfigError, match="at least one model"):
        Server()
    with pytest.raises(wherry.ConfigError, match="one Runtime"):
        Server(wherry.Runtime(), upper)


def test_a_missing_certificate_names_the_file() -> None:
    with pytest.raises(wherry.ConfigError, match=r"nowhere\.pem: No such file"):
        Server(upper, port=0, ssl_certfile="nowhere.pem").start()


def test_stopping_twice_or_before_the_start_is_harmless() -> None:
    server = Server(upper, port=0)
    assert server.stop()
    server.start()
    assert server.stop()
    assert server.stop()


def test_a_start_that_is_given_up_at_once_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come before the server's thread has its loop."""
    may_begin = threading.Event()

    def late() -> asyncio.AbstractEventLoop:
        may_begin.wait(TIMEOUT)
        return asyncio.new_event_loop()

    class Interrupted(Future[None]):
        def result(self, timeout: float | None = None) -> None:
            may_begin_soon.start()
            raise KeyboardInterrupt

    may_begin_soon = threading.Thread(target=may_begin.set)
    monkeypatch.setattr("wherry.server.server.new_event_loop", late)
    server = Server(upper, port=0)
    server._ready = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        server.start()
    may_begin_soon.join()
    assert "wherry-server" not in [thread.name for thread in threading.enumerate()]


def test_the_operator_says_which_parts_of_the_api_there_are_and_for_whom() -> None:
    with local_server(
        upper,
        allow_shared_memory=True,
        restricted_apis=["logging:admin-key=secret"],
        disabled_apis=["trace"],
    ) as server:
        assert "system_shared_memory" in json.loads(get(f"{server.url}/v2")[1])["extensions"]
        status, text = get(f"{server.url}/v2/logging")
        assert (status, json.loads(text)["error"]) == (
            403,
            "This API is restricted, expecting header 'admin-key'",
        )
        allowed = urllib.request.Request(
            f"{server.url}/v2/logging", headers={"admin-key": "secret"}
        )
        with urllib.request.urlopen(allowed) as answer:
            assert "log_info" in json.load(answer)
        assert get(f"{server.url}/v2/trace/setting")[0] == 403


def test_an_option_that_cannot_be_meant_is_said_before_anything_starts() -> None:
    with pytest.raises(wherry.ConfigError, match="unknown group 'everything'"):
        Server(upper, disabled_apis=["everything"])
    with pytest.raises(wherry.ConfigError, match="header forward pattern"):
        Server(upper, http_header_forward_pattern="(")
    with pytest.raises(wherry.ConfigError, match="header forward pattern"):
        Server(upper, grpc_header_forward_pattern="(")


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({}, 503),
        ({"host": "localhost"}, 503),
        ({"host": "0.0.0.0"}, 403),
        ({"host": "0.0.0.0", "grpc_port": 0, "management_port": 0}, 403),
        ({"host": "0.0.0.0", "allow_model_upload": True}, 503),
        ({"host": "0.0.0.0", "api_keys": ["k" * 16]}, 503),
    ],
    ids=str,
)
def test_files_come_with_a_load_from_this_machine_or_with_a_key_only(
    options: dict[str, Any], status: int
) -> None:
    """503: they would be taken, but this server's models cannot be changed at all."""
    with wherry.Server(upper, port=0, **options) as server:
        url = (server.management_url or server.url).replace("0.0.0.0", "127.0.0.1")
        body = {"parameters": {"config": "{}", "file:1/model.py": "eA=="}}
        request = urllib.request.Request(
            f"{url}/v2/repository/models/x/load",
            json.dumps(body).encode(),
            {"Authorization": f"Bearer {16 * 'k'}"},
        )
        with pytest.raises(HTTPError) as refused:
            urllib.request.urlopen(request, timeout=TIMEOUT)
        with refused.value as answer:
            assert answer.code == status
            assert ("--allow-model-upload" in answer.read().decode()) is (status == 403)


def test_a_server_that_grpc_reaches_from_elsewhere_takes_no_files(tmp_path: Path) -> None:
    with wherry.Server(upper, uds=tmp_path / "s", host="0.0.0.0", grpc_port=0) as server:
        assert server._applications.common.allow_model_upload is False
    with wherry.Server(upper, uds=tmp_path / "s", host="127.0.0.1", grpc_port=0) as server:
        assert server._applications.common.allow_model_upload is True


def test_a_drain_with_notice_takes_new_connections_by_a_server_that_says_it_is_not_ready() -> None:
    server = wherry.Server(upper, port=0, drain_notice=3.0, drain_timeout=TIMEOUT).start()
    url = server.url
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(server.stop)  # no connection is open
        until(lambda: get(f"{url}/readyz")[0] == 503)
        asked = urllib.request.Request(f"{url}/v2/models/upper/generate", b'{"text": "x"}')
        with urllib.request.urlopen(asked, timeout=TIMEOUT) as answer:
            assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert stopped.result(TIMEOUT) is True
    with pytest.raises(OSError):  # noqa: PT011 - its kind depends on the moment
        urllib.request.urlopen(f"{url}/v2")
