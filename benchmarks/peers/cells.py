"""What is measured: which model is asked, in which protocol, by how many callers?"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Protocol = Literal["json", "binary", "grpc"]
#: Models of app.py, or the model.py of the Triton repository in every server.
Family = Literal["function", "repository"]

GROUPS = ("hello", "v2", "big", "function", "device", "s3")


@dataclass(frozen=True)
class Cell:
    """One line of the table: callers that each ask again as soon as they are answered."""

    group: str
    family: Family
    model: str
    protocol: Protocol
    callers: int
    #: Requests/s that would keep the simulated device busy without a pause.
    ideal: float | None = None

    @property
    def name(self) -> str:
        """How the cell is selected: group/model/protocol/callers."""
        return f"{self.group}/{self.model}/{self.protocol}/{self.callers}"


@dataclass(frozen=True)
class Request:
    """The bytes of one request; `frame` is the gRPC message, with its five bytes before it."""

    body: bytes
    headers: dict[str, str]
    #: No good answer has fewer bytes of body.
    least_answer: int


def all_cells() -> list[Cell]:
    return [
        *(Cell("hello", "function", "single", "json", n) for n in (1, 10, 64)),
        *(
            Cell("v2", "repository", model, protocol, n)
            for model in ("alone", "echo")
            for protocol in _each("json", "binary", "grpc")
            for n in (1, 16, 64)
        ),
        *(
            Cell("big", "repository", "big", protocol, n)
            for protocol in _each("binary", "grpc")
            for n in (1, 16, 64)
        ),
        *(
            Cell("function", "function", model, "json", n)
            for model in ("single", "single_thread", "echo", "echo_thread")
            for n in (1, 16, 64)
        ),
        *(Cell("function", "function", "single", "grpc", n) for n in (1, 16, 64)),
        *(
            Cell("device", "function", "device", "json", n, ideal=_ideal(n))
            for n in (1, 4, 16, 64, 128)
        ),
        *(
            Cell("s3", "function", model, "json", n)
            for model in ("four", "four_thread")
            for n in (1, 2, 4, 10)
        ),
    ]


def _each(*protocols: Protocol) -> tuple[Protocol, ...]:
    return protocols


def _ideal(callers: int) -> float:
    rows = min(callers, 32)
    return rows / (0.005 + 0.0002 * rows)


def selected(patterns: str) -> list[Cell]:
    """The cells that begin with one of the names, or with a group's: "hello,v2/alone/json/16".

    SystemExit for a name that is of no cell.
    """
    cells = all_cells()
    taken = []
    for pattern in patterns.split(","):
        wanted = pattern.split("/")
        found = [cell for cell in cells if cell.name.split("/")[: len(wanted)] == wanted]
        if not found:
            names = "\n".join(cell.name for cell in cells)
            raise SystemExit(f"no cell is called {pattern}; there are\n{names}")
        taken += [cell for cell in found if cell not in taken]
    return taken


def request(cell: Cell, model: str, shape: list[int] | None = None) -> Request:
    """One request for `model`, the name that the server has for it.

    `shape` where the server wants another than wherry, for the same elements.
    """
    if cell.family == "function":
        tensor: dict[str, Any] = {"name": "text", "datatype": "BYTES", "shape": shape or [1]}
        text = b"hello"
        raw = struct.pack("<I", len(text)) + text
        data: list[Any] = [text.decode()]
    else:
        numbers = np.arange(150_000 if cell.model == "big" else 16, dtype=np.float32)
        shape = [1, numbers.size] if cell.model == "echo" else [numbers.size]
        tensor = {"name": "X", "datatype": "FP32", "shape": shape}
        raw = numbers.tobytes()
        data = numbers.tolist()
    if cell.protocol == "grpc":
        message = _grpc_message(model, tensor, raw)
        frame = b"\0" + struct.pack(">I", len(message)) + message
        return Request(frame, {"content-type": "application/grpc", "te": "trailers"}, len(raw))
    if cell.protocol == "json":
        body = json.dumps({"inputs": [{**tensor, "data": data}]}, separators=(",", ":")).encode()
        return Request(body, {"Content-Type": "application/json"}, len(data))
    tensor["parameters"] = {"binary_data_size": len(raw)}
    head = json.dumps({"parameters": {"binary_data_output": True}, "inputs": [tensor]}).encode()
    return Request(head + raw, {"Inference-Header-Content-Length": str(len(head))}, len(raw))


def _grpc_message(model: str, tensor: dict[str, Any], raw: bytes) -> bytes:
    """A ModelInferRequest, written here so that it is the same whatever tree is measured."""
    shape = b"".join(_varint(size) for size in tensor["shape"])
    described = _field(1, tensor["name"].encode()) + _field(2, tensor["datatype"].encode())
    described += _field(3, shape)
    return _field(1, model.encode()) + _field(5, described) + _field(7, raw)


def _field(number: int, value: bytes) -> bytes:
    """A field of protobuf's wire type 2: bytes, text, a message or packed numbers."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
