"""server/http_app.py: paths, methods, keys, health, errors, compression."""

import gc
import gzip
import logging
import zlib
from collections.abc import Iterator

import pytest

import wherry
from tests.fakes import TIMEOUT, Call, Gate, gated, no_new_threads, until
from tests.http_exchange import Client, MemoryExchange, served
from wherry.server.access.api_keys import GROUPS, ApiKeys, Restrictions
from wherry.server.calls.admission import Admission
from wherry.server.http.exchange import Exchange, RequestHead
from wherry.server.v2.http import kserve


@wherry.model
def quiet(text: str) -> str:
    return text


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("/", "metadata"),
        ("/v2", "metadata"),
        ("/v2/models", "metadata"),
        ("/v2/models/stats", "statistics"),
        ("/v2/models/stats/infer", "inference"),
        ("/v2/models/m", "metadata"),
        ("/v2/models/m/versions/1", "metadata"),
        ("/v2/models/m/infer", "inference"),
        ("/v2/models/m/versions/1/infer", "inference"),
        ("/v2/models/versions/infer", "inference"),
        ("/v2/models/m/generate", "inference"),
        ("/v2/models/m/versions/1/generate_stream", "inference"),
        ("/v2/models/m/ready", "health"),
        ("/v2/models/m/config", "model-config"),
        ("/v2/models/m/versions/2/stats", "statistics"),
        ("/v2/models/m/batching", "statistics"),
        ("/v2/models/m/trace/setting", "trace"),
        ("/v2/trace/setting", "trace"),
        ("/v2/logging", "logging"),
        ("/v2/health/live", "health"),
        ("/v2/health/ready", "health"),
        ("/livez", "health"),
        ("/v2/repository/index", "model-repository"),
        ("/v2/repository/models/m/load", "model-repository"),
        ("/v2/systemsharedmemory/status", "shared-memory"),
        ("/v2/cudasharedmemory/region/r/register", "shared-memory"),
        ("/metrics", "metrics"),
        ("/v1/models", "metadata"),
        ("/v1/models/m", "metadata"),
        ("/v1/chat/completions", "inference"),
    ],
)
def test_each_path_has_its_group(path: str, group: str) -> None:
    assert group in GROUPS
    with served(quiet) as client:
        route = client.app.route(RequestHead("GET", path))
        assert route is not None
        assert route.group == group


def test_with_every_group_off_no_route_answers() -> None:
    with served(quiet, restrictions=Restrictions(off=GROUPS)) as client:
        for path, route in client.app._routes.items():
            assert route.group in GROUPS
            for method in route.handlers:
                answer = client.ask(method, path)
                assert answer.status == 403, path
                assert b"switched off" in answer.body  # in the form of the path's protocol


def test_a_restricted_group_answers_whoever_has_the_header() -> None:
    restrictions = Restrictions(["inference,logging:admin-key=secret"])
    path, body = "/v2/models/quiet/generate", {"text": "a"}
    with served(quiet, restrictions=restrictions) as client:
        refused = client.post(path, body)
        assert refused.status == 403
        assert refused.error == "This API is restricted, expecting header 'admin-key'"
        assert client.post(path, body, {"admin-key": "wrong"}).status == 403
        assert client.post(path, body, {"admin-key": "secret"}).json["output"] == "a"
        assert client.get("/v2/logging").status == 403
        assert client.get("/v2/models/quiet").status == 200


def test_keys_are_asked_for_before_a_restriction_says_anything() -> None:
    with served(quiet, keys=ApiKeys(["k"]), restrictions=Restrictions(off=["logging"])) as client:
        assert client.get("/v2/logging").status == 401
        assert client.get("/v2/logging", {"x-api-key": "k"}).status == 403


INFER = "/v2/models/echo/infer"
HEALTH = (
    "/v2/health/live",
    "/v2/health/ready",
    "/livez",
    "/readyz",
    "/healthz",
    "/health",
    "/ping",
)


@wherry.model(max_batch_size=4)
def echo(text: list[str]) -> list[str]:
    return text


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(echo) as client:
        yield client


def text_of(*texts: str) -> dict[str, object]:
    return {
        "inputs": [
            {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": list(texts)}
        ]
    }


# Methods


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/v2", "GET, HEAD, OPTIONS"),
        ("PUT", "/v2/models/echo", "GET, HEAD, OPTIONS"),
        ("POST", "/v2/health/live", "GET, HEAD, OPTIONS"),
        ("GET", INFER, "OPTIONS, POST"),
        ("HEAD", INFER, "OPTIONS, POST"),
        ("DELETE", INFER, "OPTIONS, POST"),
        ("BREW", "/", "GET, HEAD, OPTIONS"),
    ],
)
def test_another_method_is_refused_with_those_that_are_allowed(
    client: Client, method: str, path: str, allow: str
) -> None:
    answer = client.ask(method, path)
    assert answer.status == 405
    assert answer.error == f"Method Not Allowed; use {'POST' if 'POST' in allow else 'GET'}"
    assert answer.headers["allow"] == allow


