"""What does the head of a call ask for, and what do the head and the end of an answer say?

gRPC's meaning of HTTP/2's headers; nothing here knows of streams.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from wherry.frontends.grpc.frames import PROTOCOL_ERROR, StreamFault
from wherry.frontends.grpc.hpack import Header, literal
from wherry.frontends.grpc.rpc import Metadata

CODES: Final = {
    name: number
    for number, name in enumerate(
        (
            "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
            "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
            "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
            "UNAUTHENTICATED",
        )
    )
}  # fmt: skip

CODINGS: Final = ("identity", "deflate", "gzip")
"""How messages may be compressed, received ones and sent ones."""

_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_NAME: Final = re.compile(rb"[0-9a-z!#$%&'*+.^_`|~-]+")  # in lower case: RFC 9113, 8.2.1
_BAD_IN_VALUE: Final = re.compile(rb"[\0\r\n]")
_UNSAFE: Final = re.compile(rb"[^ -$&-~]")
_OF_THE_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_OWN: Final = frozenset({b"te", b"content-type", b"content-length", b"host"})

_STATUS_200: Final = b"\x88"  # in HPACK's static table
_GRPC: Final = literal(b"content-type", b"application/grpc")
_ACCEPTED: Final = literal(b"grpc-accept-encoding", ",".join(CODINGS).encode())


class Refusal(Exception):
    """A call is answered without the application; `block` is the whole answer."""

    def __init__(self, block: bytes) -> None:
        super().__init__()
        self.block = block


class Head:
    """The head of a call; equal ones may share it."""

    __slots__ = ("accepted", "coding", "metadata", "path", "timeout")

    def __init__(self, headers: Sequence[Header]) -> None:
        """StreamFault if this is no HTTP request, Refusal if it is no gRPC call to be served."""
        pseudo, fields = _sorted(headers)
        if not {b":method", b":scheme", b":path"} <= pseudo.keys():
            raise StreamFault(PROTOCOL_ERROR, "a request without :method, :scheme or :path")
        if pseudo[b":method"] != b"POST":
            raise Refusal(_http_status(b"405"))
        kind = fields.get(b"content-type", b"").lower()
        if kind[:16] != b"application/grpc" or kind[16:17] not in (b"", b"+", b";"):
            raise Refusal(_http_status(b"415"))
        self.path = pseudo[b":path"].decode("latin-1")
        #: How messages of the client are compressed whose flag says that they are.
        self.coding = fields.get(b"grpc-encoding", b"identity").decode("latin-1")
        if self.coding not in CODINGS:
            raise refusal("UNIMPLEMENTED", f"grpc-encoding {self.coding!r} is not known here")
        self.accepted = fields.get(b"grpc-accept-encoding", b"").decode("latin-1")
        self.timeout = _timeout(fields.get(b"grpc-timeout"))
        self.metadata = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in fields.items()
            if name not in _OWN and not name.startswith(b"grpc-") and not name.endswith(b"-bin")
        }

    def __repr__(self) -> str:
        return f"<Head {self.path}>"

    def best_coding(self, wanted: str) -> str:
        """`wanted` if the client takes it, else "identity"."""
        return wanted if wanted in self.accepted.replace(" ", "").split(",") else "identity"


def _sorted(headers: Sequence[Header]) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """The pseudo-headers and the others, of which repeated ones are joined."""
    pseudo: dict[bytes, bytes] = {}
    fields: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        if name[:1] == b":":
            if name in pseudo or name not in _PSEUDO or fields:
                raise StreamFault(PROTOCOL_ERROR, "a pseudo-header out of place")
            pseudo[name] = value
        elif name in fields and name != b"te":
            fields[name].append(value)
        elif not _NAME.fullmatch(name) or name in _OF_THE_CONNECTION:
            raise StreamFault(PROTOCOL_ERROR, "a header that HTTP/2 does not have")
        elif name == b"te" and value != b"trailers":
            raise StreamFault(PROTOCOL_ERROR, "te is not trailers")
        else:
            fields[name] = [value]
        if _BAD_IN_VALUE.search(value):
            raise StreamFault(PROTOCOL_ERROR, "a header with a line break or NUL")
    return pseudo, {name: b", ".join(values) for name, values in fields.items()}


def _timeout(text: bytes | None) -> float | None:
    if text is None:
        return None
    match = _TIMEOUT.fullmatch(text.decode("latin-1"))
    if match is None:
        raise refusal("INTERNAL", "grpc-timeout is not a number of up to 8 digits and a unit")
    return int(match[1]) * _UNITS[match[2]]


def answer_head(coding: str) -> bytes:
    """The header block in front of an answer's messages."""
    if coding == "identity":
        return _STATUS_200 + _GRPC
    return _STATUS_200 + _GRPC + literal(b"grpc-encoding", coding.encode())


def trailers(code: str, text: str = "", metadata: Metadata = ()) -> bytes:
    """The header block that ends a call."""
    block = literal(b"grpc-status", b"%d" % CODES[code])
    if text:
        block += literal(b"grpc-message", percent_encoded(text))
    for name, value in metadata:
        block += literal(name.encode(), value.encode())
    return block


def trailers_only(block: bytes) -> bytes:
    """The only header block of an answer without messages."""
    return _STATUS_200 + _GRPC + block


def refusal(code: str, text: str) -> Refusal:
    return Refusal(trailers_only(_ACCEPTED + trailers(code, text)))


def percent_encoded(text: str) -> bytes:
    data = text.encode(errors="replace")
    return _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], data)


def _http_status(status: bytes) -> bytes:
    return literal(b":status", status)
