"""server/natural.py: models at routes of their own, over the application."""

import base64
import dataclasses
import gzip
import json
import threading
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest

import wherry
from tests.fakes import Gate, gated, until
from tests.http_exchange import Client, served
from tests.unit.server.content.test_urls import a_site
from wherry.core.models.config import RESERVED_PATHS
from wherry.core.values.errors import ConfigError
from wherry.server.content.urls import InputUrls
from wherry.server.http_app import HttpApp
from wherry.server.natural import NaturalCodec

B = "XyZ123"
FORM = {"content-type": f"multipart/form-data; boundary={B}"}
URLENCODED = {"content-type": "application/x-www-form-urlencoded"}
JPEG = {"content-type": "image/jpeg"}


def form(*fields: tuple[str, bytes]) -> bytes:
    """A form; what begins with "@" is a file."""
    body = b""
    for name, data in fields:
        file = b'; filename="../x/f.bin"' if data[:1] == b"@" else b""
        head = b'Content-Disposition: form-data; name="%b"%b' % (name.encode(), file)
        body += b"--XyZ123\r\n%b\r\n\r\n%b\r\n" % (head, data.removeprefix(b"@"))
    return body + b"--XyZ123--\r\n"


@wherry.model(max_batch_size=8, route="/v/size")
def size(image: list[bytes], times: list[int] | None = None) -> list[int]:
    return [len(one) * k for one, k in zip(image, times or [1] * len(image), strict=True)]


@wherry.model(max_batch_size=8, route="/reverse")
def reverse(data: list[bytes]) -> list[bytes]:
    return [one[::-1] for one in data]


@wherry.model(max_batch_size=2, route="/shout")
def shout(text: list[str]) -> list[str]:
    return [one.upper() for one in text]


@dataclasses.dataclass
class Person:
    name: str
    age: int = 3


@wherry.model(max_batch_size=8, route="/greet")
def greet(person: list[Person]) -> list[dict[str, Any]]:
    return [{"hello": one.name, "in_a_year": one.age + 1} for one in person]


class Both(TypedDict):
    total: Annotated[np.ndarray, wherry.FP32]
    on: list[bool]


@wherry.model(max_batch_size=8, route="/sum")
def add(x: Annotated[np.ndarray, wherry.FP32[-1]], on: list[bool]) -> Both:
    return {"total": x.sum(axis=1), "on": on}


@wherry.model(max_batch_size=8, route="/switches")
def switches(flag: list[bool], flags: list[list[bool]]) -> list[list[bool]]:
    return [[one, *more] for one, more in zip(flag, flags, strict=True)]


@wherry.model(max_batch_size=8, route="/upload")
def upload(file: list[wherry.File]) -> list[str]:
    return [f"{one.name} {one.media_type} {len(one.data)}" for one in file]


@wherry.model(max_batch_size=8, route="/page")
def page(title: list[str]) -> list[wherry.File]:
    return [wherry.File(b"<script>", f"../{one}.html", "text/html") for one in title]


@wherry.model(route="/count")
def count(n: int) -> Iterator[int]:
    yield from range(n)


@wherry.model(max_batch_size=8, route="/cut")
def cut(text: list[str], k: list[int] = 1) -> list[str]:  # type: ignore[assignment]
    return [one[:length] for one, length in zip(text, k, strict=True)]


@wherry.model(max_batch_size=8)
def bare(text: list[str]) -> list[str]:
    return text


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(size, reverse, shout, greet, add, count, bare, cut, upload, page) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("/shout", {"text": "a"}, "A"),
        ("/shout", [{"text": "a"}], ["A"]),
        ("/shout", [{"text": c} for c in "abcde"], list("ABCDE")),
        ("/greet", {"name": "Ann", "age": 8}, {"hello": "Ann", "in_a_year": 9}),
        ("/greet", [{"name": "Ann"}, {"name": "Bo"}], [
            {"hello": "Ann", "in_a_year": 4}, {"hello": "Bo", "in_a_year": 4},
        ]),
        ("/sum", {"x": [1, 2.5], "on": True}, {"total": 3.5, "on": True}),
        ("/sum", [{"x": [1], "on": False}, {"x": [2], "on": True}], [
            {"total": 1.0, "on": False}, {"total": 2.0, "on": True},
        ]),
        ("/v/size", {"image": "é"}, 2),
        ("/v/size", {"image": {"b64": "/////w=="}, "times": 2}, 8),
        ("/v/size", {"image": "abc", "times": None}, 3),
        ("/cut", {"text": "abc"}, "a"),
        ("/cut", {"text": "abc", "k": None}, "a"),
        ("/cut", [{"text": "abc"}, {"text": "abc", "k": 2}], ["a", "ab"]),
        ("/reverse", {"data": "abc"}, {"b64": "Y2Jh"}),
        ("/reverse", [{"data": "abc"}], [{"b64": "Y2Jh"}]),
    ],
)  # fmt: skip
def test_json_goes_in_and_the_value_itself_comes_out(
    path: str, body: Any, answer: object, client: Client
) -> None:
    found = client.post(path, body)
    assert (found.status, found.json) == (200, answer)


