"""Does a server whose clients are served by several front processes behave as one process?"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import gevent
import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

import wherry
from tests.fakes import until
from tests.unit.server.test_watched_files import make_certificate
from wherry.server.fronts import processes
from wherry.testing import ServerProcess

pytestmark = pytest.mark.slow

APP = """
import os
from collections.abc import Iterator
import wherry

@wherry.model(max_batch_size=8, isolation="thread")
def hello(name: list[str]) -> list[str]:
    if "bad" in name:
        raise ValueError("no")
    return [f"hello {one}" for one in name]

@wherry.model
def count(n: int) -> Iterator[int]:
    yield from range(n)

@wherry.model(run_again=False)
def once(path: str) -> str:
    with open(path, "a") as file:
        file.write("ran ")
    os._exit(1)
"""

DOUBLE = """
from typing import Annotated
import numpy as np
import wherry

ROW = Annotated[np.ndarray, wherry.FP32[1000]]

@wherry.model(max_batch_size=4, isolation="thread")
def double(x: ROW) -> ROW:
    return x * 2
"""


def post(url: str, body: dict[str, Any]) -> Any:
    """The JSON that a POST is answered with, whatever its status."""
    request = urllib.request.Request(url, json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return bytes(answer.read())


def children(pid: int) -> list[int]:
    """The front processes of a server."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == pid and b"wherry.server.front" in command:
            found.append(int(folder.name))
    return found


@pytest.fixture(scope="module", autouse=True)
def _one_for_the_process() -> None:
    """What Triton's client makes once is not a leak of the test that is the first."""
    gevent.get_hub()
    resource_tracker.ensure_running()  # multiprocessing's, of shared memory


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    app = tmp_path_factory.mktemp("fronts") / "app.py"
    app.write_text(APP)
    with ServerProcess(str(app), "--fronts", "2", "--grpc-port", "0") as running:
        yield running


def hello(url: str, name: str) -> Any:
    answer = post(f"{url}/v2/models/hello/generate", {"name": name})
    return answer["output"] if isinstance(answer, dict) else answer


def test_requests_on_many_connections_get_their_own_answers(server: ServerProcess) -> None:
    names = [f"n{number}" for number in range(200)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda name: hello(server.url, name), names))
    assert answers == [f"hello {name}" for name in names]


def test_a_stream_comes_in_parts_and_ends(server: ServerProcess) -> None:
    body = json.dumps({"n": 100}).encode()
    url = f"{server.url}/v2/models/count/generate_stream"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as answer:
        lines = [json.loads(line[6:]) for line in answer if line.startswith(b"data: ")]
    assert [line["output"] for line in lines] == list(range(100))


@pytest.fixture
def calls(server: ServerProcess) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(grpc_address(server)) as client:
        yield client


def grpc_address(server: ServerProcess) -> str:
    found = re.search(r"grpc=(\S+)", server.log)
    assert found is not None
    return found[1]


def tensor(name: str, values: list[Any], dtype: Any, datatype: str) -> triton.InferInput:
    given = triton.InferInput(name, [len(values)], datatype)
    given.set_data_from_numpy(np.array(values, dtype))
    return given


def test_grpc_infers_streams_and_has_the_owner_answer_the_rest(
    server: ServerProcess, calls: triton.InferenceServerClient
) -> None:
    assert calls.is_server_ready()
    assert not calls.is_model_ready("nope")
    answer = calls.infer("hello", [tensor("name", ["grpc"], object, "BYTES")])
    assert answer.as_numpy("output").tolist() == [b"hello grpc"]
    responses: queue.Queue[Any] = queue.Queue()
    calls.start_stream(lambda result, error: responses.put(error or result.as_numpy("output")[0]))
    calls.async_stream_infer("count", [tensor("n", [3], np.int64, "INT64")])
    assert [responses.get(timeout=10) for _ in range(3)] == [0, 1, 2]
    calls.stop_stream()
    assert calls.get_model_config("hello").config.max_batch_size == 8
    counted = calls.get_inference_statistics("hello").model_stats[0].inference_stats.success.count
    over_http = json.loads(get(f"{server.url}/v2/models/hello/stats"))["model_stats"][0]
    assert counted == over_http["inference_stats"]["success"]["count"]


