"""Which paths does the dashboard have?"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from wherry.core.api import InvalidRequest, Overloaded, Runtime
from wherry.server.dashboard import numbers
from wherry.server.dashboard.numbers import NumbersReader, Sample
from wherry.server.dashboard.requests import RecentRequests
from wherry.server.http.answers import CONTENT_TYPE, UNBUFFERED, respond
from wherry.server.http.exchange import Exchange, Headers
from wherry.server.http.route import ANY_TEXT, Operation, Route, returns
from wherry.server.http.route import EVENTS as EVENT_STREAM
from wherry.server.v2.common import Common

REQUESTS: Final = "/dashboard/requests"
HISTORY: Final = "/dashboard/history"
NUMBERS: Final = "/dashboard/numbers"
EVENTS: Final = "/dashboard/events"


def page(exchange: Exchange) -> None:
    """The handler of `/`. The page has nothing of the server before it has fetched it."""
    respond(exchange, PAGE.encode(), content_type="text/html; charset=utf-8", headers=HEADERS)


def whole_page(html: str, style: str, script: str) -> tuple[str, Headers]:
    """The document with its style and script, and a policy that allows exactly these and its own
    server. What is shown is of strangers: the browser refuses any markup made of text, too."""
    script = SHARED + script
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)};"
        " connect-src 'self'; img-src data: blob:; media-src blob:; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'; trusted-types 'none'"
    )
    headers = (
        ("Content-Security-Policy", policy),
        ("X-Frame-Options", "DENY"),  # for what does not know frame-ancestors
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
        ("Referrer-Policy", "no-referrer"),
        ("Cache-Control", "no-cache"),
    )
    html = html.replace("<style></style>", f"<style>{style}</style>", 1)
    return html.replace("<script></script>", f"<script>{script}</script>", 1), headers


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


SHARED: Final = _file("shared.js")
#: In this order they are one script, after uPlot.
_SCRIPTS: Final = ("base.js", "charts.js", "try.js", "page.js", "requests.js", "start.js")
#: Read when the server is imported: its event loop must not read files.
PAGE, HEADERS = whole_page(
    _file("page.html"),
    _file("vendor/uPlot.min.css") + _file("page.css"),
    "".join(map(_file, ("vendor/uPlot.iife.min.js", *_SCRIPTS))),
)


#: What each viewer costs is little, and yet not nothing.
MOST_VIEWERS: Final = 256


class Viewers:
    """The open streams of one server's numbers. In its event loop."""

    def __init__(self, source: NumbersReader) -> None:
        self._numbers = source
        source.viewers, source.watched = self.__len__, self._send
        #: The viewers, and whether each needs everything.
        self._open: dict[Exchange, bool] = {}
        self._last = Sample()
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, exchange: Exchange) -> None:
        """Send the numbers to this client until it leaves. Overloaded if too many watch."""
        if len(self._open) >= MOST_VIEWERS:
            raise Overloaded(
                f"{MOST_VIEWERS} clients watch this server's numbers, and no more may; close one,"
                " or fetch dashboard/numbers now and then",
                retry_after=numbers.INTERVAL,
            )
        exchange.on_disconnect = lambda: self._left(exchange)
        exchange.start(200, content_type=CONTENT_TYPE, headers=UNBUFFERED)
        self._open[exchange] = True
        if self._closed:
            self._end()
        else:
            self._numbers.read(self._send)

    def close(self) -> None:
        """End all streams, and each that is still to come, with the numbers as they are then."""
        self._closed = True
        if self._open:
            self._numbers.read(self._send)

    def _left(self, exchange: Exchange) -> None:
        self._open.pop(exchange, None)

    def _send(self, sample: Sample) -> None:
        before, self._last = self._last, sample
        whole = changes = b""
        for exchange, needs_whole in list(self._open.items()):
            if exchange.congested:
                self._open[exchange] = True
            elif needs_whole:
                whole = whole or b"event: whole\ndata: %b\n\n" % sample.whole()
                self._open[exchange] = False
                exchange.send(whole)
            elif sample is not before:
                changes = changes or _changes(sample, before)
                exchange.send(changes)
        if self._closed:
            self._end()

    def _end(self) -> None:
        open, self._open = self._open, {}
        for exchange in open:
            exchange.finish()


