"""A server's life with real processes: start, ready, drain, stop, and what can go wrong."""

import contextlib
import fcntl
import http.client
import itertools
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.error import HTTPError

import grpc
import pytest
import tritonclient.grpc as triton

import wherry
from wherry.server.listeners import LAST_CALL
from wherry.testing import ServerProcess, running_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

REPOSITORY = Path(__file__).parents[2]
MODELS = "tests/integration/life_models.py"
PYTHON_MODELS = REPOSITORY / "tests" / "python_repository"
SLOW_LOAD = "tests/integration/life_slow_load.py"

#: A wait for something that must come: longer only if it fails.
TIMEOUT = 60.0

both_isolations = pytest.mark.parametrize("isolation", ["thread", "process"])


class Gate:
    """A file that models wait at while it is locked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w")

    @property
    def env(self) -> dict[str, str]:
        return {"GATE": str(self.path)}

    def close(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def open(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def forget(self) -> None:
        self._file.close()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate")
    gate.close()
    yield gate
    gate.forget()


def server(*arguments: str, gate: Gate | None = None) -> ServerProcess:
    env = gate.env if gate is not None else {"GATE": os.devnull}
    return ServerProcess(*arguments, env=env, cwd=str(REPOSITORY))


def wait_until(condition: Callable[[], bool], what: str) -> None:
    ends_at = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < ends_at, f"still not true after {TIMEOUT} s: {what}"
        time.sleep(0.005)


def wait_until_listening(running: ServerProcess) -> None:
    wait_until(
        lambda: "listening" in running.log or running.process.poll() is not None, "it listens"
    )
    assert "listening" in running.log, running.log


def grpc_address(running: ServerProcess) -> str:
    found = re.search(r"grpc=(\S+)", running.log)
    assert found is not None
    return found[1]


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def in_flight(url: str) -> int:
    found = re.search(
        r"^wherry_requests_in_flight(?:{.*})? ([\d.]+)$", get(f"{url}/metrics")[1], re.M
    )
    assert found is not None
    return int(float(found[1]))


def children(pid: int) -> list[int]:
    """The worker processes of a server."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended meanwhile
            found += map(int, task.read_text().split())
    return [one for one in found if not is_front(one)]


def is_front(pid: int) -> bool:
    try:
        return b"wherry.server.front" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"  # its new parent, in a container, may never ask for it


@contextmanager
def callers(url: str, count: int, model: str = "hold") -> Iterator[list[Future[object]]]:
    """So many requests, each from a thread and over a connection of its own."""
    with ThreadPoolExecutor(count) as pool, wherry.Client(url) as client:
        client.describe(model)
        yield [pool.submit(client.infer, model, text=f"row {i}") for i in range(count)]


# The end


@both_isolations
@pytest.mark.parametrize(
    ("number", "exit_code"),
    [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 0)],
    ids=["TERM", "INT", "HUP"],
)
def test_a_signal_lets_all_64_in_flight_be_answered(
    gate: Gate, isolation: str, number: signal.Signals, exit_code: int
) -> None:
    with server(f"{MODELS}:hold", "--isolation", isolation, gate=gate) as running:
        workers = children(running.pid)
        assert len(workers) == (1 if isolation == "process" else 0)
        with callers(running.url, 64) as answers:
            wait_until(lambda: in_flight(running.url) == 64, "64 requests in flight")
            running.send(number)
            wait_until(lambda: not accepts(running.url), "no new connection is accepted")
            gate.open()
            texts = [answer.result(TIMEOUT) for answer in answers]
        assert texts == [f"ROW {i}" for i in range(64)]
        assert running.wait() == exit_code, running.log
        assert all(is_gone(pid) for pid in workers)


def accepts(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), TIMEOUT).close()
    except OSError:
        return False
    return True


def test_ctrl_c_in_a_terminal_reaches_the_workers_too_and_still_loses_nothing(gate: Gate) -> None:
    with server(f"{MODELS}:hold", gate=gate) as running:
        workers = children(running.pid)
        with callers(running.url, 16) as answers:
            wait_until(lambda: in_flight(running.url) == 16, "16 requests in flight")
            for pid in (running.pid, *workers):  # as the terminal does
                os.kill(pid, signal.SIGINT)
            wait_until(lambda: not accepts(running.url), "no new connection is accepted")
            gate.open()
            texts = [answer.result(TIMEOUT) for answer in answers]
        assert texts == [f"ROW {i}" for i in range(16)]
        assert running.wait() == 130, running.log


