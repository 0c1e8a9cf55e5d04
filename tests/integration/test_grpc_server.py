"""`wherry serve --grpc-port` as a process of its own: its life, TLS, and Triton's repository."""

import contextlib
import fcntl
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from google.protobuf import descriptor_pb2
from grpc import StatusCode
from tritonclient.utils import InferenceServerException

from wherry.server.grpc.proto import load
from wherry.testing import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
MODELS = str(ROOT / "tests/integration/life_models.py")
TIMEOUT = 60.0

both_isolations = pytest.mark.parametrize("isolation", ["thread", "process"])


@contextmanager
def running(
    *arguments: str, cwd: Path = ROOT, gate: str = os.devnull, path: str = ""
) -> Iterator[tuple[ServerProcess, str]]:
    """A server process and the address of its gRPC."""
    options = [*arguments, "--grpc-port", "0"]
    env = {"GATE": gate, **({"PYTHONPATH": path} if path else {})}
    with ServerProcess(*options, cwd=str(cwd), env=env) as server:
        yield server, grpc_address(server)


def grpc_address(server: ServerProcess) -> str:
    found = re.search(r"grpc=(\S+)", server.log)
    assert found is not None, server.log
    return found[1]


def words(*texts: str) -> list[triton.InferInput]:
    given = triton.InferInput("text", [len(texts)], "BYTES")
    given.set_data_from_numpy(np.array(texts, dtype=object))
    return [given]


def numbers(name: str, *values: int) -> list[triton.InferInput]:
    given = triton.InferInput(name, [len(values)], "INT32")
    given.set_data_from_numpy(np.array(values, np.int32))
    return [given]


def until(client: triton.InferenceServerClient, condition: Callable[[], bool]) -> None:
    """What was sent travels on its own; ask the server something else until it is there. A wait in
    vain is pytest-timeout's to end."""
    while not condition():
        assert client.is_server_live()


@both_isolations
def test_a_signal_lets_all_64_in_flight_be_answered(isolation: str, tmp_path: Path) -> None:
    path = tmp_path / "gate"
    results: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with path.open("w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        with (
            running(f"{MODELS}:hold", "--isolation", isolation, gate=str(path)) as (server, url),
            triton.InferenceServerClient(url) as client,
        ):

            def done(result: Any, error: Any) -> None:
                results.put((result, error))

            for n in range(64):
                client.async_infer("hold", words(f"word {n}"), done, request_id=str(n))
            # With the first batch running, all others wait: then each of the 64 has arrived.
            other = triton.InferenceServerClient(url)
            until(other, lambda: in_flight(server.url) == 64)
            other.close()
            server.send(signal.SIGTERM)
            until_closed(url)
            fcntl.flock(gate, fcntl.LOCK_UN)
            answers = [results.get(timeout=TIMEOUT) for _ in range(64)]
            assert [error for _, error in answers if error is not None] == []
            assert sorted(int(r.get_response().id) for r, _ in answers) == list(range(64))
            assert server.wait() == 0, server.log