@pytest.mark.parametrize(
    ("path", "headers", "body", "answer"),
    [
        ("/v/size", JPEG, b"\xff" * 70_000, 70_000),
        ("/v/size?times=3", JPEG, b"\xff\xd8", 6),
        ("/v/size", FORM, form(("image", b"@abc"), ("times", b"2")), 6),
        ("/v/size?times=4", FORM, form(("image", b"@abc")), 12),
        ("/v/size", FORM, form(("image", b"@" + bytes(300_000))), 300_000),
        ("/v/size", FORM, form(("image", b"@a"), ("image", b"@bc")), [1, 2]),
        ("/v/size", FORM, form(("image", b"@a"), ("image", b"@bc"), ("times", b"2")), [2, 4]),
        ("/v/size", FORM, form(("image", b"@abc"), ("times", b"")), 3),
        ("/shout", {"content-type": "text/plain"}, b"a", "A"),
        ("/shout?text=b", {}, b"", "B"),
        ("/shout", {"content-type": "application/x-www-form-urlencoded"}, b"text=a+b", "A B"),
        ("/sum?on=on", FORM, form(("x", b"1"), ("x", b"2")), {"total": 3.0, "on": True}),
        ("/sum?on=False", FORM, form(("x", b"[1, 2]")), {"total": 3.0, "on": False}),
        ("/greet", FORM, form(("person", b'{"name": "Ann"}')), {"hello": "Ann", "in_a_year": 4}),
    ],
)
def test_forms_and_files_go_in_as_well(
    path: str, headers: dict[str, str], body: bytes, answer: object, client: Client
) -> None:
    found = client.post(path, body, headers)
    assert (found.status, found.json) == (200, answer)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((one, True) for one in (b"on", b"True", b"true", b" yes ", b"1")),
        *((one, False) for one in (b"off", b"False", b"No", b"0")),
    ],
)
def test_a_form_says_yes_and_no_as_browsers_and_python_do(text: bytes, value: bool) -> None:
    with served(switches) as client:
        answers = [
            client.post(
                "/switches", form(("flag", text), ("flags", text), ("flags", b"off")), FORM
            ),
            client.post("/switches", b"flag=%b&flags=%b&flags=off" % (text, text), URLENCODED),
        ]
    assert [answer.json for answer in answers] == [[value, value, False]] * 2


@pytest.mark.parametrize(
    "media_type", ["text/plain;charset=UTF-8", "Text/Plain", "", *URLENCODED.values()]
)
@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("/shout", b'{"text": "a"}', "A"),
        ("/shout", b'\xef\xbb\xbf [{"text": "a"}, {"text": "b"}]', ["A", "B"]),
        ("/greet", b'{"name": "Ann"}', {"hello": "Ann", "in_a_year": 4}),
        ("/sum", b'{"x": [1, 2], "on": true}', {"total": 3.0, "on": True}),
    ],
)
def test_json_is_read_as_such_whatever_a_client_calls_it(
    client: Client, path: str, body: bytes, answer: Any, media_type: str
) -> None:
    """A browser's fetch calls each string text/plain, and curl -d all data a form."""
    found = client.post(path, body, {"content-type": media_type})
    assert (found.status, found.json) == (200, answer)


def test_a_text_that_is_no_json_is_the_text(client: Client) -> None:
    answer = client.post("/shout", b"hello", {"content-type": "text/plain;charset=UTF-8"})
    assert answer.json == "HELLO"


def test_generate_takes_forms_and_files_too_with_parameters_beside_them(client: Client) -> None:
    for body, headers in (
        (form(("image", b"@abc"), ("times", b"2"), ("id", b"7"), ("priority", b"1")), FORM),
        (b'{"image": {"b64": "/////w=="}, "id": "7"}', {}),
    ):
        answer = client.post("/v2/models/size/generate", body, headers)
        assert answer.status == 200
        assert answer.json["output"] == (6 if headers else 4)
        assert answer.json["id"] == "7"
    raw = client.post("/v2/models/size/generate?times=2", b"\xff\xfe", JPEG)
    assert raw.json["output"] == 4


