"""What Triton's C++ client sends, byte for byte, against a real server.

Recorded from perf_analyzer 2.41.1 (grpc-c++ 1.48) between its first byte and its first request: it
asks for the model's metadata, config and statistics, then infers.
"""

import base64
import socket
from collections.abc import Iterator
from typing import Annotated

import numpy as np
import pytest
from hyperframe.frame import DataFrame, Frame

import wherry
from tests.fakes import TIMEOUT
from tests.unit.server.grpc.raw import messages_in
from wherry.server.grpc import proto
from wherry.server.grpc.wire import Values
from wherry.testing import local_server

METHODS = proto.load("v2.proto", "model_config.proto").methods
NUMBERS = np.frombuffer(bytes.fromhex("67c6697351ff4aec29cdbaabf2fbe346"), np.int32)

#: `perf_analyzer -m double -i grpc`
UNARY = """
UFJJICogSFRUUC8yLjANCg0KU00NCg0KAAAkBAAAAAAAAAIAAAAAAAMAAAAAAAQAP///AAUAP///AAYAACAA/gMAAA
ABAAAECAAAAAAAAD8AAAAAAAQBAAAAAAAA5wEEAAAAAUAFOnBhdGgtL2luZmVyZW5jZS5HUlBDSW5mZXJlbmNlU2Vy
dmljZS9Nb2RlbE1ldGFkYXRhQAo6YXV0aG9yaXR5DzEyNy4wLjAuMToxODQwMoOGQAxjb250ZW50LXR5cGUQYXBwbG
ljYXRpb24vZ3JwY0ACdGUIdHJhaWxlcnNAFGdycGMtYWNjZXB0LWVuY29kaW5nF2lkZW50aXR5LCBkZWZsYXRlLCBn
emlwQAp1c2VyLWFnZW50LWdycGMtYysrLzEuNDguMCBncnBjLWMvMjYuMC4wIChsaW51eDsgY2h0dHAyKQAABAgAAA
AAAQAAAAUAAA0AAQAAAAEAAAAACAoGZG91YmxlAAAECAAAAAAAAAAABQAACAYAAAAAAAAAAAAAAAAAAAA6AQQAAAAD
QAU6cGF0aCsvaW5mZXJlbmNlLkdSUENJbmZlcmVuY2VTZXJ2aWNlL01vZGVsQ29uZmlnw4OGwsHAvwAABAgAAAAAAw
AAAAUAAA0AAQAAAAMAAAAACAoGZG91YmxlAAAECAAAAAAAAAAATwAAPQEEAAAABUAFOnBhdGguL2luZmVyZW5jZS5H
UlBDSW5mZXJlbmNlU2VydmljZS9TZXJ2ZXJNZXRhZGF0YcSDhsPCwcAAAAQIAAAAAAUAAAAFAAAFAAEAAAAFAAAAAA
AAAAQIAAAAAAAAAABhAAA+AQQAAAAHQAU6cGF0aC8vaW5mZXJlbmNlLkdSUENJbmZlcmVuY2VTZXJ2aWNlL01vZGVs
U3RhdGlzdGljc8WDhsTDwsEAAAQIAAAAAAcAAAAFAAANAAEAAAAHAAAAAAgKBmRvdWJsZQAABAgAAAAAAAAAALgAAD
kBBAAAAAlABTpwYXRoKi9pbmZlcmVuY2UuR1JQQ0luZmVyZW5jZVNlcnZpY2UvTW9kZWxJbmZlcsaDhsXEw8IAAAQI
AAAAAAkAAAAFAABjAAEAAAAJAAAAAF4KBmRvdWJsZSIoCiJ0cml0b25fZW5hYmxlX2VtcHR5X2ZpbmFsX3Jlc3Bvbn
NlEgIIASoOCgF4EgVJTlQzMhoCAQQyCAoGb3V0cHV0OhBnxmlzUf9K7CnNuqvy++NG
"""

