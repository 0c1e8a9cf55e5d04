"""What does a file cost on its way to a model: as a raw body, in a form, in base64?

    python -m benchmarks.files [--json benchmarks/results/files.json]

A server with its model in a process is asked for the length of a file of 600 KB, by one caller, in
turns over the ways; each is compared with the same bytes as a binary V2 tensor, round by round.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import statistics
import struct
from collections.abc import Mapping
from typing import Any

from benchmarks.harness import ROOT, arguments, cpu_seconds, report
from wherry.testing.servers import ServerProcess

SIZE = 600_000
ROUNDS = 15
REQUESTS = 60
BASE = "binary tensor"
BOUNDARY = "----WebKitFormBoundaryM2Vb8Y"


def requests(data: bytes) -> Mapping[str, bytes]:
    """The whole requests, head and body, by the name of the way."""
    binary = struct.pack("<I", len(data)) + data
    tensor = {
        "name": "image", "datatype": "BYTES", "shape": [1],
        "parameters": {"binary_data_size": len(binary)},
    }  # fmt: skip
    head = json.dumps({"inputs": [tensor]}).encode()
    form = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="cat.jpg"\r\n'
        "Content-Type: image/jpeg\r\n\r\n"
    ).encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()  # fmt: skip
    text = json.dumps({"image": {"b64": base64.b64encode(data).decode()}}).encode()
    multipart, image = f"multipart/form-data; boundary={BOUNDARY}", "image/jpeg"
    generate = "/v2/models/size/generate"
    length = {"Inference-Header-Content-Length": str(len(head))}
    return {
        BASE: _post("/v2/models/size/infer", head + binary, "application/octet-stream", length),
        "raw body": _post(generate, data, image),
        "raw body, own route": _post("/size", data, image),
        "multipart": _post(generate, form, multipart),
        "multipart, own route": _post("/size", form, multipart),
        "base64": _post(generate, text, "application/json"),
        "base64, own route": _post("/size", text, "application/json"),
    }


def _post(path: str, body: bytes, kind: str, more: Mapping[str, str] | None = None) -> bytes:
    head = {
        "Host": "localhost",
        "Content-Type": kind,
        "Content-Length": str(len(body)),
        **(more or {}),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def ask(connection: socket.socket, request: bytes) -> None:
    connection.sendall(request)
    answer = b""
    while b"\r\n\r\n" not in answer or not answer.endswith((b"}", b"0")):
        more = connection.recv(2**16)
        if not more:
            raise SystemExit(f"the server closed the connection: {answer!r}")
        answer += more
    if not answer.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"the server refused: {answer!r}")


def measure(size: int, rounds: int) -> dict[str, list[float]]:
    """CPU us of the server's tree for a request, by way and round."""
    ways = requests(os.urandom(size))
    seen: dict[str, list[float]] = {name: [] for name in ways}
    with ServerProcess("benchmarks/models.py:size", cwd=str(ROOT)) as server:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for round_ in range(rounds + 1):
                for name, request in ways.items():
                    before = cpu_seconds(server.pid)
                    for _ in range(REQUESTS):
                        ask(connection, request)
                    if round_:  # the first warms up
                        used = cpu_seconds(server.pid) - before
                        seen[name].append(used / REQUESTS * 1e6)
    return seen


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--size", type=int, default=SIZE, help="bytes of the file")
    parser.set_defaults(rounds=ROUNDS)
    options = parser.parse_args()
    seen = measure(options.size, options.rounds)
    rows: list[dict[str, Any]] = []
    for name, used in seen.items():
        ratios = [mine / base for mine, base in zip(used, seen[BASE], strict=True)]
        rows.append(
            {
                "what": name,
                "cpu_us": round(statistics.median(used)),
                "of_binary": round(statistics.median(ratios), 2),
                "lowest": round(min(ratios), 2),
                "highest": round(max(ratios), 2),
            }
        )
    report(f"A file of {options.size} bytes", rows, options.json)


if __name__ == "__main__":
    main()
