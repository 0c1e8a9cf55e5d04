"""What load balancers are told of a server with its answers."""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from collections.abc import Iterator

import grpc
import pytest

import wherry
from tests.grpc_calls import served as served_calls
from tests.grpc_calls import words
from tests.http_exchange import MemoryExchange, served
from wherry.core.observability.load_meter import LoadReport
from wherry.core.observability.metrics import MetricsConfig
from wherry.server.access.api_keys import ApiKeys
from wherry.server.calls.load_reports import LoadReports
from wherry.server.v2.grpc.kserve import schemas
from wherry.testing import local_server

FORMAT_HEADER = "endpoint-load-metrics-format"
INFER = "/v2/models/shout/infer"
BODY = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}]}
LOAD = LoadReport(
    utilisation=0.25, requests_per_second=12.0, errors_per_second=0.5, queued_rows=3,
    running_rows=8, free_slots=13, wait_seconds=0.0401, answer_seconds=0.05,
)  # fmt: skip
FIELDS = {"application_utilization": 0.25, "rps_fractional": 12.0, "eps": 0.5}
NAMED = {
    "queued_rows": 3,
    "running_rows": 8,
    "free_slots": 13,
    "predicted_wait_seconds": 0.0401,
    "predicted_answer_seconds": 0.05,
}


@wherry.model(max_batch_size=8, route="/shout")
def shout(text: list[str]) -> list[str]:
    if "bad" in text:
        raise ValueError("no")
    return [t.upper() for t in text]


@wherry.model
def letters(text: str) -> Iterator[str]:
    yield from text


def told(load: LoadReport | None, form: str) -> dict[str, str]:
    wanted = LoadReports(lambda: load).requested_by({FORMAT_HEADER: form})
    assert wanted is not None
    return dict(wanted())


def test_as_json_it_is_the_messages_own_json() -> None:
    kind, _, text = told(LOAD, "JSON")["endpoint-load-metrics"].partition(" ")
    assert (kind, json.loads(text)) == ("JSON", {**FIELDS, "named_metrics": NAMED})


def test_as_text_it_is_pairs_with_the_named_ones_prefixed() -> None:
    kind, _, text = told(LOAD, "text")["endpoint-load-metrics"].partition(" ")
    pairs = dict(pair.split("=") for pair in text.split(", "))
    assert kind == "TEXT"
    assert {name: float(value) for name, value in pairs.items()} == {
        **FIELDS,
        **{f"named_metrics.{name}": value for name, value in NAMED.items()},
    }


def test_in_binary_it_is_the_protobuf_message() -> None:
    assert read_message(told(LOAD, "bin")) == (FIELDS, NAMED)


def read_message(headers: dict[str, str]) -> tuple[dict[str, float], dict[str, float]]:
    """The message by its schema (xds/data/orca/v3/orca_load_report.proto)."""
    names = {6: "rps_fractional", 7: "eps", 9: "application_utilization"}
    fields, named = {}, {}
    for number, value in _fields(b64decode(headers["endpoint-load-metrics-bin"], validate=True)):
        if isinstance(value, float):
            fields[names[number]] = value
        else:
            assert number == 8
            entry = dict(_fields(value))
            assert isinstance(entry[1], bytes)
            assert isinstance(entry[2], float)
            named[entry[1].decode()] = entry[2]
    return fields, named


def _fields(data: bytes) -> Iterator[tuple[int, bytes | float]]:
    while data:
        number, kind = data[0] >> 3, data[0] & 7
        if kind == 1:
            yield number, struct.unpack_from("<d", data, 1)[0]
            data = data[9:]
        else:
            assert kind == 2
            yield number, data[2 : 2 + data[1]]
            data = data[2 + data[1] :]


def test_the_kv_cache_has_tritons_names_where_there_is_one() -> None:
    load = LoadReport(kv_cache_tokens=4096, kv_cache_usage=0.125)
    named = json.loads(told(load, "json")["endpoint-load-metrics"][5:])["named_metrics"]
    assert (named["kv_cache_utilization"], named["max_token_capacity"]) == (0.125, 4096)
    assert read_message(told(load, "bin"))[1]["max_token_capacity"] == 4096.0


def test_who_asks_for_no_form_that_there_is_gets_none() -> None:
    reports = LoadReports(lambda: LOAD)
    assert reports.requested_by({}) is reports.requested_by({FORMAT_HEADER: "xml"}) is None


