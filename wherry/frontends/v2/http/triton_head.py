"""How does Triton read the head of a request? For `--triton-strict`.

Paths are not decoded, codings are known in small letters only, and a body's coding is looked at
where it is an infer or generate request (http_server.cc). Pure.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from wherry.frontends.compression import best_coding
from wherry.frontends.http.exchange import RequestHead

#: The codings of a body that Triton knows, as they are written.
CODINGS: Final = frozenset(("identity", "gzip", "deflate"))
_UNKNOWN: Final = "unknown"
_INFERS: Final = re.compile(r"/v2/models/[^/]+(/versions/\d+)?/(infer|generate|generate_stream)")
#: What C++'s stod reads of a weight.
_WEIGHT: Final = re.compile(r"\s*([+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)")


def head_as_triton_reads_it(head: RequestHead) -> RequestHead:
    """The same head where both read the same."""
    headers = head.headers
    changed: dict[str, str] = {}
    if "accept-encoding" in headers:
        accepted = accepted_coding(headers["accept-encoding"])
        if accepted != (best_coding(headers["accept-encoding"]) or "identity"):
            changed["accept-encoding"] = accepted
    path = head.sent_path if head.sent_path.startswith("/v2/") else head.path
    if (
        "content-encoding" in headers
        and path.startswith("/v2/")
        and _INFERS.fullmatch(path) is None
    ):
        head = without_coding(head)
        headers = head.headers
    if headers.get("content-encoding", "identity") not in CODINGS:
        changed["content-encoding"] = _UNKNOWN
    if not changed and path == head.path:
        return head
    read = msgspec.structs.replace(head, path=path, headers={**headers, **changed})
    read.route = read.notes = None
    return read


def without_coding(head: RequestHead) -> RequestHead:
    """The head of a request whose body was unpacked, or is taken as it is."""
    if "content-encoding" not in head.headers:
        return head
    headers = {name: value for name, value in head.headers.items() if name != "content-encoding"}
    read = msgspec.structs.replace(head, headers=headers)
    read.route = read.notes = None
    return read


def accepted_coding(header: str) -> str:
    """The coding that Triton answers in: of an Accept-Encoding the first of the largest weight."""
    best, most = "identity", 0.0
    for part in header.split(","):
        coding, weighted, given = part.lstrip(" ").partition(";q=")
        found = _WEIGHT.match(given)
        weight = float(found[1]) if found else 0.0 if weighted else 1.0
        if coding in CODINGS and weight > most:
            best, most = coding, weight
    return best
