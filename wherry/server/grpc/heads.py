"""What do the header blocks of a call mean: the request's, the response's and the trailers?

gRPC's use of the headers of HTTP/2; streams are not known here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from wherry.server.grpc.frames import (
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    PROTOCOL_ERROR,
    ConnectionFault,
    StreamFault,
)
from wherry.server.grpc.hpack import (
    Header,
    HeaderBomb,
    HeaderDecoder,
    HpackError,
    header_bytes,
    literal,
)
from wherry.server.grpc.rpc import CallMetadata, Metadata
from wherry.server.grpc.work import HEADERS_A_FRAME, ClientWork

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

REMEMBERED_BYTES: Final = 2**14
"""Bytes of headers, decoded, up to which their heads are remembered."""

_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
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
    """Answers a call without the application: `block` is the only header block of the response."""

    def __init__(self, block: bytes) -> None:
        super().__init__()
        self.block = block


class Head:
    __slots__ = ("accepted", "coding", "content_length", "metadata", "path", "timeout")

    def __init__(self, headers: Sequence[Header]) -> None:
        """StreamFault if it is not an HTTP request, Refusal if it is not a gRPC call for us."""
        pseudo, fields = _sorted(headers)
        if not {b":method", b":scheme", b":path"} <= pseudo.keys():
            raise StreamFault(PROTOCOL_ERROR, "a request without :method, :scheme or :path")
        if not pseudo[b":path"]:
            raise StreamFault(PROTOCOL_ERROR, "an empty :path")
        if pseudo[b":method"] != b"POST":
            raise Refusal(_http_status(b"405"))
        length = _content_length(fields.get(b"content-length"))
        kind = fields.get(b"content-type", b"").lower()
        if kind[:16] != b"application/grpc" or kind[16:17] not in (b"", b"+", b";"):
            raise Refusal(_http_status(b"415"))
        self.path = pseudo[b":path"].decode("latin-1")
        self.content_length = length
        #: The compression of the client's messages that have the flag for it.
        self.coding = fields.get(b"grpc-encoding", b"identity").decode("latin-1")
        if self.coding not in CODINGS:
            raise refusal("UNIMPLEMENTED", f"grpc-encoding {self.coding!r} is not known here")
        self.accepted = fields.get(b"grpc-accept-encoding", b"").decode("latin-1")
        self.timeout = _timeout(fields.get(b"grpc-timeout"))
        self.metadata = CallMetadata(
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in fields.items()
            if name not in _OWN and not name.startswith(b"grpc-") and not name.endswith(b"-bin")
        )

    def best_coding(self, accept_encoding: str) -> str:
        takes = accept_encoding in self.accepted.replace(" ", "").split(",")
        return accept_encoding if takes else "identity"


class HeadReader:
    """Decodes the header blocks of one connection: each of them, in order.

    Most blocks of a client are equal, so their heads are remembered: while HPACK's table does not
    change, an equal block means equal headers. `max_bytes` bounds the decoded headers of one block,
    counted as MAX_HEADER_LIST_SIZE does.
    """

    __slots__ = ("_decoder", "_remembered_bytes", "_work", "max_bytes", "remembered")

    def __init__(self, work: ClientWork, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._work = work
        self._decoder = HeaderDecoder()
        self.remembered: dict[bytes, Head] = {}
        self._remembered_bytes = 0

    def head(self, block: bytes) -> Head:
        """Read the head of a call that is not remembered. Raises what `headers` and `Head` do."""
        version = self._decoder.version
        headers = self.headers(block)
        head = Head(headers)
        if version == self._decoder.version:
            size = header_bytes(headers)
            if self._remembered_bytes + size > REMEMBERED_BYTES:
                self._forget()
            if size <= REMEMBERED_BYTES:
                self.remembered[block] = head
                self._remembered_bytes += size
        return head

    def headers(self, block: bytes) -> list[Header]:
        """Decode a block. TooManyHeaders above `max_bytes`; ConnectionFault if it cannot be
        decoded, or is a bomb: no later block of the connection can be decoded then."""
        version = self._decoder.version
        try:
            headers = self._decoder.decode(block, self.max_bytes)
            self._work.done += len(headers) // HEADERS_A_FRAME
            return headers
        except HeaderBomb as error:
            raise ConnectionFault(ENHANCE_YOUR_CALM, str(error)) from None
        except HpackError as error:
            raise ConnectionFault(COMPRESSION_ERROR, str(error)) from None
        finally:
            if version != self._decoder.version:
                self._forget()

    def _forget(self) -> None:
        self.remembered.clear()
        self._remembered_bytes = 0


def _sorted(headers: Sequence[Header]) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
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


def _content_length(text: bytes | None) -> int | None:
    """A field that came twice is refused, too: a proxy that took the other one sees another end."""
    if text is None:
        return None
    if not _LENGTH.fullmatch(text):
        raise StreamFault(PROTOCOL_ERROR, "content-length is not one number of up to 18 digits")
    return int(text)


def _timeout(text: bytes | None) -> float | None:
    if text is None:
        return None
    match = _TIMEOUT.fullmatch(text.decode("latin-1"))
    if match is None:
        raise refusal("INTERNAL", "grpc-timeout is not a number of up to 8 digits and a unit")
    return int(match[1]) * _UNITS[match[2]]


def answer_head(coding: str) -> bytes:
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
    """The only header block of a response without messages."""
    return _STATUS_200 + _GRPC + block


def refusal(code: str, text: str, metadata: Metadata = ()) -> Refusal:
    return Refusal(trailers_only(_ACCEPTED + trailers(code, text, metadata)))


def percent_encoded(text: str) -> bytes:
    data = text.encode(errors="replace")
    return _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], data)


def _http_status(status: bytes) -> bytes:
    return literal(b":status", status)