def test_an_owner_that_has_not_told_yet_is_no_load() -> None:
    assert told(None, "json") == {}


def header(exchange: MemoryExchange) -> str:
    return exchange.headers.get("endpoint-load-metrics", "")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (INFER, BODY, 200),
        ("/v2/models/shout/generate", {"text": "a"}, 200),
        ("/v2/models/letters/generate_stream", {"text": "ab"}, 200),
        ("/shout", {"text": "a"}, 200),
        ("/shout", {"text": "bad"}, 500),
        (INFER, {"inputs": []}, 400),
        ("/v1/chat/completions", {"model": "none", "messages": []}, 404),
        ("/v1/messages", {"model": "none", "max_tokens": 1, "messages": []}, 404),
    ],
)
def test_each_answer_carries_it_if_its_client_asks(
    path: str, body: dict[str, object], status: int
) -> None:
    with served(shout, letters) as client:
        asked, plain = client.post(path, body, {FORMAT_HEADER: "json"}), client.post(path, body)
    assert (asked.status, plain.status) == (status, status)
    assert json.loads(header(asked).removeprefix("JSON "))["named_metrics"]["free_slots"] > 0
    assert header(plain) == ""


def test_a_refusal_carries_it_too() -> None:
    with served(shout) as client:
        client.app.admission.max_in_flight = 0
        refused = client.post(INFER, BODY, {FORMAT_HEADER: "text"})
    assert refused.status == 429
    assert header(refused).startswith("TEXT ")


def test_without_its_key_a_client_is_told_nothing() -> None:
    with served(shout, keys=ApiKeys(["secret"])) as client:
        assert header(client.post(INFER, BODY, {FORMAT_HEADER: "json"})) == ""
        key = {"authorization": "Bearer secret"}
        assert header(client.post(INFER, BODY, {FORMAT_HEADER: "json", **key})) != ""


def test_a_server_may_tell_every_client_and_in_the_form_that_one_asks_for() -> None:
    with served(shout, metrics=MetricsConfig(load_report="text")) as client:
        assert header(client.post(INFER, BODY)).startswith("TEXT ")
        assert header(client.post(INFER, BODY, {FORMAT_HEADER: "json"})).startswith("JSON ")


def test_over_grpc_it_is_in_the_trailers() -> None:
    always = MetricsConfig(load_report="json")
    with served_calls(shout) as client, served_calls(shout, metrics=always) as telling:
        assert client.ask("ModelInfer", words("a")).trailers == ()
        asked = client.ask("ModelInfer", words("a"), metadata={FORMAT_HEADER: "text"})
        assert dict(asked.trailers)["endpoint-load-metrics"].startswith("TEXT ")
        unasked = telling.ask("ModelInfer", words("a"))
        failed = telling.ask("ModelInfer", words("bad"))
    assert read_message(dict(unasked.trailers))[1]["free_slots"] == 8.0
    assert failed.code == "INTERNAL"
    assert read_message(dict(failed.trailers))[0].keys() == FIELDS.keys()


def test_a_client_of_grpc_reads_it_after_answers_streams_and_errors() -> None:
    service = "/inference.GRPCInferenceService/"
    method = schemas()["v2.proto"].methods[f"{service}ModelInfer"]
    letters_of_abc = words("abc", model="letters")
    letters_of_abc["inputs"][0]["shape"] = [1]
    good, bad, streamed = map(method.request.encode, (words("a"), words("bad"), letters_of_abc))
    asks = [
        (FORMAT_HEADER, "text")
    ]  # a report in binary is gRPC's own: the library keeps it to itself
    with (
        local_server(shout, letters, grpc_port=0) as server,
        grpc.insecure_channel(server.grpc_url) as channel,
    ):
        infer, stream = (
            channel.unary_unary(f"{service}ModelInfer"),
            channel.stream_stream(f"{service}ModelStreamInfer"),
        )
        calls = [
            infer.future(good, metadata=asks),
            infer.future(bad, metadata=asks),
            stream(iter([streamed]), metadata=asks),
        ]
        assert len(list(calls[2])) == 3
        codes = [call.code().name for call in calls]
        told = [dict(call.trailing_metadata())["endpoint-load-metrics"] for call in calls]
    assert codes == ["OK", "INTERNAL", "OK"]
    assert all("named_metrics.free_slots=" in text for text in told)