#: `perf_analyzer -m count -i grpc --streaming`
STREAMED = """
UFJJICogSFRUUC8yLjANCg0KU00NCg0KAAAkBAAAAAAAAAIAAAAAAAMAAAAAAAQAP///AAUAP///AAYAACAA/gMAAA
ABAAAABAEAAAAAAADnAQQAAAABQAU6cGF0aC0vaW5mZXJlbmNlLkdSUENJbmZlcmVuY2VTZXJ2aWNlL01vZGVsTWV0
YWRhdGFACjphdXRob3JpdHkPMTI3LjAuMC4xOjE4NDAyg4ZADGNvbnRlbnQtdHlwZRBhcHBsaWNhdGlvbi9ncnBjQA
J0ZQh0cmFpbGVyc0AUZ3JwYy1hY2NlcHQtZW5jb2RpbmcXaWRlbnRpdHksIGRlZmxhdGUsIGd6aXBACnVzZXItYWdl
bnQtZ3JwYy1jKysvMS40OC4wIGdycGMtYy8yNi4wLjAgKGxpbnV4OyBjaHR0cDIpAAAECAAAAAABAAAABQAADAABAA
AAAQAAAAAHCgVjb3VudAAABAgAAAAAAAA/AAUAADoBBAAAAANABTpwYXRoKy9pbmZlcmVuY2UuR1JQQ0luZmVyZW5j
ZVNlcnZpY2UvTW9kZWxDb25maWfDg4bCwcC/AAAECAAAAAADAAAABQAADAABAAAAAwAAAAAHCgVjb3VudAAABAgAAA
AAAAAAAE4AAAgGAAAAAAAAAAAAAAAAAAAAPQEEAAAABUAFOnBhdGguL2luZmVyZW5jZS5HUlBDSW5mZXJlbmNlU2Vy
dmljZS9TZXJ2ZXJNZXRhZGF0YcSDhsPCwcAAAAQIAAAAAAUAAAAFAAAFAAEAAAAFAAAAAAAAAAQIAAAAAAAAAABUAA
A+AQQAAAAHQAU6cGF0aC8vaW5mZXJlbmNlLkdSUENJbmZlcmVuY2VTZXJ2aWNlL01vZGVsU3RhdGlzdGljc8WDhsTD
wsEAAAQIAAAAAAcAAAAFAAAMAAEAAAAHAAAAAAcKBWNvdW50AAAECAAAAAAAAAAAuAAAPwEEAAAACUAFOnBhdGgwL2
luZmVyZW5jZS5HUlBDSW5mZXJlbmNlU2VydmljZS9Nb2RlbFN0cmVhbUluZmVyxoOGxcTDwgAAWQAAAAAACQAAAABU
CgVjb3VudBoBMCIoCiJ0cml0b25fZW5hYmxlX2VtcHR5X2ZpbmFsX3Jlc3BvbnNlEgIIASoOCgFuEgVJTlQzMhoCAQ
EyCAoGb3V0cHV0OgRnxmlz
"""


@wherry.model(max_batch_size=8)
def double(x: Annotated[np.ndarray, wherry.INT32[4]]) -> Annotated[np.ndarray, wherry.INT32[4]]:
    return x * 2


@wherry.model
def count(
    n: Annotated[np.ndarray, wherry.INT32[1]],
) -> Iterator[Annotated[np.ndarray, wherry.INT32[1]]]:
    yield n
    yield n + 1


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    with local_server(double, count, grpc_port=0) as server:
        host, _, port = server.grpc_url.rpartition(":")
        yield host, int(port)


def answers(address: tuple[str, int], recorded: str, wanted: int) -> dict[int, list[bytes]]:
    """The messages of each stream, once stream 9 has `wanted` of them."""
    data: dict[int, bytes] = {}
    with (
        socket.create_connection(address, timeout=TIMEOUT) as client,
        client.makefile("rb") as got,
    ):
        client.sendall(base64.b64decode(recorded))
        while len(messages_in(data.get(9, b""))) < wanted:
            frame, length = Frame.parse_frame_header(memoryview(got.read(9)))
            frame.parse_body(memoryview(got.read(length)))
            if isinstance(frame, DataFrame):
                data[frame.stream_id] = data.get(frame.stream_id, b"") + frame.data
    return {stream: messages_in(found) for stream, found in data.items()}


def response(method: str, message: bytes) -> Values:
    return METHODS[f"/inference.GRPCInferenceService/{method}"].response.decode(message)


def test_the_recorded_call_of_model_infer_is_answered(address: tuple[str, int]) -> None:
    found = answers(address, UNARY, 1)
    assert set(found) == {1, 3, 5, 7, 9}
    assert response("ModelMetadata", found[1][0])["name"] == "double"
    assert response("ModelConfig", found[3][0])["config"]["name"] == "double"
    assert response("ModelStatistics", found[7][0])["model_stats"][0]["name"] == "double"
    (answer,) = found[9]
    (raw,) = response("ModelInfer", answer)["raw_output_contents"]
    assert np.frombuffer(raw, np.int32).tolist() == (NUMBERS * 2).tolist()


def test_the_recorded_stream_of_a_model_that_streams_is_told_of_its_end(
    address: tuple[str, int],
) -> None:
    said = [
        response("ModelStreamInfer", message)["infer_response"]
        for message in answers(address, STREAMED, 3)[9]
    ]
    finals = [one["parameters"]["triton_final_response"]["bool_param"] for one in said]
    assert finals == [False, False, True]
    values = [
        np.frombuffer(raw, np.int32)[0] for one in said[:2] for raw in one["raw_output_contents"]
    ]
    assert values == [NUMBERS[0], NUMBERS[0] + 1]
    assert "raw_output_contents" not in said[2]
    assert [one["id"] for one in said] == ["0", "0", "0"]