def test_signals_that_the_starting_thread_has_blocked_end_it_all_the_same() -> None:
    blocked = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    running = server(f"{MODELS}:echo", "--isolation", "thread")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)  # which a child inherits
    try:
        running.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        running.wait_ready()
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.log
    finally:
        running.stop(signal.SIGKILL)


@both_isolations
def test_a_second_signal_stops_now(gate: Gate, isolation: str) -> None:
    with server(f"{MODELS}:hold", "--isolation", isolation, gate=gate) as running:
        workers = children(running.pid)
        with callers(running.url, 8) as answers:
            wait_until(lambda: in_flight(running.url) == 8, "8 requests in flight")
            running.send(signal.SIGTERM)
            wait_until(lambda: not accepts(running.url), "draining")
            running.send(signal.SIGTERM)
            assert running.wait() == 128 + signal.SIGTERM, running.log
            for answer in answers:
                assert isinstance(answer.exception(TIMEOUT), OSError)
        wait_until(lambda: all(is_gone(pid) for pid in workers), "the workers are gone")


@both_isolations
def test_what_is_not_finished_within_drain_timeout_fails_with_503(
    gate: Gate, isolation: str
) -> None:
    with server(
        f"{MODELS}:hold", "--isolation", isolation, "--drain-timeout", "0.2", gate=gate
    ) as running:
        workers = children(running.pid)
        with callers(running.url, 16) as answers:
            wait_until(lambda: in_flight(running.url) == 16, "16 requests in flight")
            running.send(signal.SIGTERM)
            errors = [answer.exception(TIMEOUT) for answer in answers]
        assert {type(error) for error in errors} == {wherry.ModelNotReady}, errors
        assert running.wait() == 1, running.log
        assert "not everything was answered" in running.log
        wait_until(lambda: all(is_gone(pid) for pid in workers), "the workers are gone")


@both_isolations
def test_a_server_told_to_stop_while_it_loads_does_so_at_once(gate: Gate, isolation: str) -> None:
    running = server(SLOW_LOAD, "--isolation", isolation, gate=gate).start()
    try:
        wait_until_listening(running)
        if isolation == "process":
            wait_until(lambda: bool(children(running.pid)), "the worker runs")
        workers = children(running.pid)
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.log
        wait_until(lambda: all(is_gone(pid) for pid in workers), "the workers are gone")
        assert "ERROR" not in running.log
    finally:
        running.stop(signal.SIGKILL)


@both_isolations
def test_a_signal_under_full_load_costs_no_client_a_request(isolation: str) -> None:
    """Each of them sends its next request as soon as it has the answer, over one connection, where
    the server waits for it for LAST_CALL seconds."""
    started = threading.Barrier(17)

    def call_until_told_to_go(host: str, port: int) -> int:
        body = json.dumps(
            {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}
        )
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT)
        asked_at = time.monotonic()
        with contextlib.closing(connection):
            for count in itertools.count(1):
                before, asked_at = asked_at, time.monotonic()
                try:
                    try:
                        connection.request("POST", "/v2/models/echo/infer", body)
                    finally:
                        sent_at = time.monotonic()
                    response = connection.getresponse()
                    response.read()
                except ConnectionError:
                    # Later than that, even if its last answer had come as it asked for it.
                    assert sent_at - before > LAST_CALL
                    return count - 1
                assert response.status == 200
                if count == 10:
                    started.wait()
                if response.will_close:
                    return count
        raise AssertionError

    with server(f"{MODELS}:echo", "--isolation", isolation) as running:
        host, port = running.url.removeprefix("http://").split(":")
        with ThreadPoolExecutor(16) as pool:
            counts = [pool.submit(call_until_told_to_go, host, int(port)) for _ in range(16)]
            started.wait()
            running.send(signal.SIGTERM)
            assert all(count.result(TIMEOUT) >= 10 for count in counts)
        assert running.wait() == 0, running.log