def _changes(sample: Sample, before: Sample) -> bytes:
    return b"event: changes\ndata: %b\n\n" % sample.changes_since(before)


START_PAGE: Final = Operation(summary="The start page", gives={"text/html": ANY_TEXT})
ALL_NUMBERS: Final = returns(
    "The dashboard's numbers, now",
    {"type": "object", "required": ["at", "server", "models"]},
)
CHANGES: Final = Operation(
    summary="The dashboard's numbers, as events",
    description="The first event has all of them, the others what has changed.",
    gives={EVENT_STREAM: {}},
    events={"type": "object"},
    errors=(429,),
)


PAST: Final = returns(
    "The figures of the last fifteen minutes, second by second",
    {"type": "object", "required": ["at", "figures", "totals", "models"]},
    404,
    description="Of a model and its version, or of the server. `at` are Unix seconds as doubles,"
    " each figure is an array of floats of four bytes; both little-endian, in base64.",
    parameters=tuple(
        {"name": name, "in": "query", "schema": {"type": "string"}} for name in ("model", "version")
    ),
)


LATEST: Final = returns(
    "The latest requests and their times",
    {"type": "object", "required": ["at", "keeps", "left_out", "batches"]},
    400,
    description="Those of batches after number `since`. Unless the server keeps them, requests are"
    " recorded for 5 s after each call, and without their ids.",
    parameters=({"name": "since", "in": "query", "schema": {"type": "integer", "minimum": 0}},),
)


class Dashboard:
    """The page and its numbers, of one server. In its event loop."""

    def __init__(
        self,
        runtime: Runtime,
        common: Common,
        not_ready: Callable[[], Mapping[str, str]],
        *,
        recent_requests: bool = False,
    ) -> None:
        self._draining = False
        self.numbers = NumbersReader(runtime, common, not_ready, lambda: self._draining)
        self._viewers = Viewers(self.numbers)
        self._requests = RecentRequests(runtime, keeps=recent_requests)
        self.numbers.every_second = self._requests.tick

    def routes(self) -> dict[str, Route]:
        return {
            "/": Route({"GET": page}, "metadata", True, {"GET": START_PAGE}),
            NUMBERS: Route({"GET": self._answer}, "statistics", operations={"GET": ALL_NUMBERS}),
            HISTORY: Route({"GET": self._answer_past}, "statistics", operations={"GET": PAST}),
            REQUESTS: Route(
                {"GET": self._answer_requests}, "statistics", operations={"GET": LATEST}
            ),
            EVENTS: Route({"GET": self._watch}, "statistics", operations={"GET": CHANGES}),
        }

    @property
    def watchers(self) -> int:
        return len(self._viewers)

    def drain(self) -> None:
        """End the streams: an open page must not keep a server from its end."""
        self._draining = True
        self._viewers.close()

    def _watch(self, exchange: Exchange) -> None:
        if exchange.request.method == "HEAD":  # its answer would have no end, and no body
            respond(exchange, b"", content_type=CONTENT_TYPE)
        else:
            self._viewers.add(exchange)

    def _answer(self, exchange: Exchange) -> None:
        headers = [("Cache-Control", "no-store")]
        self.numbers.read(lambda sample: respond(exchange, sample.whole(), headers=headers))

    def _answer_past(self, exchange: Exchange) -> None:
        which = dict(parse_qsl(exchange.request.head.query))
        body = self.numbers.history(which.get("model", ""), which.get("version", ""))
        respond(exchange, body, headers=[("Cache-Control", "no-store")])

    def _answer_requests(self, exchange: Exchange) -> None:
        since = dict(parse_qsl(exchange.request.head.query)).get("since", "0")
        if not (since.isascii() and since.isdecimal() and len(since) < 20):
            raise InvalidRequest(f"since={since[:40]!r} is not the number of a batch")
        body = self._requests.since(int(since))
        respond(exchange, body, headers=[("Cache-Control", "no-store")])