def test_options_says_what_is_allowed(client: Client) -> None:
    answer = client.ask("OPTIONS", INFER)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["allow"] == "OPTIONS, POST"


def test_options_may_ask_the_server_itself(client: Client) -> None:
    assert client.ask("OPTIONS", "*").status == 204
    assert client.ask("GET", "*").status == 405


def test_head_is_get_for_the_transport_to_cut_short(client: Client) -> None:
    assert client.ask("HEAD", "/v2").status == 200


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "BREW"])
def test_an_unknown_path_is_not_found_with_any_method(client: Client, method: str) -> None:
    answer = client.ask(method, "/nothing/here")
    assert (answer.status, answer.error) == (
        404,
        "Not Found; /docs lists the routes of this server",
    )


def test_however_many_paths_clients_make_up_the_memory_is_bounded(client: Client) -> None:
    for number in range(3000):
        client.call(lambda n=number: client.app._find(f"/v2/models/m{n}/infer"))  # type: ignore[misc]
    assert len(client.app._known) <= 1024
    assert client.post(INFER, text_of("a")).status == 200


# Health


@pytest.mark.parametrize("path", HEALTH)
def test_health_is_ok_with_nothing_to_say(client: Client, path: str) -> None:
    answer = client.get(path)
    assert (answer.status, answer.body, answer.content_type) == (200, b"", "text/plain")


def test_a_server_lives_no_longer_than_the_process_that_it_serves_for() -> None:
    with served(echo) as client:
        lives = [True]
        client.app.live_while(lambda: lives[0])
        assert client.get("/v2/health/live").status == 200
        lives = [False]
        assert client.get("/livez").status == 503
        client.call(client.app.drain)
        assert client.get("/livez").status == 200  # it ends already


def test_a_draining_server_is_alive_and_not_ready() -> None:
    with served(echo) as client:
        client.call(client.app.drain)
        assert client.get("/v2/health/live").status == 200
        for path in ("/v2/health/ready", "/readyz"):
            answer = client.get(path)
            assert answer.status == 503
            assert "draining" in answer.error
        assert client.post(INFER, text_of("a")).status == 200  # what comes in is answered


def test_what_is_not_ready_says_why() -> None:
    gate = Gate()
    with served(echo, gated(gate, stall_timeout=0.001)) as client:
        stuck = client.begin("POST", "/v2/models/gated/infer", text_of("a"))
        gate.started()
        # Any moment now it has been in its batch for more than a millisecond.
        while (answer := client.get("/v2/health/ready")).status == 200:
            pass
        model = client.get("/v2/models/gated/ready")
        (listed,) = [m for m in client.get("/v2/models").json["models"] if m["name"] == "gated"]
        other = client.get("/v2/models/echo/ready")
        gate.open()
        stuck.answered.result(TIMEOUT)
        until(lambda: client.get("/v2/health/ready").status == 200)

    assert answer.status == 503
    assert "model 'gated': every instance has been in one batch" in answer.error
    assert list(answer.json["models"]) == ["gated"]
    assert model.status == 503
    assert "stall_timeout" in model.error
    assert listed["state"] == "UNAVAILABLE"
    assert "stall_timeout" in listed["reason"]
    assert other.status == 200


# Keys


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first"},
        {"authorization": "bearer second"},
        {"x-api-key": "second"},
    ],
)
def test_a_key_opens_every_path(headers: dict[str, str]) -> None:
    with served(echo, keys=ApiKeys(["first", "second"])) as client:
        for path in ("/", "/v2", "/metrics", "/v2/models/echo"):
            assert client.get(path, headers).status == 200
        assert client.post(INFER, text_of("a"), headers).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer third"},
        {"authorization": "Bearer "},
        {"authorization": "Basic first"},
        {"authorization": "first"},
        {"x-api-key": "firs"},
        {"x-api-key": "ü"},
    ],
)
def test_without_a_key_there_is_nothing_but_health(headers: dict[str, str]) -> None:
    with served(echo, keys=ApiKeys(["first", "second"])) as client:
        for path in ("/dashboard/numbers", "/v2", "/metrics", "/v2/models/echo", "/nothing"):
            answer = client.get(path, headers)
            assert answer.status == 401, path
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert "API key" in answer.error
        assert client.post(INFER, text_of("a"), headers).status == 401
        assert client.ask("OPTIONS", INFER, headers=headers).status == 401
        for path in HEALTH:
            assert client.get(path, headers).status == 200