def test_a_server_that_is_killed_takes_its_workers_with_it() -> None:
    running = server(f"{MODELS}:echo", "--instances", "2").start()
    try:
        running.wait_ready()
        workers = children(running.pid)
        assert len(workers) == 2
        running.send(signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
        wait_until(lambda: all(is_gone(pid) for pid in workers), "the workers are gone")
    finally:
        running.stop(signal.SIGKILL)


# The beginning


@both_isolations
def test_it_is_live_but_not_ready_while_a_model_loads(gate: Gate, isolation: str) -> None:
    running = server(SLOW_LOAD, "--isolation", isolation, gate=gate).start()
    try:
        wait_until_listening(running)
        found = re.search(r"url=(\S+)", running.log)
        assert found is not None
        url = found[1]
        assert get(f"{url}/v2/health/live")[0] == 200
        wait_until(lambda: "'heavy': loading" in get(f"{url}/v2/health/ready")[1], "it loads")
        assert get(f"{url}/v2/health/ready")[0] == 503
        gate.open()
        assert running.wait_ready() == url
        assert get(f"{url}/v2/health/ready")[0] == 200
    finally:
        running.stop()


@pytest.mark.parametrize("options", [(), ("--fronts", "2")], ids=["one process", "fronts"])
def test_it_is_not_ready_while_every_instance_hangs(gate: Gate, options: tuple[str, ...]) -> None:
    with (
        server(f"{MODELS}:hold", *options, "--grpc-port", "0", gate=gate) as running,
        triton.InferenceServerClient(address := grpc_address(running)) as calls,
        grpc.insecure_channel(address) as channel,
    ):
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        ready = f"{running.url}/v2/health/ready"

        def are_ready() -> set[bool]:
            """What each way to ask for it says."""
            return {
                get(ready)[0] == 200,
                get(f"{running.url}/readyz")[0] == 200,
                get(f"{running.url}/v2/models/hold/ready")[0] == 200,
                calls.is_server_ready(),
                calls.is_model_ready("hold"),
                check(b"") == b"\x08\x01",  # SERVING
            }

        assert are_ready() == {True}
        with callers(running.url, 1) as answers:
            wait_until(lambda: get(ready)[0] == 503, "the hanging instance is seen")
            assert "'hold'" in get(ready)[1]
            assert "stall_timeout" in get(ready)[1]
            assert get(f"{running.url}/v2/health/live")[0] == 200
            assert calls.is_server_live()
            assert are_ready() == {False}
            gate.open()
            assert answers[0].result(TIMEOUT) == "ROW 0"
        wait_until(lambda: get(ready)[0] == 200, "ready again")
        assert are_ready() == {True}


@both_isolations
def test_a_model_that_cannot_be_loaded_is_exit_code_3_with_its_name_and_cause(
    tmp_path: Path, isolation: str
) -> None:
    app = tmp_path / "broken.py"
    app.write_text(
        "import wherry\n"
        "class Broken(wherry.Model):\n"
        "    def load(self, device):\n"
        "        raise FileNotFoundError('no weights here')\n"
        "    def execute(self, text: list[str]) -> list[str]:\n"
        "        return text\n"
    )
    running = server(str(app), "--isolation", isolation).start()
    try:
        with pytest.raises(RuntimeError, match="exit code 3"):  # the ready pipe was closed
            running.wait_ready()
        assert "model 'broken' could not be loaded" in running.log
        assert "no weights here" in running.log
        assert f'File "{app}", line 4, in load' in running.log
        assert "wherry/core/instances" not in running.log  # the traceback is the user's, not ours
    finally:
        running.stop()


def test_a_file_that_raises_is_exit_code_3_and_a_missing_one_2(tmp_path: Path) -> None:
    app = tmp_path / "raises.py"
    app.write_text("import wherry\n1 / 0\n")
    raised = wherry_command("serve", str(app))
    assert raised.returncode == 3
    assert f"{app}:2: ZeroDivisionError" in raised.stderr
    missing = wherry_command("serve", str(tmp_path / "missing.py"))
    assert missing.returncode == 2
    assert "no such file" in missing.stderr
    assert raised.stdout == missing.stdout == ""


def test_a_port_in_use_is_exit_code_1_before_anything_is_loaded(gate: Gate) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = wherry_command("serve", SLOW_LOAD, "--port", port, env=gate.env)
    assert result.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--host", "no.such.host.invalid"], 1, "'no.such.host.invalid': "),
        (["--uds", "/nowhere/x.sock"], 1, "cannot listen on /nowhere/x.sock: No such file"),
        (["--ready-fd", "99"], 2, "ready_fd 99: Bad file descriptor"),
        (["--ssl-certfile", "nowhere.pem"], 2, "nowhere.pem: No such file"),
    ],
)
def test_what_is_wrong_with_the_door_is_said_in_one_line(
    flags: list[str], code: int, message: str
) -> None:
    result = wherry_command("serve", f"{MODELS}:echo", "--port", "0", *flags)
    assert result.returncode == code, result.stderr
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("is_repository", [False, True], ids=["file", "repository"])
def test_folders_whose_names_are_no_utf8_are_served(tmp_path: Path, is_repository: bool) -> None:
    folder = os.fsencode(tmp_path) + b"/not \xff utf-8"
    os.mkdir(folder)
    if is_repository:
        shutil.copytree(PYTHON_MODELS / "upper", os.fsdecode(folder + b"/upper"))
    else:
        shutil.copy(REPOSITORY / MODELS, os.fsdecode(folder + b"/app.py"))
    target = folder if is_repository else folder + b"/app.py"
    with (
        server(os.fsdecode(target), "--isolation", "process") as running,
        wherry.Client(running.url) as client,
    ):
        assert client.ready("upper" if is_repository else "echo"), running.log


