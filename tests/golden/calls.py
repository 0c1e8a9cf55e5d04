"""How is a recorded request sent to a server, and what of its answer is kept?

Everything is JSON: a request is what goes over the wire, an answer is what a client can see.
"""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import time
import zlib
from typing import Any, NamedTuple

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc

#: Seconds to wait for what must come: longer only if it fails.
TIMEOUT = 60.0

Request = dict[str, Any]
Answer = dict[str, Any]


class Address(NamedTuple):
    """Where a server listens."""

    http: str
    grpc: str


def send(address: Address, request: Request) -> Answer:
    if "after_unload_of" in request:
        wait_for_unload(address, request["after_unload_of"])
    return send_http(address, request) if "http" in request else send_grpc(address, request)


def wait_for_unload(address: Address, model: str) -> None:
    """An unload is answered at once and takes its time."""
    gives_up_at = time.monotonic() + TIMEOUT
    while time.monotonic() < gives_up_at:
        index = send_http(address, {"http": "POST /v2/repository/index"})["json"]
        if any(m["name"] == model and m.get("state") == "UNAVAILABLE" for m in index):
            return
        time.sleep(0.025)
    raise TimeoutError(f"model {model!r} is still not unloaded")


def send_http(address: Address, request: Request) -> Answer:
    method, path = request["http"].split(" ", 1)
    connection = http.client.HTTPConnection(address.http, timeout=TIMEOUT)
    try:
        connection.request(method, path, http_body(request), request.get("headers", {}))
        response = connection.getresponse()
        return http_answer(response, response.read())
    finally:
        connection.close()


def http_body(request: Request) -> bytes | None:
    """The JSON, or the text as it is; then the tensors, each in hex; all of it compressed."""
    body: bytes
    if "text" in request:
        body = request["text"].encode()
    elif "json" in request:
        body = json.dumps(request["json"]).encode()
    elif "tensors" in request:
        body = b""
    else:
        return None
    body += b"".join(bytes.fromhex(tensor) for tensor in request.get("tensors", ()))
    coding: str | None = request.get("headers", {}).get("Content-Encoding")
    match coding:
        case "gzip":
            return bytes(gzip.compress(body))
        case "deflate":
            return bytes(zlib.compress(body))
    return bytes(body)


def http_answer(response: http.client.HTTPResponse, body: bytes) -> Answer:
    names = ("Content-Type", "Content-Encoding", "Accept-Encoding")
    headers = {name: response.headers[name] for name in names if name in response.headers}
    answer: Answer = {"status": response.status, "headers": headers}
    coding = headers.get("Content-Encoding")
    if coding is not None:
        body = gzip.decompress(body) if coding == "gzip" else zlib.decompress(body)
    if "Inference-Header-Content-Length" in response.headers:
        length = int(response.headers["Inference-Header-Content-Length"])
        answer["json"] = json.loads(body[:length])
        take_tensors(answer["json"]["outputs"], body[length:])
    elif headers.get("Content-Type", "").startswith("text/event-stream"):
        events = body.decode().split("\n\n")
        answer["events"] = [json.loads(event.removeprefix("data: ")) for event in events if event]
    elif body:
        try:
            answer["json"] = json.loads(body)
        except ValueError:
            answer["text"] = body.decode()
    return answer


def take_tensors(outputs: list[dict[str, Any]], body: bytes) -> None:
    """Each output gets its own bytes, in hex: the order of outputs says nothing to a client."""
    start = 0
    for output in outputs:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is not None:
            output["binary"] = body[start : start + size].hex()
            start += size
    assert start == len(body), f"{len(body) - start} bytes too many"


def send_grpc(address: Address, request: Request) -> Answer:
    """`messages`: one, or all of a stream; `raw`: bytes that need not be a message."""
    method = request["grpc"]
    with grpc.insecure_channel(address.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            if "raw" in request:
                path = f"/inference.GRPCInferenceService/{method}"
                answer = channel.unary_unary(path)(
                    base64.b64decode(request["raw"]), timeout=TIMEOUT
                )
                return {"code": "OK", "raw": base64.b64encode(answer).decode()}
            messages = [parsed(method, message) for message in request["messages"]]
            if method == "ModelStreamInfer":
                answers = list(stub.ModelStreamInfer(iter(messages), timeout=TIMEOUT))
            else:
                answers = [getattr(stub, method)(messages[0], timeout=TIMEOUT)]
        except grpc.RpcError as e:
            return {"code": e.code().name, "error": e.details()}
    whole = method == "ModelStatistics"
    return {"code": "OK", "messages": [plain(answer, whole) for answer in answers]}


def parsed(method: str, message: dict[str, Any]) -> Any:
    name = "ModelInferRequest" if method == "ModelStreamInfer" else f"{method}Request"
    return json_format.ParseDict(message, getattr(service_pb2, name)())


def plain(message: Any, whole: bool) -> Any:
    """`whole`: with the fields that are 0."""
    made = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=whole
    )
    response = made.get("infer_response", made)
    contents = response.pop("raw_output_contents", [])
    for output, content in zip(response.get("outputs", []), contents, strict=False):
        output["binary"] = content
    return made
