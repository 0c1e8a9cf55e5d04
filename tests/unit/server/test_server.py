"""A server in this process: start, ready, drain, stop; and the same as an ASGI application."""

import asyncio
import json
import logging
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
from tests.fakes import PATIENCE, until
from wherry.frontends.connections.full_memory import memory_plan
from wherry.frontends.connections.limits import Limits
from wherry.observability.machine import Machine
from wherry.server.applications import applications
from wherry.server.asgi import Asgi
from wherry.server.options import Options
from wherry.server.server import Server
from wherry.testing import GatedModel, local_server


@wherry.model(max_batch_size=8)
def upper(text: list[str]) -> list[str]:
    return [t.upper() for t in text]


@wherry.model(max_batch_size=4)
def double(x: Annotated[np.ndarray, wherry.FP32[2]]) -> Annotated[np.ndarray, wherry.FP32[2]]:
    return np.asarray(x * 2)


class Broken(wherry.Model):
    def load(self, device: wherry.Device) -> None:
        raise OSError("no weights")

    def execute(self, text: list[str]) -> list[str]:
        return text


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


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
        local_server(gated, drain_timeout=PATIENCE) as server,
        wherry.Client(server.url) as client,
    ):
        answers = [pool.submit(client.infer, "gated", text=f"{i}") for i in range(4)]
        gated.wait_started()
        runner = server.runtime.model("gated").runner
        until(lambda: runner.queued_requests == 3)
        stopped = pool.submit(server.stop)
        until(lambda: not client.ready())
        gated.let_finish(4)
        assert sorted(answer.result(PATIENCE) for answer in answers) == ["0", "1", "2", "3"]
        assert stopped.result(PATIENCE) is True


def test_what_does_not_finish_in_time_is_refused_and_stop_says_so() -> None:
    gated = GatedModel()
    server = wherry.Server(gated, port=0, drain_timeout=0.05).start()
    with wherry.Client(server.url) as client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.infer, "gated", text="x")
        gated.wait_started()
        assert server.stop() is False
        assert isinstance(answer.exception(PATIENCE), wherry.ModelNotReady)
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
        self.may_load.wait(PATIENCE)

    def execute(self, text: list[str]) -> list[str]:
        return text


@pytest.mark.parametrize("becomes_ready", [True, False])
def test_a_successor_on_the_same_ports_gets_nothing_before_its_models_are_loaded(
    becomes_ready: bool,
) -> None:
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
        assert model.loading.wait(PATIENCE)
        for _ in range(16):
            assert get(f"{old.url}/v2/models/upper/ready")[0] == 200
            assert get(f"{old.management_url}/v2/models/upper/ready")[0] == 200
        if becomes_ready:
            model.may_load.set()
            assert started.result(PATIENCE) is successor
            assert old.stop()
            assert get(f"{successor.url}/v2/models/slow_to_load/ready")[0] == 200
        else:
            stopped = pool.submit(successor.stop)
            model.may_load.set()
            assert stopped.result(PATIENCE)


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
        may_begin.wait(PATIENCE)
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


def test_the_log_tells_of_each_model_and_of_each_request_if_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.INFO),
        local_server(upper, access_log=True) as server,
        wherry.Client(server.url) as client,
    ):
        client.infer("upper", text="x")
        get(f"{server.url}/v2/health/ready")
        get(f"{server.url}/nothing")
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("model ready") == 1
    assert messages.count("ready") == 1
    (ready,) = [r for r in caplog.records if r.getMessage() == "model ready"]
    assert (ready.model, ready.device, ready.instances) == ("upper", "cpu", 1)  # type: ignore[attr-defined]
    access = [r for r in caplog.records if r.name == "wherry.access"]
    assert [(r.getMessage(), r.status) for r in access] == [  # type: ignore[attr-defined]
        ("GET /v2/models/upper/config", 200),
        ("POST /v2/models/upper/infer", 200),
        ("GET /nothing", 404),
    ]


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("given", "logged"),
    [
        (TRACE, TRACE),
        (TRACE.upper(), None),
        ("00-0af7651916cd43dd-b7ad6b7169203331-01", None),
        ("x" * 5000, None),
        (None, None),
    ],
)
def test_the_access_log_has_the_trace_that_a_request_belongs_to(
    caplog: pytest.LogCaptureFixture, given: str | None, logged: str | None
) -> None:
    headers = {} if given is None else {"traceparent": given}
    with caplog.at_level(logging.INFO), local_server(upper, access_log=True) as server:
        request = urllib.request.Request(f"{server.url}/v2", headers=headers)
        urllib.request.urlopen(request).close()
    (access,) = [r for r in caplog.records if r.name == "wherry.access"]
    assert getattr(access, "traceparent", None) == logged


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


def test_operators_may_have_a_port_of_their_own() -> None:
    with local_server(upper, management_port=0, api_keys=["k"]) as server:
        assert server.management_url.startswith("http://127.0.0.1:")
        with wherry.Client(server.url, api_key="k") as client:
            assert client.infer("upper", text="a") == "A"
        for path in ("/metrics", "/v2/logging", "/v2/trace/setting", "/v2/repository/index"):
            assert get(server.url + path)[0] == 404
            assert get(server.management_url + path)[0] == 401
        with wherry.Client(server.management_url, api_key="k") as client:
            assert client.infer("upper", text="a") == "A"
        assert get(server.management_url + "/v2/health/ready")[0] == 200
    with pytest.raises(OSError, match="refused"):
        get(server.management_url + "/v2")


