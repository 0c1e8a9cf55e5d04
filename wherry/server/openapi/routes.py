"""How does a client get the OpenAPI document?

It is made when it is first requested, in another thread, and again when other models are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlencode

from wherry.core.api import InvalidRequest
from wherry.server.access.api_keys import GROUPS, Restrictions
from wherry.server.calls.client_text import encode_json
from wherry.server.dashboard.routes import whole_page
from wherry.server.http.answers import respond
from wherry.server.http.exchange import Exchange, RequestHead
from wherry.server.http.route import ANY_TEXT, Operation, Route, returns
from wherry.server.v2.http.entry import HttpEntry


def docs_page(exchange: Exchange) -> None:
    """The handler of `/docs`. The page has nothing of the server before it has fetched it."""
    respond(exchange, PAGE.encode(), content_type="text/html; charset=utf-8", headers=HEADERS)


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


#: Read when the server is imported: its event loop must not read files.
PAGE, HEADERS = whole_page(_file("docs.html"), _file("docs.css"), _file("docs.js"))


#: The document's path.
OPENAPI: Final = "/openapi.json"
#: The path of the page that shows it.
DOCS: Final = "/docs"
#: Models that a request may name.
MAX_NAMES: Final = 16
#: Documents that are kept: that of all routes, that without the operators' own, and a few.
MAX_KEPT: Final = 4


DOCUMENT: Final = returns(
    "This document",
    {"type": "object", "required": ["openapi", "info", "paths"]},
    400,
    404,
    description="With `model=NAME`, which may be there more than once, of these models only.",
    reads=("model of the document", "without"),
)
PAGE_OF_IT: Final = Operation(summary="This document as a page", gives={"text/html": ANY_TEXT})


class OpenApiRoutes:
    """/openapi.json of one server.

    `?model=NAME` describes these models only, `?without=GROUP` leaves groups of routes out: those
    that a listener does not serve.
    """

    def __init__(
        self,
        entry: HttpEntry,
        described: Callable[[], Mapping[str, Route]],
        restrictions: Restrictions | None,
    ) -> None:
        """`described` gives the routes of the application."""
        self._entry = entry
        self._described = described
        self._restrictions = restrictions
        #: Documents by what they leave out, each with the generation of the models in it.
        self._made: dict[frozenset[str], tuple[int, bytes]] = {}

    def routes(self) -> dict[str, Route]:
        # The page holds nothing of this server: a browser cannot send a key before it has it.
        return {
            OPENAPI: Route({"GET": self._answer}, "metadata", operations={"GET": DOCUMENT}),
            DOCS: Route({"GET": docs_page}, "metadata", True, {"GET": PAGE_OF_IT}),
        }

    def _answer(self, exchange: Exchange) -> None:
        query = parse_qs(exchange.request.query)
        names, without = query.get("model", []), frozenset(query.get("without", ()))
        if len(names) > MAX_NAMES or not without <= set(GROUPS):
            raise InvalidRequest(
                f"model: at most {MAX_NAMES} names; without: some of {', '.join(GROUPS)}"
            )
        generation, made = self._made.get(without, (-1, b""))
        if not names and generation == self._entry.registry.generation:
            respond(exchange, made)
            return
        work = partial(self._document, names, without)
        self._entry.off_loop(exchange, work, partial(respond, exchange), reads=False)

    def _document(self, names: list[str], without: frozenset[str]) -> bytes:
        # Imported here: a server whose document is never read need not know how it is made.
        from wherry.server.openapi.document import DescribedServer, document

        entry, runtime = self._entry, self._entry.runtime
        generation = entry.registry.generation  # as it was before the models were looked at
        common = entry.common
        text = document(
            DescribedServer(
                version=common.version,
                models=[runtime.model(name) for name in names] or runtime.models(),
                routes=self._described(),
                has_keys=bool(common.keys),
                restrictions=self._restrictions,
                without=without,
            )
        )
        made = encode_json(text)
        if not names:
            if len(self._made) >= MAX_KEPT:
                self._made.clear()
            self._made[without] = generation, made
        return made


def leave_out(head: RequestHead, groups: Iterable[str]) -> RequestHead:
    """The head of a request for a document without these groups."""
    more = [("without", group) for group in sorted(groups)]
    query = "&".join(filter(None, (head.query, urlencode(more))))
    return RequestHead(head.method, head.path, query, head.headers, head.body_bytes)
