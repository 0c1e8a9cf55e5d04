"""Which paths does the dashboard have?"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wherry.frontends.dashboard.numbers import ServerNumbers
from wherry.frontends.dashboard.page import page
from wherry.frontends.dashboard.paths import EVENTS, NUMBERS
from wherry.frontends.dashboard.viewers import Viewers
from wherry.frontends.http.answers import respond
from wherry.frontends.http.exchange import Exchange
from wherry.frontends.http.route import Route
from wherry.frontends.http.sse import CONTENT_TYPE
from wherry.frontends.v2.common import Common
from wherry.observability.fronts import FrontsSource
from wherry.runtime.runtime import Runtime


class Dashboard:
    """The page and its numbers, of one server. In its event loop."""

    def __init__(
        self,
        runtime: Runtime,
        common: Common,
        not_ready: Callable[[], Mapping[str, str]],
    ) -> None:
        self._draining = False
        self._numbers = ServerNumbers(runtime, common, not_ready, lambda: self._draining)
        self._viewers = Viewers(self._numbers)

    def routes(self) -> dict[str, Route]:
        return {
            "/": Route({"GET": page}, "metadata", open=True),
            NUMBERS: Route({"GET": self._tell}, "statistics"),
            EVENTS: Route({"GET": self._watch}, "statistics"),
        }

    def measure(self, fronts: FrontsSource) -> None:
        """Tell of these fronts, too."""
        self._numbers.fronts = fronts

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

    def _tell(self, exchange: Exchange) -> None:
        headers = [("Cache-Control", "no-store")]
        self._numbers.read(lambda sample: respond(exchange, sample.whole(), headers=headers))
