"""Which server it is, which model is meant, and what is sent to it."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import wherry
from wherry.bench.inputs import Lengths
from wherry.bench.observe import Unreachable, address
from wherry.bench.targets import Sending, find
from wherry.core.values.errors import ConfigError
from wherry.testing import local_server


@wherry.model(max_batch_size=4, examples=[{"text": "an example"}])
def echo(text: list[str]) -> list[str]:
    return text


@wherry.model
def words(text: str) -> Iterator[str]:
    yield from text.split()


@contextmanager
def pages(routes: dict[str, Any]) -> Iterator[str]:
    """A server that knows these paths (GET, or "POST /path") and answers with their JSON."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(self.path)

        def do_POST(self) -> None:
            self._answer(f"POST {self.path}")

        def _answer(self, key: str) -> None:
            body = json.dumps(routes.get(key, {"error": "not here"})).encode()
            self.send_response(200 if key in routes else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_wherry_server_tells_all_that_is_needed() -> None:
    with local_server(echo) as server:
        target = find(server.url, Sending())
        assert (target.protocol, target.model, target.source) == (
            "infer", "echo", "the model's examples",
        )  # fmt: skip
        (request,) = target.requests(1)
        assert request.data.startswith(b"POST /v2/models/echo/infer HTTP/1.1\r\n")
        assert b"an example" in request.data
        assert target.requests(3)[0].rows == 3
        made_up = find(server.url, Sending(text=Lengths(low=50, high=50)))
        assert made_up.source == "made up from the model's metadata"
        assert len(made_up.requests(1)) == 1000


def test_a_model_that_streams_is_streamed_and_others_must_be_named() -> None:
    with local_server(echo, words) as server:
        with pytest.raises(ConfigError, match="echo, words"):
            find(server.url, Sending())
        target = find(server.url, Sending(model="words"))
        assert (target.protocol, target.wire.reads) == ("generate_stream", "v2_events")
        with pytest.raises(ConfigError, match="one row a request"):
            target.requests(2)
        assert find(f"{server.url}/v2/models/words/generate", Sending()).protocol == "generate"
        assert find(f"{server.url}/v2/models/echo/versions/1/infer", Sending()).model == "echo"
        with pytest.raises(ConfigError, match="nope"):
            find(server.url, Sending(model="nope"))


def test_a_server_with_only_the_protocols_own_metadata_will_do() -> None:
    routes = {
        "/v2": {"name": "triton"},
        "POST /v2/repository/index": [{"name": "net", "state": "READY"}],
        "/v2/models/net": {
            "name": "net",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
        },
    }
    with pages(routes) as url:
        target = find(url, Sending())
        assert (target.protocol, target.model) == ("infer", "net")
        assert b'"shape":[2,3]' in target.requests(2)[0].data


def test_an_openai_server_is_known_by_its_models() -> None:
    with pages({"/v1/models": {"data": [{"id": "llm"}]}}) as url:
        target = find(url, Sending())
        assert (target.protocol, target.model, target.wire.reads) == (
            "chat", "llm", "openai_events",
        )  # fmt: skip
        assert target.requests(1)[0].data.startswith(b"POST /v1/chat/completions HTTP/1.1")
        based = find(f"{url}/v1", Sending(protocol="completions", stream=False))
        assert based.requests(1)[0].data.startswith(b"POST /v1/completions HTTP/1.1")
        assert based.wire.reads == "openai"
        embeddings = find(f"{url}/v1/embeddings", Sending())
        assert embeddings.requests(2)[0].rows == 2
        with pytest.raises(ConfigError, match="one prompt"):
            target.requests(2)


def test_anthropics_streams_are_not_taken_for_whole_answers() -> None:
    with pages({}) as url:
        with pytest.raises(ConfigError, match="/v1/chat/completions"):
            find(f"{url}/v1/messages", Sending())
        assert find(f"{url}/v1/messages", Sending(protocol="http")).wire.reads == "status"


def test_anything_else_is_a_plain_url(tmp_path: Path) -> None:
    with pages({}) as url:
        get = find(f"{url}/page?x=1", Sending(headers={"X-A": "b"}))
        assert get.requests(1)[0].data.startswith(b"GET /page?x=1 HTTP/1.1\r\n")
        assert b"X-A: b\r\n" in get.requests(1)[0].data
        post = find(f"{url}/page", Sending(body='{"a": 1}'))
        assert b"Content-Type: application/json" in post.requests(1)[0].data
        (tmp_path / "b.jsonl").write_text('{"a": 1}\n"text"\n')
        several = find(f"{url}/page", Sending(inputs=str(tmp_path / "b.jsonl"))).requests(1)
        assert [request.data.rpartition(b"\r\n")[2] for request in several] == [
            b'{"a":1}', b"text",
        ]  # fmt: skip
        (tmp_path / "body").write_bytes(b"\x00\xff")
        made = find(f"{url}/page", Sending(body=f"@{tmp_path}/body", method="PUT")).requests(1)[0]
        assert made.data.startswith(b"PUT /page")
        assert made.data.endswith(b"\x00\xff")
        with pytest.raises(ConfigError, match="gone"):
            find(f"{url}/page", Sending(body=f"@{tmp_path}/gone"))


@pytest.mark.parametrize("end", ["v2/models/echo/generate", "v1/chat/completions"])
@pytest.mark.parametrize("given", [{"body": "{}"}, {"method": "PUT"}])
def test_a_body_that_a_protocol_would_not_send_is_refused(end: str, given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="use --protocol http"):
        find(f"http://127.0.0.1:9/{end}", Sending(**given))  # type: ignore[arg-type]
    made = find(f"http://127.0.0.1:9/{end}", Sending(protocol="http", **given)).requests(1)  # type: ignore[arg-type]
    assert f"/{end}".encode() in made[0].data


def test_nobody_there_is_told_as_such() -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable, match="is a server running there"):
            find(f"http://127.0.0.1:{taken.getsockname()[1]}", Sending())


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port/", "http+tcp://x"])
def test_a_url_that_is_none_is_an_error(url: str) -> None:
    with pytest.raises(ConfigError, match=r"URL|expected|names no host"):
        address(url)


def test_addresses_are_taken_apart() -> None:
    assert address("https://h/p?q=1") == address("https://h:443/p?q=1").__class__(
        "https://h/p?q=1", "https", "h", 443, "/p?q=1"
    )
    assert address("http://h:80/").name == "h"
    assert address("http://[::1]:8000").name == "[::1]:8000"
    assert address("http+unix:///run/w.sock").uds == "/run/w.sock"


def test_keys_stand_in_requests_and_win_over_nothing_else() -> None:
    assert Sending(api_key="k").all_headers() == {"Authorization": "Bearer k"}
    own = Sending(api_key="k", headers={"Authorization": "Basic x"})
    assert own.all_headers() == {"Authorization": "Basic x"}


@contextmanager
def saying(speech: bytes) -> Iterator[str]:
    """A server that says this to whatever it is asked."""

    def talk() -> None:
        peer, _ = listener.accept()
        with peer, suppress(OSError):
            peer.recv(65536)
            peer.sendall(speech)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=talk)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_a_server_of_another_protocol_is_told() -> None:
    speech = b"SSH-2.0-OpenSSH_9\r\n"
    with saying(speech) as url, pytest.raises(Unreachable, match="_9' is not HTTP"):
        find(url, Sending())
