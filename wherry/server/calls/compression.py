"""How are bodies compressed and decompressed (gzip and deflate), as the headers specify?"""

from __future__ import annotations

import zlib
from typing import Final

from wherry.core.api import Buffer, InvalidRequest, RequestTooLarge, Unsupported
from wherry.server.calls.offload import SLICE_BYTES, give_way, join_in_slices

GZIP: Final = 16 + zlib.MAX_WBITS
ZLIB: Final = zlib.MAX_WBITS
RAW: Final = -zlib.MAX_WBITS

#: Below, the head of an answer costs as much as its body.
MIN_BYTES: Final = 1024
#: Bytes above which no answer is compressed: it takes longer than most networks save.
MAX_BYTES: Final = 2**20
#: Bytes above which the loop does not compress: other clients would wait for milliseconds.
MAX_BYTES_IN_LOOP: Final = 2**17
#: zlib's fastest: half the time of its default level for a tenth more bytes.
LEVEL: Final = 1
#: A gzip file may consist of several; empty ones cost time and count for no size.
MAX_MEMBERS: Final = 64
#: What a body may unpack to, in multiples of what came: text and numbers make ten. Beyond some 100
#: a client spends bytes, and the server 1,000 times as many.
MAX_RATIO: Final = 100
#: A body of at most this many bytes may unpack from any number.
ANY_RATIO_BYTES: Final = 2**20


class UnknownCoding(Unsupported):
    """The request has a Content-Encoding that this server does not know."""


def decompressed(body: Buffer, coding: str, max_bytes: int) -> Buffer:
    """Undo a Content-Encoding; RequestTooLarge beyond `max_bytes`, or MAX_RATIO times the bytes
    that came, without unpacking further."""
    name = coding.strip().lower()
    if name in ("gzip", "x-gzip"):
        return _inflated(body, GZIP, max_bytes)
    if name == "deflate":
        return _inflated(body, ZLIB if _has_zlib_head(body) else RAW, max_bytes)
    if name in ("", "identity"):
        return body
    raise UnknownCoding(
        "Unsupported compression type",
        more=f" '{coding}'; a Content-Encoding is gzip, deflate or identity",
    )


def compressed(body: Buffer, coding: str) -> bytes:
    packer = zlib.compressobj(LEVEL, wbits=GZIP if coding == "gzip" else ZLIB)
    return packer.compress(body) + packer.flush()


def best_coding(accept_encoding: str) -> str | None:
    """Return the supported coding that the client prefers; None: send the body uncompressed."""
    weights = dict(_weighted(part) for part in accept_encoding.lower().split(",") if part.strip())
    any_other = weights.get("*", 0.0)
    best, best_weight = None, weights.get("identity", 0.0)
    for coding in ("gzip", "deflate"):
        weight = weights.get(coding, any_other)
        if weight > best_weight or (weight == best_weight and weight > 0 and best is None):
            best, best_weight = coding, weight
    return best


def _weighted(part: str) -> tuple[str, float]:
    coding, _, parameter = part.partition(";")
    name, _, value = parameter.partition("=")
    weight = 1.0
    if name.strip() == "q":
        try:
            weight = float(value)
        except ValueError:
            weight = 0.0
    return coding.strip(), weight


def _has_zlib_head(body: Buffer) -> bool:
    """Whether a "deflate" body has zlib's format, as it should; some clients send a raw stream."""
    head = bytes(body[:2])
    return len(head) == 2 and head[0] & 15 == 8 and int.from_bytes(head) % 31 == 0


def _inflated(body: Buffer, wbits: int, max_bytes: int) -> Buffer:
    pieces: list[bytes] = []
    size = members = position = 0
    view = memoryview(body)
    by_ratio = max(ANY_RATIO_BYTES, MAX_RATIO * len(view))
    max_bytes, limit = min(max_bytes, by_ratio), max_bytes
    unpacker = zlib.decompressobj(wbits)
    rest: Buffer = view[:SLICE_BYTES]
    try:
        while True:
            position += len(rest)
            while not unpacker.eof:
                most = min(SLICE_BYTES, max_bytes - size + 1)
                piece = unpacker.decompress(rest, most)
                rest = unpacker.unconsumed_tail
                size += len(piece)
                if size > max_bytes:
                    much = f"the body is larger than {max_bytes} bytes when unpacked"
                    if max_bytes < limit:
                        raise RequestTooLarge(
                            f"{much}, {MAX_RATIO} times those that came; send it uncompressed"
                        )
                    raise RequestTooLarge(f"{much}; send less at a time")
                pieces.append(piece)
                if not rest and len(piece) < most:
                    break  # it waits for more; a full piece may have others behind it
                give_way()
            if unpacker.eof:
                members += 1
                position -= len(unpacker.unused_data)
                if position == len(view):
                    return join_in_slices(pieces)
                if members == MAX_MEMBERS:
                    raise InvalidRequest(f"the compressed body has more than {MAX_MEMBERS} members")
                unpacker = zlib.decompressobj(wbits)
            elif position == len(view):
                raise InvalidRequest("the compressed body is incomplete")
            rest = view[position : position + SLICE_BYTES]
    except zlib.error as error:
        raise InvalidRequest(f"the compressed body cannot be unpacked: {error}") from None
