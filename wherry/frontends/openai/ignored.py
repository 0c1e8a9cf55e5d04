"""How does a client learn which fields of its request were ignored?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wherry.frontends.http.exchange import JSON, Body, Exchange, Headers, PassedOn
from wherry.frontends.openai.fields.decoding import header_of

HEADER: Final = "X-Wherry-Ignored"


def told(exchange: Exchange, ignored: Sequence[str]) -> Exchange:
    """The exchange, whose answer names these fields in a header."""
    return _Noting(exchange, header_of(ignored))


class _Noting(PassedOn):
    __slots__ = ("_ignored",)

    def __init__(self, inner: Exchange, ignored: str) -> None:
        super().__init__(inner)
        self._ignored = (HEADER, ignored)

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        super().respond(status, body, content_type=content_type, headers=(*headers, self._ignored))

    def start(self, status: int, *, content_type: str = JSON, headers: Headers = ()) -> None:
        super().start(status, content_type=content_type, headers=(*headers, self._ignored))
