"""wherry.core.client.connections: a client that does not get through is told what to look at."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from socket import create_server

import msgspec
import pytest

import wherry
from wherry.server.cli import main
from wherry.testing import local_server


@wherry.model
def echo(text: str) -> str:
    return text


def certificate(folder: Path, names: str) -> Path:
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    command += f" -keyout key.pem -out cert.pem -subj /CN=x -addext subjectAltName={names}"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder / "cert.pem"


COMMANDS = [["models", "--url"], ["explain", "echo", "--url"], ["bench"]]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_certificate_that_is_not_trusted_is_told_with_the_flag_that_trusts_it(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pem = str(certificate(tmp_path, "DNS:other.test"))
    key = str(tmp_path / "key.pem")
    with local_server(echo, ssl_certfile=pem, ssl_keyfile=key) as server:
        url = server.url
        assert main([*command, url]) != 0
        assert "--ssl-ca names a file with the certificates to trust" in capsys.readouterr().err
        assert main([*command, url, "--ssl-ca", pem]) != 0
        assert "call it by a name that its certificate has" in capsys.readouterr().err
        assert main([*command, url.replace("https", "http")]) != 0
        assert "another protocol there, such as https://?" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_https_where_none_is_spoken_is_told(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with local_server(echo) as server:
        url = server.url
        assert main([*command, url.replace("http", "https")]) != 0
    assert "does it speak TLS there, or http:// without?" in capsys.readouterr().err


CONFIG = msgspec.json.encode(
    {
        "name": "m",
        "max_batch_size": 8,
        "input": [{"name": "text", "data_type": "TYPE_STRING", "dims": [1]}],
        "output": [{"name": "output", "data_type": "TYPE_STRING", "dims": [1]}],
    }
)
OUTPUTS = b'{"outputs":[{"name":"output","datatype":"BYTES","shape":[1],%b}]}'
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKS = EVENTS + b"Transfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"output":"a"}\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(body: bytes, headers: bytes = b"", status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, headers, len(body), body)


@contextmanager
def answered(answer: bytes) -> Iterator[wherry.Client]:
    """A client that is told of a model, and then given `answer`, behind which the server closes."""
    with create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as requests:
                for said in (whole(CONFIG), answer):
                    length = 0
                    while (line := requests.readline().strip().lower()) != b"":
                        if line.startswith(b"content-length:"):
                            length = int(line.partition(b":")[2])
                    requests.read(length)
                    connection.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        with wherry.Client(f"http://127.0.0.1:{listening.getsockname()[1]}") as client:
            client.describe("m")
            yield client
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKS + chunk(EVENT) + b"0\r\n\r\n",
        CHUNKS + chunk(EVENT[:9]) + chunk(EVENT[9:]) + b"0\r\n\r\n",
        EVENTS + b"Content-Length: %d\r\n\r\n" % len(EVENT) + EVENT,
        EVENTS.replace(b"1.1", b"1.0") + b"\r\n" + EVENT,
        CHUNKS + chunk(b": ping\n\n") + chunk(EVENT.replace(b"\n", b"\r\n")) + b"0\r\n\r\n",
    ],
)
def test_a_stream_ends_where_its_server_has_ended_it(answer: bytes) -> None:
    with answered(answer) as client:
        assert list(client.stream("m", "x")) == ["a"]


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKS + chunk(EVENT),  # between two chunks, where http.client says nothing of it
        CHUNKS + chunk(EVENT) + b"18\r\ndata",
        CHUNKS + chunk(EVENT) + chunk(b'data: {"out'),
        CHUNKS + chunk(EVENT) + b"no size\r\n",
        CHUNKS + chunk(EVENT) + chunk(b'data: {"output":"b"}') + b"0\r\n\r\n",
        EVENTS + b"Content-Length: 100\r\n\r\n" + EVENT,
    ],
)
def test_a_stream_that_is_cut_off_does_not_look_complete(answer: bytes) -> None:
    with answered(answer) as client:
        rows = client.stream("m", "x")
        assert next(rows) == "a"
        with pytest.raises(ConnectionError, match="cut off"):
            next(rows)


@pytest.mark.parametrize(
    "answer",
    [
        whole(b"<html>hello</html>", b"Content-Type: text/html\r\n"),
        whole(b"", b"Location: https://other.test/\r\n", b"302 Found"),
        b"HTTP/1.1 204 No Content\r\n\r\n",
        whole(b'{"a":1}'),
        whole(b"[1]"),
        whole(OUTPUTS.replace(b"BYTES", b"TEXTS") % b'"data":["a"]'),
        whole(b'{"outputs":[{"name":"o","datatype":"FP32","shape":[3],"data":[1]}]}'),
        whole(OUTPUTS % b'"data":["a"]', b"Inference-Header-Content-Length: x\r\n"),
        whole(OUTPUTS % b'"parameters":{"binary_data_size":9}'),
        whole(
            (head := OUTPUTS % b'"parameters":{"binary_data_size":5}') + b"\2\0\0\0a",
            b"Inference-Header-Content-Length: %d\r\n" % len(head),
        ),
    ],
)
def test_an_answer_of_another_program_is_an_error_of_ours(answer: bytes) -> None:
    with answered(answer) as client, pytest.raises(wherry.WherryError, match="not an answer of a"):
        client.infer("m", "x")


@pytest.mark.parametrize(
    "answer",
    [
        whole(EVENT, b"Content-Type: text/html\r\n"),
        EVENTS + b"Content-Length: 13\r\n\r\ndata: hello\n\n",
        EVENTS + b"Content-Length: 11\r\n\r\ndata: [1]\n\n",
    ],
)
def test_a_stream_of_another_program_is_one_too(answer: bytes) -> None:
    with answered(answer) as client, pytest.raises(wherry.WherryError, match="not an answer of a"):
        list(client.stream("m", "x"))


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9\r\n",
        b"\0\0\x12\4\0\0\0\0\0",
        b"HTTP/1.1 99 x\r\n\r\n",
        b"HTTP/1.1 200 " + b"a" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    ],
)
def test_another_protocol_is_a_connection_error(answer: bytes) -> None:
    with answered(answer) as client, pytest.raises(ConnectionError, match="is not HTTP") as raised:
        client.infer("m", "x")
    assert not isinstance(raised.value, HTTPException)


def test_a_refusal_says_when_to_come_back() -> None:
    refusal = whole(b'{"error":"full"}', b"Retry-After: 7\r\n", b"429 Too Many Requests")
    with answered(refusal) as client, pytest.raises(wherry.Overloaded, match="full") as refused:
        client.infer("m", text="x")
    assert refused.value.retry_after == 7.0
