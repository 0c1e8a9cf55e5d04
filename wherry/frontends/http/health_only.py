"""What may a connection beyond the limit ask?"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, cast

from wherry.frontends.http.exchange import Application, Exchange, error_body


class LastExchange(Protocol):
    def be_the_last(self) -> None: ...


class HealthOnly:
    """An application that answers the `vital` paths of another one, and refuses all others.

    Each answer is the last one of its connection.
    """

    def __init__(
        self, application: Application, vital: Collection[str], max_connections: int
    ) -> None:
        self._application = application
        self._vital = frozenset(vital)
        self._max_connections = max_connections

    def __call__(self, exchange: Exchange) -> None:
        cast(LastExchange, exchange).be_the_last()
        if exchange.request.path in self._vital:
            self._application(exchange)
            return
        message = (
            f"the server has its limit of {self._max_connections} connections, and none of them is"
            " idle; retry later, or raise max_connections"
        )
        exchange.respond(503, error_body(message), headers=[("Retry-After", "1")])
