"""Which handler answers a request, and may this client call it?

The application over any transport: paths, methods, keys, health, errors. It knows requests and
answers as values; bytes on a connection are the transport's business.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from wherry.core.api import FrontsSource, Metrics, Runtime, ServerBusy
from wherry.llm.api import MESSAGES, error_object, speaks_openai
from wherry.llm.api import error_body as anthropic_error
from wherry.server.access.api_keys import GROUPS, ApiKeys, Restrictions
from wherry.server.calls.client_text import without_paths
from wherry.server.calls.load_reports import FORMAT_HEADER, LoadReports
from wherry.server.calls.offload import RETRY_AFTER
from wherry.server.dashboard.routes import Dashboard
from wherry.server.fronts.pass_on import PassOn
from wherry.server.http.answers import describe, fail, respond
from wherry.server.http.exchange import SOON, Exchange, RequestHead, WithHeaders, error_body
from wherry.server.http.route import ANY_TEXT, TEXT, Handler, Operation, Route
from wherry.server.natural import NaturalRoutes
from wherry.server.openapi.routes import OPENAPI, OpenApiRoutes, leave_out
from wherry.server.protocol import ProtocolRoutes
from wherry.server.v2.administration import health
from wherry.server.v2.common import Common
from wherry.server.v2.describe import ExactAnswer
from wherry.server.v2.http.entry import HttpEntry
from wherry.server.v2.http.kserve import V2Routes, respond_health
from wherry.server.v2.triton_errors import TritonErrors
from wherry.triton.api import ModelControl

LIVE = ("/v2/health/live", "/livez", "/healthz", "/health", "/ping")
READY = ("/v2/health/ready", "/readyz")
#: Paths that report whether the server lives.
VITAL = frozenset((*LIVE, *READY))
#: Groups that operators need and clients do not: these may have a port of their own.
MANAGEMENT: Final = frozenset(("model-repository", "logging", "trace", "metrics"))

#: Bound of the path cache: paths come from clients.
MAX_PATHS = 1024


class ServerLive(ExactAnswer):
    """The server lives. Only for clients whose Accept header has JSON."""

    live: bool


class ServerReady(ExactAnswer):
    """The server is ready. Only for clients whose Accept header has JSON."""

    ready: bool


class NotReady(msgspec.Struct):
    """Why the server is not ready."""

    error: str
    draining: bool
    #: The reason for each model that is not ready.
    models: dict[str, str]


IS_LIVE: Final = {"GET": health("Whether the server is alive", ServerLive)}
IS_READY: Final = {
    "GET": health(
        "Whether the server and its models are ready",
        ServerReady,
        failures={503: NotReady},
        description="With status 503 the body has the reason for each model that is not.",
    )
}
SCRAPE: Final = {
    "GET": Operation(
        summary="Metrics for Prometheus",
        gives={TEXT: ANY_TEXT, "application/openmetrics-text": ANY_TEXT},
    )
}


class HttpApp:
    """A Runtime as an HTTP application: call it with each exchange.

    With keys in `common`, every path but health needs one of them, as `Authorization: Bearer KEY`
    or `X-API-Key: KEY`; `restrictions` may require more, of a part of the paths. `drain` takes
    readiness away; what still comes in is answered.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        common: Common | None = None,
        control: ModelControl | None = None,
        restrictions: Restrictions | None = None,
        pass_on: PassOn | None = None,
        recent_requests: bool = False,
    ) -> None:
        """With `pass_on` this is a front's application: an owner answers what it passes on."""
        self._draining = False
        common = common or Common()
        self.admission = common.admission
        self._runtime = runtime
        self._control = control = control or ModelControl(runtime)
        self._keys = common.keys or None
        self._restrictions = restrictions or None
        load = runtime.registry.load_report if pass_on is None else pass_on.load_report
        self._load_reports = LoadReports(load, common.metrics.load_report)
        self._entry = entry = HttpEntry(runtime, common, control)
        self._v2 = V2Routes(entry)
        self._protocols = ProtocolRoutes(entry, pass_on)
        self._natural = NaturalRoutes(entry)
        self._dashboard = Dashboard(
            runtime,
            common,
            control.not_ready,
            recent_requests=recent_requests,
        )
        openapi = OpenApiRoutes(entry, self.described, self._restrictions)
        self._metrics = Metrics(
            runtime, self.admission, common.version, common.loop_stall, common.metrics
        )
        self._routes: dict[str, Route] = {
            **{path: Route({"GET": self._live}, "health", True, IS_LIVE) for path in LIVE},
            **{path: Route({"GET": self._ready}, "health", True, IS_READY) for path in READY},
            **self._v2.fixed,
            **self._dashboard.routes(),
            **openapi.routes(),
            "/metrics": Route({"GET": self._scrape}, "metrics", operations=SCRAPE),
            "*": Route({}, "health", open=True),  # OPTIONS of the server itself (RFC 9110, 9.3.7)
        }
        self._own = dict(self._routes)
        self._pass_on = pass_on
        if pass_on is not None:
            self._routes = {path: pass_on.route(path, one) for path, one in self._routes.items()}
        self._known = dict(self._routes)
        #: Requests that wait for the metrics, by the format: OpenMetrics or not.
        self._scrapes: dict[bool, list[Exchange]] = {}

    def measure(self, fronts: FrontsSource) -> None:
        self._metrics.fronts = fronts
        self._dashboard.numbers.fronts = fronts

    def start(self) -> None:
        """Keep the figures of each second, until `stop`: an owner's alone. In the loop."""
        if self._pass_on is None:
            self._dashboard.numbers.start()

    def stop(self) -> None:
        self._dashboard.numbers.stop()

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def watchers(self) -> int:
        """Clients that watch the numbers, each on a connection of its own."""
        return self._dashboard.watchers + (0 if self._pass_on is None else self._pass_on.watchers)

    def drain(self) -> None:
        """Take readiness away, and end streams that have no end. In the loop."""
        self._draining = True
        self._dashboard.drain()
        if self._pass_on is not None:
            self._pass_on.drain()

    def __call__(self, exchange: Exchange) -> None:
        """Check that this client may use the route, and have its handler answer."""
        request = exchange.request
        head = request.head
        if self._entry.common.triton_errors and head.path.startswith("/v2/"):
            exchange = TritonErrors(exchange)
        route = head.route or self.route(head)
        if self._keys is not None and (route is None or not route.open):
            caller = self._keys.name_of(head.headers)
            if caller is None:
                self._refuse_without_key(exchange)
                return
            request.caller = caller
        if route is None:
            message = self._sentence("Not Found", "; /docs lists the routes of this server")
            respond(exchange, self._refusal(head.path, 404, message), status=404)
            return
        if FORMAT_HEADER in head.headers or self._load_reports.always:
            exchange = self._with_load_report(exchange)
        if head.trace is not None:
            head.route = route  # its span is named after it; the head is this request's alone
        try:
            if self._restrictions is not None:
                self._restrictions.check(route.group, head.headers)
            handler = route.handlers.get(head.method)
            if handler is not None:
                handler(exchange)
            else:
                self._other_method(exchange, route.handlers)
        except Exception as error:  # noqa: BLE001 - the top: whatever it is, the client gets an answer
            status, message, headers = describe(exchange, error)
            body = self._refusal(head.path, status, message)
            exchange.respond(status, body, headers=headers)

    def _with_load_report(self, exchange: Exchange) -> Exchange:
        requested_by = self._load_reports.requested_by(exchange.request.headers)
        return exchange if requested_by is None else WithHeaders(exchange, requested_by)

    def _other_method(self, exchange: Exchange, handlers: Mapping[str, Handler]) -> None:
        """Answer HEAD, OPTIONS, and methods that the path does not have."""
        method = exchange.request.method
        if method == "HEAD" and "GET" in handlers:
            handlers["GET"](exchange)  # the transport keeps the body back
        elif method == "OPTIONS":
            respond(exchange, b"", status=204, headers=[_allow(handlers)])
        else:
            message = self._sentence("Method Not Allowed", f"; use {' or '.join(handlers)}")
            body = self._refusal(exchange.request.path, 405, message)
            respond(exchange, body, status=405, headers=[_allow(handlers)])

    def route(self, head: RequestHead) -> Route | None:
        """Return the route of a request; None if there is none. One that no model's own can take
        the place of is noted in its head."""
        path = head.path
        if (route := self._known.get(path)) is not None:
            head.route = route
            return route
        # Not noted: models with routes of their own come and go.
        return self._natural.route(path) or self._protocols.route(path) or self._find(path)

    def _find(self, path: str) -> Route | None:
        route = self._v2.route(path)
        if route is not None:
            if self._pass_on is not None:
                route = self._pass_on.route(path, route)
            if len(self._known) >= MAX_PATHS:
                self._known = dict(self._routes)
            self._known[path] = route
        return route

    def described(self) -> dict[str, Route]:
        """The routes by their paths as OpenAPI writes them, but for those of models. Any thread."""
        below = {**self._v2.models.routes, **self._v2.others.routes}
        return {**self._protocols.described(), **self._own, **below}

    def _sentence(self, sentence: str, more: str) -> str:
        return sentence if self._entry.common.triton_errors else sentence + more

    def _refusal(self, path: str, status: int, message: str) -> bytes:
        if self._natural.route(path) is not None:
            return error_body(message)
        return refusal_form(path, status, message)

    # Keys

    def _refuse_without_key(self, exchange: Exchange) -> None:
        challenge = ("WWW-Authenticate", 'Bearer realm="wherry"')
        body = self._refusal(exchange.request.path, 401, ApiKeys.REFUSAL)
        respond(exchange, body, status=401, headers=[challenge])

    # Health and metrics

    def live_while(self, lives: Callable[[], bool]) -> None:
        """Live only while `lives()`, until the server drains. Before the first request."""

        def live(exchange: Exchange) -> None:
            if self.draining or lives():
                self._live(exchange)
            else:
                body = error_body("the process that owns the models does not answer")
                respond(exchange, body, status=503, headers=[SOON])

        self._routes |= {path: Route({"GET": live}, "health", open=True) for path in LIVE}
        self._known = dict(self._routes)

    def _live(self, exchange: Exchange) -> None:
        """Answer 200: that this code runs shows that the event loop turns."""
        respond_health(exchange, ServerLive(live=True))

    def _ready(self, exchange: Exchange) -> None:
        """Answer 200, or 503 with the reason for each model that is not ready."""
        not_ready = self._control.not_ready()
        reasons = {name: without_paths(reason) for name, reason in not_ready.items()}
        if not self.draining and not reasons:
            respond_health(exchange, ServerReady(ready=True))
            return
        why = [f"model '{name}': {reason}" for name, reason in reasons.items()]
        if self.draining:
            why.insert(0, "the server is draining")
        body = NotReady("not ready: " + "; ".join(why), self.draining, reasons)
        respond(exchange, msgspec.json.encode(body), status=503, headers=[SOON])

    def _scrape(self, exchange: Exchange) -> None:
        """Render the metrics in a thread; requests that come meanwhile get the same answer."""
        openmetrics = "application/openmetrics-text" in exchange.request.headers.get("accept", "")
        waiting = self._scrapes.setdefault(openmetrics, [])
        waiting.append(exchange)
        if len(waiting) > 1:
            return
        if self._metrics.fronts is None:
            self._start_scrape(openmetrics)
        else:
            self._metrics.fronts.measure(lambda: self._start_scrape(openmetrics))

    def _start_scrape(self, openmetrics: bool) -> None:
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

        try:
            threading.Thread(target=scrape, name="wherry-metrics", daemon=True).start()
        except RuntimeError as error:  # the system gives no thread: none of them may wait for one
            scraped(ServerBusy(f"{error}; retry later", RETRY_AFTER))


def refusal_form(path: str, status: int, message: str) -> bytes:
    """A refusal as the path's clients read it: Anthropic's, OpenAI's, or all others'."""
    if path.startswith(MESSAGES):
        return anthropic_error(None, status, message)
    if speaks_openai(path):
        return error_object(None, status, message)
    return error_body(message)


class PartOfApp:
    """Serves the routes of an application that are in `groups`, and answers 404 for all others."""

    def __init__(self, app: HttpApp, groups: Collection[str]) -> None:
        self._app = app
        self._groups = groups
        self._elsewhere = set(GROUPS) - set(groups)

    def __call__(self, exchange: Exchange) -> None:
        head = exchange.request.head
        if head.route is None and head.path == OPENAPI:
            head = exchange.request.head = leave_out(head, self._elsewhere)
        route = head.route or self._app.route(head)
        if route is None or route.group in self._groups:
            self._app(exchange)
        else:
            respond(exchange, refusal_form(head.path, 404, "Not Found"), status=404)


def _allow(handlers: Mapping[str, Handler]) -> tuple[str, str]:
    methods = [*handlers, "OPTIONS"]
    if "GET" in handlers:
        methods.append("HEAD")
    return ("Allow", ", ".join(sorted(methods)))
