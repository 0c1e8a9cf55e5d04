"""How do pages of other sites that may call read the answers?

`server/access/origins.py` decides which pages may. A server that allows none does not run this
code.
"""

from __future__ import annotations

from wherry.server.access.origins import Origins
from wherry.server.http.answers import respond
from wherry.server.http.exchange import Application, Exchange, WithHeaders


class Cors:
    """Adds CORS headers to the answers of an application, refusals included.

    Answers a browser's preflight request itself, without a key: browsers send none with it.
    """

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
        headers = self._origins.answer_headers(request.headers)
        self._application(WithHeaders(exchange, lambda: headers))
