"""A V2 server, asked and loaded over gRPC."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import pytest

pytest.importorskip("grpc")

import wherry
from wherry.bench import over_grpc
from wherry.bench.connection import Wire
from wherry.bench.load import LoadProcesses
from wherry.bench.observe import Unreachable
from wherry.bench.plan import Closed, Plan, Rate
from wherry.bench.session import Served, measure
from wherry.bench.targets import Sending, find
from wherry.core.client.wire import ModelDescription, Tensor
from wherry.core.values.datatypes import BYTES, FP32
from wherry.core.values.errors import ConfigError
from wherry.testing import local_server

Floats = Annotated[np.ndarray[Any, Any], wherry.FP32[2]]


@wherry.model(name="both", max_batch_size=4)
def both(text: list[str], x: Floats) -> list[str]:
    if "bad" in text:
        raise wherry.InvalidRequest("a bad row")
    return [f"{t} {row.sum():g}" for t, row in zip(text, x, strict=True)]


def test_a_request_holds_its_tensors_as_raw_contents() -> None:
    model = ModelDescription(
        "m", (Tensor("text", BYTES, (1,)), Tensor("x", FP32, (2,))), (), batched=True
    )
    rows = [{"text": "é", "x": np.array([n, n], np.float32)} for n in (1, 2)]
    protocol = over_grpc.schema()
    made = over_grpc.encode(protocol, model, "7", rows)
    values = protocol.methods[over_grpc.INFER].request.decode(made.data)
    assert made.rows == 2
    assert (values["model_name"], values["model_version"]) == ("m", "7")
    assert [list(tensor["shape"]) for tensor in values["inputs"]] == [[2, 1], [2, 2]]
    assert [bytes(raw) for raw in values["raw_input_contents"]] == [
        b"\x02\0\0\0\xc3\xa9" * 2,
        np.array([[1, 1], [2, 2]], np.float32).tobytes(),
    ]


@pytest.fixture
def url() -> Iterator[str]:
    with local_server(both, grpc_port=0) as server:
        yield f"grpc://{server.grpc_url}"


@pytest.mark.slow
def test_a_server_is_measured_over_grpc_and_its_own_account_agrees(url: str) -> None:
    target = find(url, Sending())
    assert (target.protocol, target.model) == ("grpc", "both")
    with LoadProcesses(1) as load:
        for shape in (Closed(callers=3), Rate(rate=500)):
            point = measure(Served(target, load), Plan(load=shape, requests=30), rows=2).point
            assert (point.figures.ok, point.figures.failed) == (30, 0)
            assert point.server is not None
            assert (point.server.requests, point.server.rows) == (30, 60)


@pytest.mark.slow
def test_errors_have_their_codes_and_a_stalled_call_its_timeout(url: str, tmp_path: Any) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "bad", "x": [1, 2]}\n')
    target = find(url, Sending(inputs=str(tmp_path / "rows.jsonl")))
    with LoadProcesses(1) as load:
        point = measure(Served(target, load), Plan(load=Closed(callers=2), requests=6)).point
        assert point.figures.errors == {"gRPC INVALID_ARGUMENT": 6}
        assert "a bad row" in point.samples["gRPC INVALID_ARGUMENT"]
        with socket.create_server(("127.0.0.1", 0)) as silent:
            wire = Wire(port=silent.getsockname()[1], reads="grpc")
            plan = Plan(load=Closed(callers=2), duration=0.1, timeout=0.2)
            raw = load.run(plan, wire, target.requests(1))
    assert raw.records.failures == len(raw.records) > 0
    assert set(raw.records.outcomes) <= {"ok", "timeout", "cannot connect: no answer in time"}


@wherry.model(name="words")
def words(text: str) -> Iterator[str]:
    for word in text.split():
        if word == "bad":
            raise wherry.InvalidRequest("a bad word")
        yield word


@pytest.mark.slow
def test_the_responses_of_a_stream_are_its_pieces(tmp_path: Any) -> None:
    with local_server(words, grpc_port=0) as server, LoadProcesses(1) as load:
        url = f"grpc://{server.grpc_url}"
        for text, errors in (("a b c", {}), ("a bad c", {"error in the answer": 6})):
            (tmp_path / "rows.txt").write_text(text)
            target = find(url, Sending(inputs=str(tmp_path / "rows.txt")))
            assert target.wire.reads == "grpc_stream"
            point = measure(Served(target, load), Plan(load=Closed(callers=2), requests=6)).point
            assert point.figures.errors == errors
            if errors:
                assert "a bad word" in point.samples["error in the answer"]
            else:
                assert point.figures.inter_token is not None
                assert point.figures.inter_token.count == 2 * 6


def test_nobody_there_and_no_such_model_are_told_apart(url: str) -> None:
    with pytest.raises(ConfigError, match="NOT_FOUND"):
        find(url, Sending(model="nope"))
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        nobody = f"grpc://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unreachable, match="is a server running there"):
            find(nobody, Sending(model="both"))