def test_metrics_may_have_a_port_as_well_and_nothing_else_is_there() -> None:
    with local_server(upper, metrics_port=0) as server:
        for url in (server.url, server.metrics_url):
            assert "wherry_requests_in_flight" in get(f"{url}/metrics")[1]
        for path in ("/v2", "/v2/health/ready", "/v2/repository/index"):
            assert get(server.metrics_url + path)[0] == 404
        assert get(f"{server.url}/v2/logging")[0] == 200


def test_what_has_a_port_of_its_own_is_not_left_open_over_grpc() -> None:
    grpc = pytest.importorskip("tritonclient.grpc")
    with local_server(upper, grpc_port=0, management_port=0) as server:
        client = grpc.InferenceServerClient(server.grpc_url)
        try:
            assert client.is_model_ready("upper")
            for ask in (client.get_model_repository_index, client.get_log_settings):
                with pytest.raises(Exception, match="PERMISSION_DENIED"):
                    ask()
        finally:
            client.close()


def test_a_management_port_that_is_taken_is_said() -> None:
    with (
        local_server(upper) as other,
        pytest.raises(wherry.ConfigError, match=r"management_port .*in use"),
        local_server(upper, management_port=int(other.url.rpartition(":")[2])),
    ):
        pass


def test_an_option_that_cannot_be_meant_is_said_before_anything_starts() -> None:
    with pytest.raises(wherry.ConfigError, match="unknown group 'everything'"):
        Server(upper, disabled_apis=["everything"])
    with pytest.raises(wherry.ConfigError, match="header forward pattern"):
        Server(upper, header_forward_pattern="(")


# ASGI


async def asgi_request(app: Asgi, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    sent: list[Any] = []
    received = iter([{"type": "http.request", "body": body}])
    gone = asyncio.Event()

    async def receive() -> Any:
        for message in received:
            return message
        await gone.wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
    await app(scope, receive, send)
    status = next(m["status"] for m in sent if m["type"] == "http.response.start")
    return status, b"".join(m["body"] for m in sent if m["type"] == "http.response.body")


def test_the_same_models_as_an_asgi_application_also_a_second_time() -> None:
    async def use() -> None:
        app = wherry.asgi(upper)
        body = json.dumps(
            {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}
        ).encode()
        for _ in range(2):
            assert (await asgi_request(app, "GET", "/v2/health/ready"))[0] == 503
            async with app.lifespan():
                assert (await asgi_request(app, "GET", "/v2/health/ready"))[0] == 200
                status, answer = await asgi_request(app, "POST", "/v2/models/upper/infer", body)
                assert status == 200
                assert json.loads(answer)["outputs"][0]["data"] == ["X"]

    asyncio.run(use())


def test_a_model_that_cannot_be_loaded_fails_the_lifespan() -> None:
    async def use() -> None:
        with pytest.raises(wherry.LoadFailed):
            async with wherry.asgi(Broken).lifespan():
                pass

    asyncio.run(use())


def ask(url: str, path: str, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url + path, headers=named)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return int(response.status)
    except HTTPError as error:
        with error:
            return error.code


def test_every_port_looks_at_hosts_and_origins() -> None:
    page = "https://app.example.com"
    with wherry.Server(
        upper,
        port=0,
        management_port=0,
        metrics_port=0,
        allowed_hosts=["models.example.com"],
        cors_origins=[page],
    ) as server:
        for url in (server.url, server.management_url, server.metrics_url):
            path = "/metrics" if url == server.metrics_url else "/"
            assert ask(url, path) == 200
            assert ask(url, path, Host="models.example.com") == 200
            assert ask(url, path, Host="evil.example") == 421
            assert ask(url, path, Origin="https://evil.example") == 403
            assert ask(url, path, Origin=page) == 200
            assert ask(url, path, Sec_Fetch_Site="cross-site") == 403


def test_what_is_not_found_and_not_allowed_an_allowed_page_may_read() -> None:
    page = "https://app.example.com"
    with wherry.Server(
        upper, port=0, metrics_port=0, api_keys=["k" * 16], cors_origins=[page]
    ) as server:
        for url, status in ((server.url + "/v2", 401), (server.metrics_url + "/v2", 404)):
            request = urllib.request.Request(url, headers={"Origin": page})
            with pytest.raises(HTTPError) as refused:
                urllib.request.urlopen(request, timeout=PATIENCE)
            with refused.value as answer:
                assert answer.code == status
                assert answer.headers["Access-Control-Allow-Origin"] == page


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
            urllib.request.urlopen(request, timeout=PATIENCE)
        with refused.value as answer:
            assert answer.code == status
            assert ("--allow-model-upload" in answer.read().decode()) is (status == 403)


def test_a_server_that_grpc_reaches_from_elsewhere_takes_no_files(tmp_path: Path) -> None:
    with wherry.Server(upper, uds=tmp_path / "s", host="0.0.0.0", grpc_port=0) as server:
        assert server._applications.common.allow_model_upload is False
    with wherry.Server(upper, uds=tmp_path / "s", host="127.0.0.1", grpc_port=0) as server:
        assert server._applications.common.allow_model_upload is True


def test_limits_that_need_more_memory_than_there_is_are_told_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Server(GatedModel, limits=Limits(max_received_bytes=2**60))
    (record,) = caplog.records
    assert record.message == "a full server would need more memory than there is"
    assert vars(record)["needed_bytes"] > 2**60
    caplog.clear()
    Server(GatedModel)
    assert not caplog.records


def test_default_limits_follow_from_the_memory_of_the_machine() -> None:
    plan = memory_plan(Machine().memory_limit_bytes())
    server = Server(GatedModel)
    assert server.limits == plan.limits
    made = applications(server.control, Options(), plan)
    assert made.common.admission._large.limit == plan.max_queue_bytes
    assert made.common.offload.max_bytes == plan.max_offloaded_bytes