def test_a_thread_that_a_model_has_started_keeps_no_server_alive(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import __main__, threading, wherry\n"
        "__main__.THREADS_LEFT = 0.2  # seconds\n"
        "threading.Thread(target=threading.Event().wait, name='mine').start()\n"
        "@wherry.model\ndef same(x: str) -> str: return x\n"
    )
    with server(str(tmp_path / "app.py"), "--isolation", "thread") as running:
        running.send(signal.SIGTERM)
        assert running.process.wait(timeout=TIMEOUT) == 0
        assert "ends without threads that do not end: mine" in running.log


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_what_a_model_in_a_thread_has_started_ends_with_the_server(
    tmp_path: Path, how: signal.Signals, code: int
) -> None:
    fifo = str(tmp_path / "held")
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)  # at its end once nobody has it open to write
    (tmp_path / "app.py").write_text(
        "import multiprocessing, time\n"
        "from tests.worker_models import StartsProcesses\n"
        "class Starts(StartsProcesses):\n"
        "    def start(self):\n"
        "        super().start()\n"
        "        fork = multiprocessing.get_context('fork')\n"
        "        fork.Process(target=time.sleep, args=(1000,)).start()\n"
        f"model = Starts({fifo!r})\n"
    )
    with server(str(tmp_path / "app.py"), "--isolation", "thread") as running:
        running.send(how)
        assert running.process.wait(timeout=TIMEOUT) == code
    os.set_blocking(held, True)
    assert os.read(held, 1) == b""
    os.close(held)


def test_a_model_in_a_thread_ends_what_it_has_forked_and_not_the_server(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import multiprocessing, time, wherry\n"
        "@wherry.model\n"
        "def ends(x: int) -> int:\n"
        "    fork = multiprocessing.get_context('fork')\n"
        "    child = fork.Process(target=time.sleep, args=(1000,))\n"
        "    child.start()\n"
        "    child.terminate()\n"
        "    child.join(20)\n"
        "    return child.exitcode or 0\n"
    )
    with (
        server(str(tmp_path / "app.py"), "--isolation", "thread") as running,
        wherry.Client(running.url) as client,
    ):
        assert [client.infer("ends", x=0), client.infer("ends", x=0)] == [-signal.SIGTERM] * 2
        assert "stopping" not in running.log


def test_two_servers_live_side_by_side() -> None:
    with server(f"{MODELS}:pid") as one, server(f"{MODELS}:pid") as other:
        with wherry.Client(one.url) as first, wherry.Client(other.url) as second:
            assert first.infer("pid", text="") in children(one.pid)
            assert second.infer("pid", text="") in children(other.pid)
        assert one.stop() == 0
        with wherry.Client(other.url) as second:
            assert second.infer("pid", text="") in children(other.pid)


