"""How does a client learn its request's id, and which fields of it were ignored?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wherry.frontends.http.answers import given_request_id, new_request_id
from wherry.frontends.http.exchange import JSON, Body, Exchange, Headers, PassedOn
from wherry.frontends.openai.fields.decoding import header_of

HEADER: Final = "X-Wherry-Ignored"
ID: Final = "X-Request-Id"


def told(exchange: Exchange, ignored: Sequence[str]) -> Exchange:
    """The exchange, whose answer has these fields in a header, and an id in another: OpenAI's
    clients hand it to their callers."""
    headers = [(HEADER, header_of(ignored))] if ignored else []
    if not given_request_id(exchange.request.headers):  # which comes back by itself
        headers.append((ID, new_request_id()))
    return _Noting(exchange, headers) if headers else exchange


class _Noting(PassedOn):
    __slots__ = ("_own",)

    def __init__(self, inner: Exchange, own: Headers) -> None:
        super().__init__(inner)
        self._own = own

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        super().respond(status, body, content_type=content_type, headers=self._with(headers))

    def start(self, status: int, *, content_type: str = JSON, headers: Headers = ()) -> None:
        super().start(status, content_type=content_type, headers=self._with(headers))

    def _with(self, headers: Headers) -> Headers:
        """These headers and the own ones; an error has its id already."""
        names = {name for name, _ in headers}
        return (*headers, *(own for own in self._own if own[0] not in names))