def test_an_answer_tells_the_load_of_the_owner_to_a_client_that_asks(
    server: ServerProcess,
) -> None:
    url = f"{server.url}/v2/models/hello/generate"
    asked = urllib.request.Request(url, b'{"name": "a"}', {"endpoint-load-metrics-format": "json"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        report = json.loads(answer.headers["endpoint-load-metrics"].removeprefix("JSON "))
    assert report["named_metrics"]["free_slots"] >= 8  # of the front's own models it would be 0


def test_over_grpc_it_is_in_the_trailers_of_answers_and_errors(
    server: ServerProcess, calls: triton.InferenceServerClient
) -> None:
    assert calls.is_server_ready()
    with grpc.insecure_channel(grpc_address(server)) as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            service_pb2.ModelInferRequest.SerializeToString,
            service_pb2.ModelInferResponse.FromString,
        )
        for name, code in ((b"grpc", "OK"), (b"bad", "INTERNAL")):
            request = service_pb2.ModelInferRequest(model_name="hello")
            request.inputs.add(name="name", datatype="BYTES", shape=[1])
            request.raw_input_contents.append(len(name).to_bytes(4, "little") + name)
            call = infer.future(request, metadata=[("endpoint-load-metrics-format", "text")])
            assert call.code().name == code
            told = dict(call.trailing_metadata())["endpoint-load-metrics"]
            free = re.search(r"named_metrics\.free_slots=([\d.]+)", told)
            assert free is not None
            assert float(free[1]) >= 8


def test_a_model_that_must_not_run_twice_says_that_it_may_have_run(
    server: ServerProcess, calls: triton.InferenceServerClient, tmp_path: Path
) -> None:
    ran = tmp_path / "http", tmp_path / "grpc"
    code, body = post(f"{server.url}/v2/models/once/generate", {"path": str(ran[0])})
    assert code == 500
    assert "may have run" in body["error"]
    with pytest.raises(InferenceServerException, match="may have run") as refused:
        calls.infer("once", [tensor("path", [str(ran[1])], object, "BYTES")])
    assert refused.value.status() == "StatusCode.INTERNAL"
    assert [one.read_text() for one in ran] == ["ran ", "ran "]


def test_an_error_of_the_owner_has_its_code_and_text(
    calls: triton.InferenceServerClient,
) -> None:
    with pytest.raises(InferenceServerException) as refused:
        calls.get_model_config("nope")
    assert refused.value.status() == "StatusCode.NOT_FOUND"
    assert refused.value.message() == "Request for unknown model: 'nope' is not found"


def test_a_model_that_was_loaded_or_unloaded_is_so_on_every_front() -> None:
    repository = Path(__file__).parents[1] / "python_repository"
    options = ("--model-control-mode", "explicit", "--fronts", "2", "--grpc-port", "0")

    def upper(url: str) -> Any:
        answer = post(f"{url}/v2/models/upper/generate", {"TEXT": "x"})
        return answer["UPPER"] if isinstance(answer, dict) else answer[0]

    with (
        ServerProcess(str(repository), *options) as running,
        triton.InferenceServerClient(grpc_address(running)) as calls,
    ):
        for _ in range(2):
            calls.load_model("upper")
            # Each on a connection of its own: both fronts get some.
            assert [upper(running.url) for _ in range(8)] == ["X"] * 8
            calls.unload_model("upper")
            assert [upper(running.url) for _ in range(8)] == [404] * 8


def test_every_front_reads_keys_and_certificates_again(tmp_path: Path) -> None:
    def use(certificate: str, secret: str) -> None:
        make_certificate(tmp_path, certificate)
        for kind, text in (
            ("pem", (tmp_path / f"{certificate}.pem").read_text()),
            ("key", (tmp_path / f"{certificate}.key").read_text()),
            ("secrets", secret),
        ):
            (tmp_path / "new").write_text(text)
            (tmp_path / "new").rename(tmp_path / f"now.{kind}")

    def answers(port: int, certificate: str, secret: str) -> set[int]:
        """What connections that trust the certificate are answered; 0: they do not come up."""
        trust = ssl.create_default_context(cafile=tmp_path / f"{certificate}.pem")
        request = f"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {secret}\r\n\r\n"
        found = set()
        for _ in range(8):  # both fronts get some
            with socket.create_connection(("127.0.0.1", port), 5) as plain:
                try:
                    with trust.wrap_socket(plain, server_hostname="localhost") as connection:
                        connection.sendall(request.encode())
                        found.add(int(connection.recv(100)[9:12]))
                except ssl.SSLError:
                    found.add(0)
        return found

    first, second = 20 * "1", 20 * "2"
    use("one", first)
    options = ("ssl-certfile=now.pem", "ssl-keyfile=now.key", "api-key-file=now.secrets")
    (tmp_path / "app.py").write_text(APP)
    with ServerProcess(
        "app.py", "--fronts", "2", *(f"--{one}" for one in options), cwd=str(tmp_path)
    ) as running:
        port = int(running.url.rpartition(":")[2])
        assert answers(port, "one", first) == {200}
        assert answers(port, "one", second) == {401}
        use("two", second)
        until(lambda: answers(port, "two", second) == {200})
        assert answers(port, "one", second) == {0}
        assert answers(port, "two", first) == {401}
        (tmp_path / "now.secrets").write_text("")
        until(lambda: "changed file is not used" in running.log)
        assert answers(port, "two", second) == {200}
        assert answers(port, "two", "") == {401}
        assert running.log.count("changed file is not used") == 1


@pytest.mark.parametrize("place", ["log", "/dev/full"])
def test_fronts_log_into_the_servers_file_in_its_format(place: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    options = ("--fronts", "2", "--access-log", "--log-format", "json", "--log-file", place)
    with ServerProcess("app.py", *options, cwd=str(tmp_path)) as running:
        body = b'{"name": "a"}'
        urllib.request.urlopen(f"{running.url}/v2/models/hello/generate", body).close()
        running.send(signal.SIGTERM)
        assert running.wait() == 0
        told = running.log.splitlines()
    if place == "log":
        assert told == []
        lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        assert [one["status"] for one in lines if "front" in one and "status" in one] == [200]
    else:  # one line a minute and process, and nothing of it ends or hinders one
        assert set(told) == {"log_file /dev/full: No space left on device"}
        assert len(told) <= 3


def test_the_log_of_fronts_says_which_one_and_follows_the_settings() -> None:
    with ServerProcess(
        "tests/integration/life_models.py:echo", "--fronts", "2", "--access-log"
    ) as running:
        assert running.log.count("listening") == running.log.count("ready  url") == 1
        # They accept once each of them knows the models.
        assert running.log.index("model ready") < running.log.index("listening")
        echo = f"{running.url}/v2/models/echo/generate"
        for _ in range(8):  # each on a connection of its own: both fronts get some
            post(echo, {"text": "x"})
        # Each front writes for itself, and maybe after its client has the answer.
        until(lambda: running.log.count("/generate") == 8)
        lines = [line for line in running.log.splitlines() if "/generate" in line]
        assert all(line.endswith(("front=0", "front=1")) for line in lines)
        assert not post(f"{running.url}/v2/logging", {"log_info": False})["log_info"]
        for _ in range(8):
            post(echo, {"text": "x"})
        assert running.log.count("/generate") == 8


def test_a_shared_region_registered_once_is_usable_over_every_front(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(DOUBLE)
    x = np.arange(1000, dtype=np.float32).reshape(1, 1000)
    key = f"/wherry-fronts-{os.getpid()}"
    region = shm.create_shared_memory_region("region", key, 2 * x.nbytes)
    given = triton_http.InferInput("x", list(x.shape), "FP32")
    given.set_shared_memory("region", x.nbytes)
    wanted = triton_http.InferRequestedOutput("output")
    wanted.set_shared_memory("region", x.nbytes, x.nbytes)
    try:
        shm.set_shared_memory_region(region, [x])
        with ServerProcess(
            str(tmp_path / "app.py"), "--fronts", "2", "--allow-client-shm"
        ) as running:

            def on_a_new_connection(
                call: Callable[[triton_http.InferenceServerClient], Any],
            ) -> Any:
                with triton_http.InferenceServerClient(running.url.removeprefix("http://")) as one:
                    return call(one)

            on_a_new_connection(
                lambda one: one.register_system_shared_memory("region", key, 2 * x.nbytes)
            )
            os.kill(children(running.pid)[0], signal.SIGKILL)  # its successor learns of it
            for _ in range(8):
                on_a_new_connection(lambda one: one.infer("double", [given], outputs=[wanted]))
                doubled = shm.get_contents_as_numpy(region, np.float32, x.shape, offset=x.nbytes)
                assert (doubled == 2 * x).all()
            on_a_new_connection(lambda one: one.unregister_system_shared_memory("region"))
            for _ in range(8):
                with pytest.raises(InferenceServerException, match="Unable to find"):
                    on_a_new_connection(lambda one: one.infer("double", [given]))
    finally:
        shm.destroy_shared_memory_region(region)


def test_statistics_and_metrics_are_those_of_all_fronts(server: ServerProcess) -> None:
    def counted() -> int:
        told = json.loads(get(f"{server.url}/v2/models/hello/stats"))
        return int(told["model_stats"][0]["inference_stats"]["success"]["count"])

    before = counted()
    for number in range(20):  # each on a connection of its own, so that both fronts get some
        hello(server.url, str(number))
    assert {counted() for _ in range(4)} == {before + 20}
    metric = f'wherry_requests_total{{model="hello",outcome="success",version="1"}} {before + 20}'
    assert metric in get(f"{server.url}/metrics").decode()


def test_metrics_of_fronts_are_summed_or_say_which_one(server: ServerProcess) -> None:
    text = get(f"{server.url}/metrics").decode()
    assert "wherry_fronts 2\n" in text
    for front in (0, 1):
        assert f'wherry_front_cpu_seconds_total{{front="{front}"}}' in text
        assert f'wherry_front_open_fds{{front="{front}"}}' in text
    connections = re.findall(r'^wherry_front_connections\{front="\d"\} (\S+)$', text, re.M)
    assert sum(map(float, connections)) == 1.0  # the one that asks


def test_a_stopped_front_does_not_hold_the_metrics_up(server: ServerProcess) -> None:
    """The other one answers: connections come to either."""
    stopped = children(server.pid)[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(16) as pool:
            asked = [pool.submit(get, f"{server.url}/metrics") for _ in range(16)]
            answered, _ = wait(asked, return_when=FIRST_COMPLETED)
            assert b"wherry_fronts 2\n" in next(iter(answered)).result()
            os.kill(stopped, signal.SIGCONT)
    finally:
        os.kill(stopped, signal.SIGCONT)


def test_a_failing_row_fails_alone_with_its_status(server: ServerProcess) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda name: hello(server.url, name), ["bad", *"abcdefg"]))
    status, told = answers[0]
    assert status == 500
    assert "no" in told["error"]
    assert answers[1:] == [f"hello {name}" for name in "abcdefg"]


def test_an_unknown_model_is_refused_as_by_one_process(server: ServerProcess) -> None:
    status, told = post(f"{server.url}/v2/models/nope/infer", {"inputs": []})
    assert (status, told) == (404, {"error": "Request for unknown model: 'nope' is not found"})


def test_a_killed_front_is_replaced_and_the_server_goes_on(server: ServerProcess) -> None:
    before = children(server.pid)
    os.kill(before[0], signal.SIGKILL)
    # A new connection may wait in the socket of the killed one until its successor accepts it.
    assert [hello(server.url, str(number)) for number in range(16)] == [
        f"hello {number}" for number in range(16)
    ]
    ends_at = time.monotonic() + 20
    while len(after := children(server.pid)) < 2 or before[0] in after:
        assert time.monotonic() < ends_at, "no other front has come"
        time.sleep(0.05)  # the kernel tells no event of another process's child
    assert re.search(r"wherry_front_restarts_total [1-9]", get(f"{server.url}/metrics").decode())


def test_signals_that_a_service_manager_sends_to_all_processes_end_no_front(
    server: ServerProcess,
) -> None:
    before = children(server.pid)
    for front in before:
        os.kill(front, signal.SIGINT)
        os.kill(front, signal.SIGHUP)
    assert [hello(server.url, str(n)) for n in range(16)] == [f"hello {n}" for n in range(16)]
    assert children(server.pid) == before


@wherry.model
def same(text: str) -> str:
    return text


def test_a_front_that_hangs_is_killed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LOOK_INTERVAL", 0.1)
    monkeypatch.setattr(processes, "SILENCE", 2.0)
    with wherry.Server(same, port=0, fronts=2) as running:
        hung = children(os.getpid())[0]
        os.kill(hung, signal.SIGSTOP)
        until(lambda: hung not in (now := children(os.getpid())) and len(now) == 2)
        assert post(f"{running.url}/v2/models/same/generate", {"text": "a"})["output"] == "a"


def test_a_front_that_does_not_come_up_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "START", 0.0)
    with pytest.raises(wherry.LoadFailed, match=r"fronts: 0, 1 did not come up within 0 s"):
        wherry.Server(same, port=0, fronts=2).start()


def test_sigterm_ends_all_processes(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with ServerProcess(str(tmp_path / "app.py"), "--fronts", "2") as running:
        fronts = children(running.pid)
        assert len(fronts) == 2
        assert running.stop(signal.SIGTERM) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in fronts)


NATURAL = """
from dataclasses import dataclass
import wherry

@dataclass
class Person:
    name: str

@wherry.model(max_batch_size=8, route="/size")
def size(image: list[bytes]) -> list[int]:
    return [len(one) for one in image]

@wherry.model(max_batch_size=8, route="/greet")
def greet(person: list[Person]) -> list[str]:
    return [f"hello {one.name}" for one in person]

@wherry.model(max_batch_size=8, route="/upload")
def upload(file: list[wherry.File]) -> list[wherry.File]:
    return [wherry.File(one.data[::-1], one.name, one.media_type) for one in file]
"""


def test_models_have_their_routes_and_files_behind_fronts(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(NATURAL)
    form = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n'
        b"Content-Type: text/csv\r\n\r\nabc\r\n--b--\r\n"
    )
    with ServerProcess("app.py", "--fronts", "2", cwd=str(tmp_path)) as server:

        def ask(path: str, body: bytes, kind: str) -> tuple[str, bytes]:
            request = urllib.request.Request(server.url + path, body, {"Content-Type": kind})
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.headers["Content-Type"], answer.read()

        for _ in range(4):  # either front
            assert ask("/size", bytes(100_000), "image/jpeg") == ("application/json", b"100000")
            assert ask("/greet", b'{"name": "Ann"}', "application/json")[1] == b'"hello Ann"'
            assert ask("/upload", form, "multipart/form-data; boundary=b") == ("text/csv", b"cba")