def in_flight(url: str) -> int:
    """What the metrics say, over HTTP: both protocols count together."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=TIMEOUT) as answer:
        found = re.search(r"^wherry_requests_in_flight (\d+)", answer.read().decode(), re.M)
    assert found is not None
    return int(found[1])


def until_closed(url: str) -> None:
    host, port = url.split(":")
    while True:
        try:
            socket.create_connection((host, int(port)), TIMEOUT).close()
        except OSError:
            return


def test_a_taken_port_is_said_before_any_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, "-m", "wherry", "serve", f"{MODELS}:echo", "--port", "0",
             "--grpc-port", str(port)],
            cwd=ROOT, env={**os.environ, "GATE": os.devnull}, capture_output=True, text=True,
            timeout=TIMEOUT,
        )  # fmt: skip
    assert ended.returncode == 1
    assert f"cannot listen for gRPC on 127.0.0.1:{port}" in ended.stderr
    assert "--grpc-port" in ended.stderr
    assert "model ready" not in ended.stderr


def test_the_server_needs_no_grpcio(tmp_path: Path) -> None:
    (tmp_path / "grpc.py").write_text("raise ImportError('No module named grpc')")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    with (
        running(f"{MODELS}:echo", "--isolation", "thread", path=path) as (_, url),
        triton.InferenceServerClient(url) as client,
    ):
        result = client.infer("echo", words("x"))
        assert result.as_numpy("output").tolist() == [b"x"]


@pytest.fixture
def certified(tmp_path: Path) -> Path:
    """A folder with the certificates and keys of a server and a client."""
    for name in ("server", "client"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext",
             "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", f"{name}.key", "-out",
             f"{name}.pem"],
            cwd=tmp_path, check=True, capture_output=True,
        )  # fmt: skip
    return tmp_path


def test_tls_of_grpc_alone_and_its_own_restrictions_by_tritons_flags(certified: Path) -> None:
    tls = ["--grpc-use-ssl-mutual=true", "--grpc-server-cert", "server.pem"]
    tls += ["--grpc-server-key=server.key", "--grpc-root-cert=client.pem"]
    asked = ["--http-restricted-api=statistics,trace:k=http"]
    asked += ["--grpc-restricted-protocol=trace:k=grpc"]
    own = {
        "root_certificates": str(certified / "server.pem"),
        "private_key": str(certified / "client.key"),
        "certificate_chain": str(certified / "client.pem"),
    }
    with (
        running(f"{MODELS}:echo", *tls, *asked, cwd=certified) as (server, url),
        triton.InferenceServerClient(url, ssl=True, **own) as client,
    ):
        assert server.url.startswith("http://")
        assert client.infer("echo", words("secret")).as_numpy("output").tolist() == [b"secret"]
        prefixed = "triton-grpc-protocol-k"
        client.get_trace_settings(headers={prefixed: "grpc"})
        client.get_inference_statistics(headers={prefixed: "http"})
        for call in (client.get_trace_settings, client.get_inference_statistics):
            with pytest.raises(InferenceServerException, match="protocol is restricted"):
                call(headers={prefixed: "neither"})
        with (
            triton.InferenceServerClient(
                url, ssl=True, root_certificates=own["root_certificates"]
            ) as other,
            pytest.raises(InferenceServerException) as caught,
        ):
            other.is_server_live()
        assert caught.value.status() == str(StatusCode.UNAVAILABLE)


def test_tls_and_clients_with_a_certificate(certified: Path) -> None:
    tmp_path = certified
    files = ["--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
    ca = {"ssl": True, "root_certificates": str(tmp_path / "server.pem")}
    own = {
        "private_key": str(tmp_path / "client.key"),
        "certificate_chain": str(tmp_path / "client.pem"),
    }
    with running(f"{MODELS}:echo", *files, "--ssl-client-ca", "client.pem", cwd=tmp_path) as (
        _,
        url,
    ):
        with triton.InferenceServerClient(url, **ca, **own) as client:
            result = client.infer("echo", words("secret"))
            assert result.as_numpy("output").tolist() == [b"secret"]
        for options in (ca, {}):
            with (
                triton.InferenceServerClient(url, **options) as client,
                pytest.raises(InferenceServerException) as caught,
            ):
                client.is_server_live()
            assert caught.value.status() == str(StatusCode.UNAVAILABLE)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    shutil.copytree(ROOT / "tests/python_repository/repeat", folder / "repeat")
    shutil.copytree(ROOT / "tests/python_repository/add_sub", folder / "add_sub")
    return folder


def test_a_repository_is_controlled_over_grpc(repository: Path) -> None:
    explicit = [str(repository), "--model-control-mode", "explicit"]
    with running(*explicit) as (_, url), triton.InferenceServerClient(url) as client:
        index = client.get_model_repository_index().models
        assert [(m.name, m.state) for m in index] == [("add_sub", ""), ("repeat", "")]
        assert not client.is_model_ready("repeat")
        client.load_model("repeat")
        assert client.is_model_ready("repeat")
        (ready,) = (m for m in client.get_model_repository_index().models if m.state == "READY")
        assert (ready.name, ready.version) == ("repeat", "1")
        config = client.get_model_config("repeat").config
        assert config.model_transaction_policy.decoupled
        assert [i.name for i in config.input] == ["TIMES"]
        with pytest.raises(InferenceServerException, match="nope") as caught:
            client.load_model("nope")
        assert caught.value.status() in (
            str(StatusCode.NOT_FOUND),
            str(StatusCode.INVALID_ARGUMENT),
        )
        client.load_model("repeat", config='{"max_batch_size": "0", "parameters": {"a": {}}}')
        client.unload_model("repeat")
        until(client, lambda: not client.is_model_ready("repeat"))


def test_a_decoupled_python_model_streams(repository: Path) -> None:
    shutil.rmtree(repository / "add_sub")
    with running(str(repository)) as (_, url), triton.InferenceServerClient(url) as client:
        with pytest.raises(InferenceServerException, match="decoupled transaction policy"):
            client.infer("repeat", numbers("TIMES", 3))
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for request_id, times in (("a", 3), ("b", 0)):
            client.async_stream_infer(
                "repeat",
                numbers("TIMES", times),
                request_id=request_id,
                enable_empty_final_response=True,
            )
        seen: dict[str, list[tuple[list[int], bool]]] = {"a": [], "b": []}
        for _ in range(5):
            result, error = answers.get(timeout=TIMEOUT)
            assert error is None
            response = result.get_response()
            counts = result.as_numpy("COUNT")
            final = response.parameters["triton_final_response"].bool_param
            seen[response.id].append(([] if counts is None else counts.tolist(), final))
        assert seen == {"a": [([0], False), ([1], False), ([2], False), ([], True)],
                        "b": [([], True)]}  # fmt: skip
        client.stop_stream()


@both_isolations
def test_a_signal_under_load_loses_no_call(isolation: str) -> None:
    """What arrives just then is answered; what comes later finds nobody to connect to."""
    counts = [0] * 4
    problems: list[Any] = []

    def keep_asking(number: int, url: str) -> None:
        with triton.InferenceServerClient(url) as client, contextlib.suppress(ConnectionError):
            while True:
                try:
                    client.infer("echo", words(str(number)))
                    counts[number] += 1
                except InferenceServerException as error:
                    if "failed to connect" not in error.message().lower():
                        problems.append((error.status(), error.message()))
                    return

    with running(f"{MODELS}:echo", "--isolation", isolation) as (server, url):
        askers = [threading.Thread(target=keep_asking, args=(n, url)) for n in range(len(counts))]
        for asker in askers:
            asker.start()
        with triton.InferenceServerClient(url) as client:
            until(client, lambda: min(counts) >= 20)
        server.send(signal.SIGTERM)
        for asker in askers:
            asker.join(TIMEOUT)
        assert problems == []
        assert server.wait() == 0, server.log


@pytest.mark.parametrize("package", ["grpc.reflection.v1", "grpc.reflection.v1alpha"])
def test_a_client_without_proto_files_asks_the_server_for_them(package: str) -> None:
    """As grpcurl does: the services, then the file of one of them, on one call."""
    described = load("reflection.proto").messages
    request, response = (described[f"ServerReflection{kind}"] for kind in ("Request", "Response"))
    asked: list[dict[str, Any]] = [
        {"host": "here", "list_services": "*"},
        {"file_containing_symbol": "inference.GRPCInferenceService.ModelInfer"},
        {"file_by_filename": "health.proto"},
        {"file_containing_symbol": "inference.Nothing"},
        {"all_extension_numbers_of_type": "inference.ModelInferRequest"},
        {},
    ]
    with running(MODELS) as (_, address), grpc.insecure_channel(address) as channel:
        call = channel.stream_stream(
            f"/{package}.ServerReflection/ServerReflectionInfo",
            request_serializer=request.encode,
            response_deserializer=response.decode,
        )
        services, symbol, file, nothing, extensions, empty = call(iter(asked), timeout=TIMEOUT)
    assert services["valid_host"] == "here"
    assert services["original_request"] == asked[0]
    assert {one["name"] for one in services["list_services_response"]["service"]} == {
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    for answer, name in ((symbol, "v2.proto"), (file, "health.proto")):
        (described_file,) = answer["file_descriptor_response"]["file_descriptor_proto"]
        read = descriptor_pb2.FileDescriptorProto.FromString(bytes(described_file))
        assert read.name == name
    assert nothing["error_response"]["error_code"] == 5
    assert extensions["error_response"]["error_code"] == 5
    assert empty["error_response"]["error_code"] == 3