def test_the_ready_descriptor_gets_the_url_and_is_closed() -> None:
    with server(f"{MODELS}:echo", "--host", "localhost") as running:
        assert re.fullmatch(r"http://(127\.0\.0\.1|\[::1\]):\d+", running.url)
        assert os.read(running._ready, 1) == b""  # closed by the server and by its workers


# The door


def test_a_unix_socket_serves_and_is_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "wherry.sock"
    with server(f"{MODELS}:echo", "--uds", str(path)) as running:
        assert running.url == f"http+unix://{path}"
        with wherry.Client(running.url) as client:
            assert client.ready()
            assert client.infer("echo", text="through a socket") == "through a socket"
        again = wherry_command("serve", f"{MODELS}:echo", "--uds", str(path))
        assert again.returncode == 1
        assert f"cannot listen on {path}" in again.stderr
    assert not path.exists()


def test_tls_and_clients_with_a_certificate(tmp_path: Path) -> None:
    for name in ("server", "client"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext",
             "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", f"{name}.key", "-out",
             f"{name}.pem"],
            cwd=tmp_path, check=True, capture_output=True,
        )  # fmt: skip
    files = ["--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
    target = str(REPOSITORY / f"{MODELS}:echo")
    trusting = ssl.create_default_context(cafile=tmp_path / "server.pem")
    with ServerProcess(
        target, *files, "--ssl-client-ca", "client.pem",
        cwd=str(tmp_path), env={"GATE": os.devnull},
    ) as running:  # fmt: skip
        assert running.url.startswith("https://")
        with wherry.Client(running.url, ssl_context=trusting) as client:
            assert not client.ready()
        trusting.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
        with wherry.Client(running.url, ssl_context=trusting) as client:
            assert client.infer("echo", text="secret") == "secret"
        with wherry.Client(running.url.replace("https", "http")) as client:
            assert not client.ready()


def test_an_api_key_covers_everything_but_health_and_empty_pages(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    one, two = "one-" + 20 * "1", "two-" + 20 * "2"
    keys.write_text(f"# ops team\n{one}\nours: {two}\n")
    with server(f"{MODELS}:echo", "--api-key-file", str(keys), "--access-log") as running:
        assert get(f"{running.url}/v2/health/live")[0] == 200
        assert get(f"{running.url}/v2/health/ready")[0] == 200
        for page in ("/", "/docs"):  # which ask for a key, and hold nothing of the server
            status, body = get(running.url + page)[:2]
            assert status == 200
            assert "echo" not in str(body)
        told = ("/dashboard/numbers", "/dashboard/events", "/openapi.json", "/metrics")
        for path in (*told, "/v2", "/v2/models", "/v2/models/echo", "/nothing"):
            assert get(running.url + path)[0] == 401, path
            for wrong in ("three", "ops", "team", "#", "ours:", "ours"):
                assert get(running.url + path, Authorization=f"Bearer {wrong}")[0] == 401, path
        assert get(f"{running.url}/v2", Authorization=f"Bearer {two}")[0] == 200
        wait_until(lambda: "key=ours" in running.log, "the key's name is in the access log")
        with wherry.Client(running.url, api_key=one) as client:
            assert client.infer("echo", text="let me in") == "let me in"
        wait_until(lambda: "key 1" in running.log, "a key without a name has its number")
        assert one not in running.log
        assert two not in running.log
        assert one not in Path(f"/proc/{running.pid}/cmdline").read_text().split("\0")


# Under load


@pytest.mark.full
def test_a_killed_worker_loses_no_request(gate: Gate) -> None:
    """None of them meets two deaths: a worker is killed when all have outlived the one before."""
    gate.open()
    stop = threading.Event()
    counts = [0] * 8
    with server(MODELS, "--instances", "2", gate=gate) as running:

        def load(client: wherry.Client, caller: int) -> None:
            while not stop.is_set():
                text = f"{caller} {counts[caller]}"
                assert client.infer("echo", text=text) == text
                counts[caller] += 1

        def are_back(killed: int) -> bool:
            return running.log.count("instance is back") == killed

        def have_gone_on(before: list[int]) -> bool:
            return all(map(int.__gt__, counts, before)) or any(one.done() for one in loads)

        with wherry.Client(running.url) as client, ThreadPoolExecutor(8) as pool:
            first = {client.infer("pid", text="") for _ in range(50)}
            loads = [pool.submit(load, client, caller) for caller in range(8)]
            try:
                for killed, pid in enumerate(children(running.pid), 1):  # of every model
                    os.kill(pid, signal.SIGKILL)
                    wait_until(partial(are_back, killed), "the instance is back")
                    wait_until(partial(have_gone_on, counts.copy()), "all callers have gone on")
            finally:
                stop.set()
            for one in loads:
                one.result(TIMEOUT)
            assert client.infer("pid", text="") not in first
        assert running.stop() == 0


# The other commands


def wherry_command(
    *arguments: str, env: dict[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "wherry", *arguments],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "GATE": os.devnull, **(env or {})},
        input=stdin,
        timeout=TIMEOUT,
        check=False,
    )


def test_call_and_models_talk_to_a_running_server() -> None:
    with running_server(MODELS, env={"GATE": os.devnull}, cwd=str(REPOSITORY)) as url:
        listed = wherry_command("models", "--url", url)
        assert [line.split()[:2] for line in listed.stdout.splitlines()] == [
            ["echo:1", "READY"],
            ["hold:1", "READY"],
            ["pid:1", "READY"],
            ["words:1", "READY"],
        ]
        assert "at_most INT64[-1] (optional))" in listed.stdout
        called = wherry_command("call", "echo", "what a day", "two", env={"WHERRY_URL": url})
        assert called.stdout == "what a day\ntwo\n"
        assert called.stderr == ""
        streamed = wherry_command("call", "words", "what a day", "--url", url)  # without --stream
        assert (streamed.stdout, streamed.stderr) == ("what\na\nday\n", "")
        piped = wherry_command("call", "echo", "-", "--json", "--url", url, stdin="a\nb\n")
        assert [json.loads(line) for line in piped.stdout.splitlines()] == ["a", "b"]
        wrong = wherry_command("call", "nope", "x", "--url", url)
        assert (wrong.returncode, wrong.stdout) == (1, "")
        assert "'nope'" in wrong.stderr
        usage = wherry_command("call", "echo", "--url", url)
        assert usage.returncode == 2
        assert "nothing to call 'echo' with; give a VALUE" in usage.stderr


def test_call_says_when_no_server_is_there() -> None:
    with socket.socket() as nobody:  # has the port, and does not listen
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        result = wherry_command("call", "echo", "x", "--url", url)
    assert result.returncode == 1
    assert "is a server running there?" in result.stderr
    assert "Traceback" not in result.stderr


def test_check_fails_with_exit_code_3_if_an_example_fails(tmp_path: Path) -> None:
    app = tmp_path / "fails.py"
    app.write_text(
        "import wherry\n"
        "@wherry.model(examples=[{'text': 'x'}], warmup=[{'text': 'warm'}])\n"
        "def m(text: list[str]) -> list[str]:\n"
        "    if text == ['x']: raise ValueError('not x')\n"
        "    return text\n"
    )
    result = wherry_command("check", str(app), "--inline")
    assert result.returncode == 3
    assert "FAILED: model 'm' failed: ValueError: not x" in result.stdout


def test_check_runs_the_examples_and_shows_where_each_setting_comes_from(tmp_path: Path) -> None:
    config = tmp_path / "some.toml"
    config.write_text("[models.echo]\nmax_queue_size = 7\n")
    result = wherry_command(
        "check", "--all", f"{MODELS}:echo", "--config", str(config), "--instances", "2",
        env={"WHERRY_REQUEST_TIMEOUT": "9"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert '{"text":"good"}' in result.stdout
    table = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert table["instances"].endswith("flag --instances")
    assert table["max_queue_size"].endswith("[models.echo]")
    assert table["request_timeout"].endswith("WHERRY_REQUEST_TIMEOUT")
    assert table["max_batch_size"].endswith("model")
    assert table["stall_timeout"].endswith("default")
