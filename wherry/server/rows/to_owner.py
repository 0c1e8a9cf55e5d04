"""How is a client's HTTP request put to an owner, and what if there is none?"""

from __future__ import annotations

from wherry.core.api import LoadReport
from wherry.server.calls.header_names import as_sent
from wherry.server.http.exchange import SOON, Exchange
from wherry.server.remote.link import OwnerLink
from wherry.server.remote.link_protocol import Ask


def load_of(link: OwnerLink | None) -> LoadReport | None:
    """How busy an owner is, if there is one and it has said so."""
    return None if link is None else link.load_report()


def ask_of(exchange: Exchange, id: int) -> Ask:
    """The request of this exchange, as an owner is asked it."""
    request, head = exchange.request, exchange.request.head
    headers = {as_sent(name): value for name, value in head.headers.items()}
    body = bytes(request.body)
    return Ask(id, head.method, head.path, head.query, headers, body, request.peer)


def no_owner(exchange: Exchange) -> None:
    """Answer that there is none at the moment."""
    why = "the process that owns the models is gone; retry later"
    exchange.respond(503, exchange.refusal(503, why), headers=[SOON])
