"""How does a client learn its request's id, and which fields of it were ignored?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wherry.frontends.http.answers import given_request_id, request_id_of
from wherry.frontends.http.exchange import JSON, Body, Exchange, Headers, PassedOn
from wherry.frontends.openai.fields.decoding import header_of

HEADER: Final = "X-Wherry-Ignored"
ID: Final = "X-Request-Id"


def told(exchange: Exchange, ignored: Sequence[str], ids: Sequence[str] = (ID,)) -> Exchange:
    """The exchange, whose answer has these fields in a header, and the request's id in others:
    clients hand it to their callers."""
    headers = [(HEADER, header_of(ignored))] if ignored else []
    if given_request_id(exchange.request.headers):  # which comes back by itself in the first
        ids = ids[1:]
    return _Noting(exchange, headers, ids) if headers or ids else exchange


class _Noting(PassedOn):
    __slots__ = ("_ids", "_own")

    def __init__(self, inner: Exchange, own: Headers, ids: Sequence[str]) -> None:
        super().__init__(inner)
        self._own = own
        self._ids = ids

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        super().respond(status, body, content_type=content_type, headers=self._with(headers))

    def start(self, status: int, *, content_type: str = JSON, headers: Headers = ()) -> None:
        super().start(status, content_type=content_type, headers=self._with(headers))

    def _with(self, headers: Headers) -> Headers:
        """These headers and the own ones; an error has its id already."""
        names = {name for name, _ in headers}
        ids = [(name, request_id_of(self)) for name in self._ids]
        return (*headers, *(own for own in (*self._own, *ids) if own[0] not in names))
