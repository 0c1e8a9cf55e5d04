"""How does Triton read the head of a request? For `--triton-strict`.

Paths are not decoded, and codings are known in small letters only (http_server.cc). Pure.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wherry.frontends.http.exchange import RequestHead

#: The codings of a body that Triton knows, as they are written.
CODINGS: Final = frozenset(("", "identity", "gzip", "deflate"))
_UNKNOWN: Final = "unknown"


def head_as_triton_reads_it(head: RequestHead) -> RequestHead:
    """The same head where both read the same."""
    headers = head.headers
    changed: dict[str, str] = {}
    if "accept-encoding" in headers:
        accepted = _accepted(headers["accept-encoding"])
        if accepted != headers["accept-encoding"]:
            changed["accept-encoding"] = accepted
    if headers.get("content-encoding", "") not in CODINGS:
        changed["content-encoding"] = _UNKNOWN
    path = head.sent_path if head.sent_path.startswith("/v2/") else head.path
    if not changed and path == head.path:
        return head
    read = msgspec.structs.replace(head, path=path, headers={**headers, **changed})
    read.route = read.notes = None
    return read


def without_coding(head: RequestHead) -> RequestHead:
    """The head of a request whose body was unpacked."""
    headers = {name: value for name, value in head.headers.items() if name != "content-encoding"}
    read = msgspec.structs.replace(head, headers=headers)
    read.route = read.notes = None
    return read


def _accepted(header: str) -> str:
    """The parts of an Accept-Encoding that Triton knows."""
    parts = header.split(",")
    known = [part for part in parts if part.partition(";")[0].strip() in CODINGS]
    return header if known == parts else ",".join(known) or "identity"
