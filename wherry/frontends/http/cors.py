"""How do pages of other sites, where they may call, get to read the answers?

Which pages may is `frontends/origins.py`'s; a server that lets none in has nothing of this on a
request's way.
"""

from __future__ import annotations

from collections.abc import Sequence

from wherry.frontends.http.answers import respond
from wherry.frontends.http.exchange import Application, Buffer, Exchange, PassedOn
from wherry.frontends.origins import Headers, Origins


class Cors:
    """An application whose answers, refusals too, carry CORS headers. It answers a browser's
    question whether it may call itself, without a key, as browsers ask without one."""

    def __init__(self, application: Application, origins: Origins) -> None:
        self._application = application
        self._origins = origins

    def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        if "origin" not in request.headers:
            self._application(exchange)
            return
        answer = self._origins.preflight(request.method, request.headers)
        if answer is not None:
            respond(exchange, b"", status=204, headers=answer)
            return
        self._application(_CorsExchange(exchange, self._origins.answer_headers(request.headers)))


class _CorsExchange(PassedOn):
    __slots__ = ("_headers",)

    def __init__(self, inner: Exchange, headers: Headers) -> None:
        super().__init__(inner)
        self._headers = headers

    def respond(
        self,
        status: int,
        body: bytes | Sequence[Buffer] = b"",
        *,
        content_type: str = "application/json",
        headers: Headers = (),
    ) -> None:
        headers = (*headers, *self._headers)
        self._inner.respond(status, body, content_type=content_type, headers=headers)

    def start(
        self, status: int, *, content_type: str = "application/json", headers: Headers = ()
    ) -> None:
        headers = (*headers, *self._headers)
        self._inner.start(status, content_type=content_type, headers=headers)
