"""How do responses become lines of JSON (application/x-ndjson), no faster than a client reads?"""

from __future__ import annotations

from typing import Final

from wherry.server.http.sse import EventStream

CONTENT_TYPE: Final = "application/x-ndjson"


class JsonLines(EventStream):
    """One streamed answer of one line for each response. A line is an object with `error` if the
    stream fails. It has no comments: it is silent while the model is."""

    content_type = CONTENT_TYPE

    def keep_alive(self) -> None:
        """Do nothing: a line must be a value."""

    def framed(self, data: bytes, name: str = "") -> bytes:
        return data + b"\n"