def test_generate_gives_bytes_that_are_no_text_in_base64(client: Client) -> None:
    path = "/v2/models/reverse/generate"
    assert client.post(path, b"abc", JPEG).json["output"] == "cba"
    assert client.post(path, b"\xff\xfe", JPEG).json["output"] == {
        "b64": base64.b64encode(b"\xfe\xff").decode()
    }


@pytest.mark.parametrize("path", ["/reverse", "/v2/models/reverse/generate"])
def test_bytes_come_as_themselves_to_those_that_ask_for_them(path: str, client: Client) -> None:
    answer = client.post(path, b"\xff<script>", {**JPEG, "accept": "application/octet-stream"})
    assert answer.content_type == "application/octet-stream"
    assert answer.body == b">tpircs<\xff"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["content-disposition"] == "attachment"


def test_a_large_answer_is_encoded_beside_the_loop(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    encode = NaturalCodec.answer

    def noted(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return encode(*args)

    monkeypatch.setattr(NaturalCodec, "answer", noted)
    data = bytes(range(256)) * 1000
    assert client.post("/reverse", data, JPEG).json == {
        "b64": base64.b64encode(data[::-1]).decode()
    }
    packed = client.post("/reverse", data, {**JPEG, "accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(packed.body)).keys() == {"b64"}
    assert threads == ["wherry-offload"] * 2
    itself = client.post("/reverse", data, {**JPEG, "accept": "application/octet-stream"})
    assert itself.body == data[::-1]
    assert threads[2:] != ["wherry-offload"]  # it is sent as it is


def test_a_compressed_form_is_unpacked_within_its_limit() -> None:
    body = gzip.compress(form(("image", b"@" + bytes(300_000))))
    with served(size, max_body_bytes=400_000) as client:
        answer = client.post("/v/size", body, {**FORM, "content-encoding": "gzip"})
        assert answer.json == 300_000
        body = gzip.compress(form(("image", b"@" + bytes(500_000))))
        answer = client.post("/v/size", body, {**FORM, "content-encoding": "gzip"})
        assert answer.status == 413


def test_a_client_that_leaves_takes_its_request_along() -> None:
    gate = Gate()
    with served(gated(gate, route="/gated")) as client:
        exchange = client.begin("POST", "/gated", {"text": "a"})
        gate.started()
        client.call(exchange.leave)
        gate.open()
        until(lambda: client.app.admission.in_flight == 0)


def test_a_file_comes_with_what_its_sender_says_of_it(client: Client) -> None:
    assert client.post("/upload", form(("file", b"@abc"))).status == 400
    assert client.post("/upload", form(("file", b"@abc")), FORM).json == "f.bin None 3"
    assert client.post("/upload", b"abc", JPEG).json == "None image/jpeg 3"
    assert client.post("/upload", {"file": {"b64": "YWJj"}}).json == "None None 3"
    assert client.post("/v2/models/upload/generate", b"abc", JPEG).json["output"] == (
        "None image/jpeg 3"
    )


def test_a_file_is_the_answer_by_default_and_no_browser_runs_it(client: Client) -> None:
    for accept in ({}, {"accept": "*/*"}, {"accept": "text/html"}, {"accept": "text/*"}):
        answer = client.post("/page", {"title": 'a"é'}, accept)
        assert (answer.status, answer.body) == (200, b"<script>")
        assert answer.content_type == "text/html"
        assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert answer.headers["content-disposition"] == (
            "attachment; filename*=UTF-8''a%22%C3%A9.html"
        )
    assert client.post("/page", {"title": "a"}, {"accept": "application/json"}).json == {
        "b64": "PHNjcmlwdD4="
    }
    refused = client.post("/page", {"title": "a"}, {"accept": "image/png"})
    assert refused.status == 406
    assert "text/html" in refused.error
    assert client.post("/v2/models/page/generate", {"title": "a"}).json["output"] == {
        "b64": "PHNjcmlwdD4="
    }


@pytest.mark.parametrize("path", ["/upload", "/v2/models/upload/generate"])
def test_a_url_stands_for_a_file_where_the_operator_allows_it(path: str, client: Client) -> None:
    answer = client.post(path, {"file": "data:image/png;base64,YWJj"})
    assert answer.status == 400
    assert "input 'file' of model 'upload': this server takes no data URLs" in answer.error
    assert "expected a URL" in client.post(path, {"file": "abc"}).error
    with served(upload, input_urls=InputUrls(["data"]), max_body_bytes=100) as allowed:
        for body in (
            {"file": "data:image/png;base64,YWJj"},
            form(("file", b"data:image/png;base64,YWJj")),
        ):
            answer = allowed.post(path, body, FORM if isinstance(body, bytes) else {})
            assert answer.status == 200
            found = answer.json["output"] if "generate" in path else answer.json
            assert found == "None image/png 3"


def test_a_url_is_waited_for_in_a_thread_of_its_own_and_counts_against_the_bodys_limit() -> None:
    with (
        a_site() as site,
        served(upload, input_urls=InputUrls([site]), max_body_bytes=5) as client,
    ):
        fetching = client.app._entry.common.fetching
        assert client.post("/upload", {"file": f"{site}/cat.jpg"}).json == "cat.jpg image/jpeg 4"
        two = [{"file": f"{site}/a.jpg"}, {"file": f"{site}/b.jpg"}]
        refused = client.post("/upload", two)
        assert refused.status == 413
        assert "input 'file[1]' of model 'upload': the URL has more than the 1 bytes" in (
            refused.error
        )
        until(lambda: not fetching.bytes_in_work)


def test_several_rows_are_no_file(client: Client) -> None:
    wanted = {**FORM, "accept": "application/octet-stream, application/json;q=0.1"}
    body = form(("data", b"@a"), ("data", b"@b"))
    assert client.post("/reverse", body, wanted).json == [{"b64": "YQ=="}, {"b64": "Yg=="}]
    wanted["accept"] = "application/octet-stream"
    refused = client.post("/reverse", body, wanted)
    assert refused.status == 406
    assert "2 rows" in refused.error


def test_a_generator_streams_events_or_lines(client: Client) -> None:
    assert client.post("/count", {"n": 2}).events == [0, 1]
    lines = client.post("/count", {"n": 2}, {"accept": "application/x-ndjson"})
    assert lines.content_type == "application/x-ndjson"
    assert lines.body == b"0\n1\n"


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("/shout", {"txt": "a"}, 400, "model 'shout' has no input 'txt'; its inputs are 'text'"),
        ("/shout", {"text": 1}, 400, "input 'text' of model 'shout': expected str, got int"),
        ("/shout", {}, 400, "input 'text' of model 'shout' is missing"),
        ("/shout", [], 400, "at least one row"),
        ("/shout", 7, 400, "must be an object with the members 'text', got int"),
        ("/shout", [{"text": "a"}, "b"], 400, "row 1 of the body must be an object"),
        ("/shout", [{"text": "a"}, {"text": 2}], 400, "input 'text[1]'"),
        ("/shout", b"{", 400, "JSON"),
        ("/shout", b"[" * 50_000, 400, "depth"),
        ("/v/size", [{"image": "", "times": 1}, {"image": ""}], 400, "missing in row 1"),
        ("/v/size", {"image": {"b64": "a"}}, 400, "'image.b64' of model 'size': is not base64"),
        ("/v/size", {"image": {"b64": "a", "x": 1}}, 400, "got object"),
        ("/v/size", {"image": "", "times": "2"}, 400, "'times' of model 'size': expected int"),
        ("/v/size", {"image": "", "times": 2**70}, 400, "input 'times'"),
        ("/sum", {"x": [1, "a"], "on": True}, 400, "input 'x[1]' of model 'add': expected float"),
        ("/sum", {"x": [[1]], "on": True}, 400, "input 'x[0]' of model 'add': expected float"),
        ("/sum", {"x": 3, "on": True}, 400, "input 'x' of model 'add': expected array, got int"),
        ("/sum", {"x": [1e300], "on": True}, 400, "out of the range of FP32"),
        ("/sum", [{"x": [1], "on": True}, {"x": [1, 2], "on": True}], 400, "differ in shape"),
        ("/greet", {"nam": "Ann"}, 400, "name"),
        ("/greet", {"name": 3}, 400, "name"),
    ],
)  # fmt: skip
def test_what_a_client_gets_wrong_is_named(
    path: str, body: Any, status: int, told: str, client: Client
) -> None:
    answer = client.post(path, body)
    assert answer.status == status
    assert told in answer.error


@pytest.mark.parametrize(
    ("path", "headers", "body", "status", "told"),
    [
        (
            "/v/size",
            FORM,
            form(("image", b"@a"), ("times", b"x")),
            400,
            "expected INT64 as JSON, got 'x'",
        ),
        (
            "/v/size",
            FORM,
            form(("image", b"@a"), ("times", b"1.5")),
            400,
            "'times' of model 'size'",
        ),
        ("/v/size", FORM, form(("image", b"@a"), ("nope", b"1")), 400, "no input 'nope'"),
        ("/v/size", FORM, form(("file", b"@a")), 400, "no input 'file'; its inputs are 'image',"),
        ("/v/size", FORM, form(("times", b"1")), 400, "image"),
        (
            "/v/size",
            FORM,
            form(*[("image", b"@a")] * 2, *[("times", b"1")] * 3),
            400,
            "2 rows, others",
        ),
        ("/v/size", FORM, form(("image", b"@a"))[:-9], 400, "has no end"),
        ("/shout", FORM, form(("text", b"@\xff")), 400, "not UTF-8"),
        ("/shout", JPEG, b"\xff", 415, "send application/json or multipart/form-data"),
        ("/v/size?nope=1", JPEG, b"\xff", 400, "no input 'nope'"),
        ("/sum", {"accept": "image/png"}, b"{}", 406, "application/json"),
        ("/count", {"accept": "image/png"}, b'{"n": 1}', 406, "text/event-stream"),
        ("/shout", {"x-request-priority": "x"}, b'{"text": ""}', 400, "X-Request-Priority"),
    ],
)
def test_what_a_form_or_its_head_gets_wrong_is_named(
    path: str, headers: dict[str, str], body: bytes, status: int, told: str, client: Client
) -> None:
    answer = client.post(path, body, headers)
    assert answer.status == status
    assert told in answer.error


def test_another_method_is_told_which_there_is(client: Client) -> None:
    answer = client.get("/shout")
    assert answer.status == 405
    assert answer.headers["allow"] == "OPTIONS, POST"


def test_a_model_without_a_route_has_no_path_of_its_own(client: Client) -> None:
    assert client.post("/bare", {"text": "a"}).status == 404


def test_a_route_comes_and_goes_with_its_model() -> None:
    with served(bare) as client:
        assert client.post("/shout", {"text": "a"}).status == 404
        client.runtime.load(shout)
        assert client.post("/shout", {"text": "a"}).json == "A"
        client.runtime.unload("shout")
        assert client.post("/shout", {"text": "a"}).status == 404


def test_the_highest_version_has_the_route() -> None:
    with served(bare) as client:
        client.runtime.load(shout, version="2", route="/new")
        client.runtime.load(shout, version="1", route="/old")
        assert client.post("/old", {"text": "a"}).status == 404
        assert client.post("/new", {"text": "a"}).json == "A"


def test_two_models_cannot_have_one_route() -> None:
    with served(shout) as client, pytest.raises(ConfigError, match=r"same .* '/shout' as model"):
        client.runtime.load(bare, route="/shout")


@pytest.mark.parametrize(
    "route",
    ["", "/", "predict", "/v2/x", "/metrics", "/health", "/a/", "//a", "/a b", "/a?b",
     "/../a", "/a/..", "/_x", "/openapi.json", "/é"],
)  # fmt: skip
def test_a_route_that_cannot_be_one_is_refused(route: str) -> None:
    with pytest.raises(ConfigError, match="route"):
        shout.config(route=route)


def test_no_model_can_take_a_path_of_the_server(client: Client) -> None:
    app: HttpApp = client.app
    paths = set(app._routes) - {"*"}  # of OPTIONS * alone
    assert {path.split("/")[1] for path in paths} <= RESERVED_PATHS


def test_the_body_of_an_answer_is_json_as_a_model_that_streams_nothing_gives_it(
    client: Client,
) -> None:
    assert json.loads(client.post("/shout", {"text": '"'}).body) == '"'


@pytest.mark.parametrize(
    "route",
    ["/score", "/rerank", "/tokenize", "/detokenize",
     "/v1/predict", "/v1/models/m:predict", "/v1/models", "/v1/chat/completions", "/v1/messages/x"],
)  # fmt: skip
def test_a_model_may_have_a_path_of_a_protocol_as_its_route(route: str) -> None:
    with served(bare) as client:
        assert client.post(route, {"text": "a"}).status in (404, 405)
        client.runtime.load(shout, route=route)
        assert client.post(route, {"text": "a"}).json == "A"
        refused = client.post(route, {"txt": "a"})
        assert refused.status == 400
        assert isinstance(refused.json["error"], str)  # as on any route of a model
        described = client.get("/openapi.json").json["paths"][route]
        assert {method: one["tags"] for method, one in described.items()} == {"post": ["shout"]}
        client.runtime.unload("shout")
        assert client.post(route, {"text": "a"}).status in (404, 405)


@pytest.mark.parametrize("path", ["/rerank", "/tokenize", "/v1/embeddings", "/v1/completions"])
def test_a_protocols_path_is_404_where_no_model_is_for_it(path: str) -> None:
    with served(bare) as client:
        answer = client.post(path, {"model": "bare"})
        assert answer.status == 404
        assert "no model of this server is for" in answer.json["error"]["message"]