# Errors


def test_a_bug_of_ours_is_logged_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(model: object, exchange: Exchange) -> None:
        raise RuntimeError("secret path /etc/passwd")

    monkeypatch.setitem(kserve.INFERENCE, "infer", (bug, kserve.INFER))
    with served(echo) as client, caplog.at_level(logging.ERROR, "wherry"):
        answer = client.post(INFER, text_of("a"), {"x-request-id": "r1"})

    assert answer.status == 500
    assert "secret" not in answer.error
    assert "r1" in answer.error
    assert answer.headers["x-request-id"] == "r1"
    (record,) = caplog.records
    assert "secret" in record.__dict__["traceback"]


def test_an_error_has_an_id_that_the_log_can_be_searched_for(client: Client) -> None:
    answer = client.post(INFER, {"inputs": []})
    assert answer.status == 400
    assert len(answer.headers["x-request-id"]) > 10


@pytest.mark.parametrize(
    ("given", "echoed"),
    [("abc-1", True), ("x" * 128, True), ("x" * 129, False), ("a\x00b", False), ("a\x85", False)],
)
def test_a_request_id_is_echoed_if_it_may_go_into_a_header(
    client: Client, given: str, echoed: bool
) -> None:
    answer = client.post(INFER, text_of("a"), {"x-request-id": given})
    assert answer.status == 200
    assert answer.headers.get("x-request-id") == (given if echoed else None)


def test_an_error_text_may_quote_what_is_no_utf8(client: Client) -> None:
    assert client.get("/v2/models/\udcff").status == 404


# Admission


def test_beyond_the_limit_of_requests_in_flight_the_next_is_refused_at_once() -> None:
    gate = Gate()
    with served(echo, gated(gate), admission=Admission(1)) as client:
        first = client.begin("POST", "/v2/models/gated/infer", text_of("a"))
        gate.started()
        refused = client.post(INFER, text_of("b"))
        assert refused.status == 429
        assert refused.headers["retry-after"] == "1"
        assert "max_in_flight" in refused.error
        assert client.get("/v2/health/ready").status == 200
        gate.open()
        first.answered.result(TIMEOUT)
        assert client.post(INFER, text_of("b")).status == 200
        assert client.app.admission.refused == 1


def test_beyond_max_queue_bytes_large_requests_are_refused_until_others_are_through() -> None:
    gate = Gate()
    text = "x" * 2**20
    admission = Admission(max_bytes=4 * 2**20)
    with served(echo, gated(gate, max_batch_size=1), admission=admission) as client:
        asked = [client.begin("POST", "/v2/models/gated/infer", text_of(text)) for _ in range(3)]
        gate.started()
        until(lambda: admission.held_bytes > 3 * 2**20)  # all are decoded, beside the loop
        for path, body in (
            (INFER, text_of(text)),
            ("/v2/models/echo/generate", {"text": text}),
            ("/v2/models/echo/generate_stream", {"text": text}),
        ):
            refused = client.post(path, body)
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert "max_queue_bytes" in refused.error
        assert client.post(INFER, text_of("small")).status == 200
        gate.open(3)
        for one in asked:
            one.answered.result(TIMEOUT)
        assert client.post(INFER, text_of(text)).status == 200
    assert admission.in_flight == 0


def test_clients_that_leave_in_the_queue_take_their_bytes_with_them() -> None:
    gate = Gate()
    admission = Admission(max_bytes=4 * 2**20)
    with served(gated(gate, max_batch_size=1), admission=admission) as client:
        runs = client.begin("POST", "/v2/models/gated/infer", text_of("runs"))
        gate.started()
        for _ in range(20):
            large = client.begin("POST", "/v2/models/gated/infer", text_of("x" * 2**21))
            client.call(large.leave)
            client.call(lambda: None)
        gate.open()
        runs.answered.result(TIMEOUT)
        assert admission.refused == 0


@pytest.mark.parametrize(
    "path", [INFER, "/v2/models/echo/generate", "/v2/models/echo/generate_stream"]
)
def test_what_a_request_held_is_free_when_it_is_answered_without_the_collector(path: str) -> None:
    admission = Admission(max_bytes=2**30)
    text = "x" * 2**20
    gc.disable()
    try:
        with served(echo, admission=admission) as client:
            body = text_of(text) if path == INFER else {"text": text}
            assert client.post(path, body).status == 200
            until(lambda: client.call(lambda: admission.held_bytes) == 0)
    finally:
        gc.enable()


