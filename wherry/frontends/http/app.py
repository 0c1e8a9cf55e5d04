"""Which handler answers a request, and may this client ask at all?

The application over any transport: paths, methods, keys, health, errors. It knows requests and
answers as values; bytes on a connection are the transport's business.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Sequence

import msgspec

import wherry
from wherry.frontends.admission import Admission
from wherry.frontends.http.answers import fail, respond
from wherry.frontends.http.exchange import Exchange, Limits, error_body
from wherry.frontends.http.kserve import Handlers, KServe
from wherry.frontends.http.model_path import Entry
from wherry.frontends.http.page import page
from wherry.observability.metrics import Metrics
from wherry.runtime import Runtime

LIVE = ("/v2/health/live", "/livez", "/healthz", "/health", "/ping")
READY = ("/v2/health/ready", "/readyz")

#: Clients choose the paths: so many are remembered.
MAX_PATHS = 1024


class HttpApp:
    """A Runtime as an HTTP application: call it with each exchange.

    With `api_keys`, every path but health wants one of them, as `Authorization: Bearer KEY` or
    `X-API-Key: KEY`. `draining` takes readiness away; what still comes in is answered.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        api_keys: Sequence[str] = (),
        max_in_flight: int | None = None,
        max_body_bytes: int = Limits().max_body_bytes,
        name: str = "wherry",
        version: str = wherry.__version__,
    ) -> None:
        self.draining = False
        self.admission = Admission(max_in_flight)
        self._runtime = runtime
        self._keys = [key.encode() for key in api_keys]
        self._entry = entry = Entry(runtime, self.admission, max_body_bytes)
        self._kserve = KServe(entry, name=name, version=version)
        self._metrics = Metrics(runtime, self.admission, version)
        self._routes: dict[str, Handlers] = {
            **{path: {"GET": self._live} for path in LIVE},
            **{path: {"GET": self._ready} for path in READY},
            **self._kserve.routes(),
            "/": {"GET": page},
            "/metrics": {"GET": self._scrape},
        }
        self._known = dict(self._routes)
        #: Who waits for the metrics, in which of the two formats.
        self._scrapes: dict[bool, list[Exchange]] = {}
        self._open = frozenset((*LIVE, *READY))

    def __repr__(self) -> str:
        return f"<HttpApp: {self._runtime!r}, {self.admission!r}>"

    def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        handlers = self._known.get(request.path)
        if self._keys and request.path not in self._open and not self._has_key(exchange):
            self._refuse_without_key(exchange)
            return
        if handlers is None:
            handlers = self._find(request.path)
        handler = handlers.get(request.method)
        try:
            if handler is not None:
                handler(exchange)
            else:
                self._other_method(exchange, handlers)
        except Exception as error:  # noqa: BLE001 - the top: whatever it is, the client is told
            fail(exchange, error)

    # Paths and methods

    def _find(self, path: str) -> Handlers:
        handlers = self._kserve.handlers(path)
        if handlers is None:
            return {}
        if len(self._known) >= MAX_PATHS:
            self._known = dict(self._routes)
        self._known[path] = handlers
        return handlers

    def _other_method(self, exchange: Exchange, handlers: Handlers) -> None:
        """HEAD, OPTIONS, and the methods and paths that are not there."""
        method = exchange.request.method
        if not handlers:
            respond(exchange, error_body("Not Found"), status=404)
        elif method == "HEAD" and "GET" in handlers:
            handlers["GET"](exchange)  # the transport keeps the body back
        elif method == "OPTIONS":
            respond(exchange, b"", status=204, headers=[_allow(handlers)])
        else:
            headers = [_allow(handlers)]
            respond(exchange, error_body("Method Not Allowed"), status=405, headers=headers)

    # Keys

    def _has_key(self, exchange: Exchange) -> bool:
        headers = exchange.request.headers
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # All of them, each in constant time: how long it takes says nothing about a key.
        matches = [hmac.compare_digest(given.encode(), key) for key in self._keys]
        return any(matches)

    def _refuse_without_key(self, exchange: Exchange) -> None:
        text = "a valid API key is needed: send 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"
        challenge = ("WWW-Authenticate", 'Bearer realm="wherry"')
        respond(exchange, error_body(text), status=401, headers=[challenge])

    # Health and metrics

    def _live(self, exchange: Exchange) -> None:
        """That this runs says it: the loop turns."""
        respond(exchange, b"", content_type="text/plain")

    def _ready(self, exchange: Exchange) -> None:
        """200 with nothing, or 503 with the reason for each model that could not answer."""
        reasons = self._runtime.not_ready()
        if not self.draining and not reasons:
            respond(exchange, b"", content_type="text/plain")
            return
        why = [f"model '{name}': {reason}" for name, reason in reasons.items()]
        if self.draining:
            why.insert(0, "the server is draining")
        body = {
            "error": "not ready: " + "; ".join(why),
            "draining": self.draining,
            "models": reasons,
        }
        respond(exchange, msgspec.json.encode(body), status=503)

    def _scrape(self, exchange: Exchange) -> None:
        """In a thread, as it takes a while; who asks meanwhile gets the same answer."""
        openmetrics = "application/openmetrics-text" in exchange.request.headers.get("accept", "")
        waiting = self._scrapes.setdefault(openmetrics, [])
        waiting.append(exchange)
        if len(waiting) > 1:
            return
        port = self._entry.port()

        def scrape() -> None:
            outcome: tuple[bytes, str] | Exception
            try:
                outcome = self._metrics.scrape(openmetrics=openmetrics)
            except Exception as error:  # noqa: BLE001 - a collector of the program's own may fail
                outcome = error
            port.call(scraped, outcome)

        def scraped(outcome: tuple[bytes, str] | Exception) -> None:
            for exchange in self._scrapes.pop(openmetrics):
                if isinstance(outcome, Exception):
                    fail(exchange, outcome)
                else:
                    respond(exchange, outcome[0], content_type=outcome[1])

        threading.Thread(target=scrape, name="wherry-metrics", daemon=True).start()


def _allow(handlers: Handlers) -> tuple[str, str]:
    methods = [*handlers, "OPTIONS"]
    if "GET" in handlers:
        methods.append("HEAD")
    return ("Allow", ", ".join(sorted(methods)))