def test_every_way_out_gives_the_place_back() -> None:
    with served(echo, admission=Admission(1)) as client:
        for _ in range(3):
            client.post(INFER, {"inputs": []})
            client.post(INFER, {**text_of("a"), "parameters": {"priority": 99}})
            client.post("/v2/models/nobody/infer", text_of("a"))
            client.post("/v2/models/echo/generate", {"text": 1})
            client.post("/v2/models/echo/generate_stream", {"text": 1})
            client.post("/v2/models/echo/generate_stream", {"text": "a"})
            client.post("/v2/models/echo/generate", {"text": "a"})
            assert client.post(INFER, text_of("a")).status == 200
        assert client.app.admission.in_flight == 0
        assert repr(client.app.admission) == "<Admission: 0 in flight, 0 refused>"


def test_without_a_limit_nobody_is_refused() -> None:
    admission = Admission()
    for _ in range(10_000):
        admission.check()
        admission.enter(Call("a").request)
    assert admission.in_flight == 10_000


# Compression


@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda body: zlib.compress(body, wbits=-15)),
        ("identity", bytes),
        ("GZIP", gzip.compress),
        ("gzip", lambda body: gzip.compress(body[:9]) + gzip.compress(body[9:])),
    ],
)
def test_a_compressed_request_is_unpacked(client: Client, coding: str, pack: object) -> None:
    body = b'{"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["packed"]}]}'
    assert callable(pack)
    answer = client.post(INFER, pack(body), {"content-encoding": coding})
    assert answer.json["outputs"][0]["data"] == ["packed"]


def test_an_unknown_coding_is_answered_with_the_known_ones(client: Client) -> None:
    answer = client.post(INFER, b"x", {"content-encoding": "br"})
    assert answer.status == 501
    assert answer.error.startswith("Unsupported compression type '")
    assert answer.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("body", [b"", b"nonsense", gzip.compress(b"x" * 100, mtime=0)[:20]])
def test_what_cannot_be_unpacked_is_the_clients_fault(
    client: Client, coding: str, body: bytes
) -> None:
    assert client.post(INFER, body, {"content-encoding": coding}).status == 400


def test_a_body_that_grows_too_large_is_refused() -> None:
    with served(echo, max_body_bytes=10_000) as client:
        body = gzip.compress(b" " * 10_001)
        answer = client.post(INFER, body, {"content-encoding": "gzip"})
        assert answer.status == 413
        assert "10000 bytes" in answer.error


def large(client: Client, accept: str | None) -> MemoryExchange:
    headers = {} if accept is None else {"accept-encoding": accept}
    return client.post(INFER, text_of("a" * 3000), headers)


def test_a_large_answer_is_compressed_if_the_client_wants_it(client: Client) -> None:
    plain = large(client, None)
    assert "content-encoding" not in plain.headers

    packed = large(client, "gzip, deflate")
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "Accept-Encoding"
    assert gzip.decompress(packed.body) == plain.body

    packed = large(client, "deflate")
    assert packed.headers["content-encoding"] == "deflate"
    assert zlib.decompress(packed.body) == plain.body

    assert "content-encoding" not in large(client, "br").headers


def test_small_answers_and_errors_are_not_compressed(client: Client) -> None:
    accept = {"accept-encoding": "gzip"}
    assert "content-encoding" not in client.post(INFER, text_of("a"), accept).headers
    error = client.post(INFER, text_of("a" * 3000) | {"id": 5}, accept)
    assert "content-encoding" not in error.headers


def test_descriptions_are_not_compressed_because_tritons_asyncio_client_would_not_unpack_them(
    client: Client,
) -> None:
    for path in ("/v2/models/echo/config", "/v2/models/stats"):
        answer = client.get(path, {"accept-encoding": "gzip, deflate"})
        assert answer.status == 200
        assert "content-encoding" not in answer.headers


def test_a_compressed_binary_answer_counts_its_unpacked_header(client: Client) -> None:
    request = {**text_of("a" * 3000), "parameters": {"binary_data_output": True}}
    answer = client.post(INFER, request, {"accept-encoding": "gzip"})
    size = int(answer.headers["inference-header-content-length"])
    body = gzip.decompress(answer.body)
    assert body[size + 4 :] == b"a" * 3000


# Metrics


def test_metrics_come_again_when_the_system_has_threads_again(client: Client) -> None:
    with no_new_threads():
        answers = [client.get("/metrics") for _ in range(2)]
    assert [(one.status, one.headers["retry-after"]) for one in answers] == [(503, "1")] * 2
    assert client.get("/metrics").status == 200


def test_who_asks_for_metrics_together_is_answered_together(client: Client) -> None:
    exchanges = [client.begin("GET", "/metrics") for _ in range(5)]
    for exchange in exchanges:
        exchange.answered.result(TIMEOUT)
        assert exchange.status == 200
        assert b"wherry_info" in exchange.body
