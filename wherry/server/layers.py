"""What lies between a listener and the application that it calls?"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from wherry.server.access.origins import Origins
from wherry.server.access_log import AccessLog
from wherry.server.connections.limits import Limits
from wherry.server.connections.open_connections import holdings_of
from wherry.server.http.answers import respond
from wherry.server.http.exchange import Application, Exchange, WithHeaders
from wherry.server.http.listener import Listener
from wherry.server.http_app import VITAL, refusal_form
from wherry.server.options import Options
from wherry.server.parts import Applications

if TYPE_CHECKING:
    from wherry.server.grpc.listener import GrpcListener
    from wherry.server.grpc.rpc import Application as GrpcApplication


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


class Layers:
    """Makes the listeners of one server, which share what its connections may hold.

    From the listener inwards: origins, traces, the access log, the application. A layer that is off
    is not there.
    """

    def __init__(self, applications: Applications, options: Options, limits: Limits) -> None:
        self._applications = applications
        self._options = options
        self._limits = limits
        self._holdings = holdings_of(limits)
        self._origins = Origins(options.access.allowed_hosts, options.access.cors_origins)

    def over_http(self, application: Application) -> Listener:
        protocols, tracing = self._options.protocols, self._applications.common.tracing
        if protocols.access_log:
            application = AccessLog(application)
        if tracing is not None:
            from wherry.server.traced_http import TracedHttp

            scheme = "http" if self._options.tls.of_http[0] is None else "https"
            application = TracedHttp(application, tracing, scheme)
        if self._origins:
            application = Cors(application, self._origins)
        return Listener(
            application,
            self._limits,
            self._origins,
            self._holdings,
            vital=VITAL,
            refusal_form=refusal_form,
            keeps_sent_names=protocols.http_header_forward_pattern is not None,
        )

    def over_grpc(self) -> GrpcListener | None:
        """The listener of the gRPC application, if there is one."""
        if self._applications.grpc is None:
            return None
        from wherry.server.grpc.listener import GrpcListener

        protocols, common = self._options.protocols, self._applications.common
        calls: GrpcApplication = self._applications.grpc
        ended = None
        if common.tracing is not None:
            from wherry.server.traced_calls import TracedCalls

            calls = traced = TracedCalls(calls, common.tracing)
            ended = traced.ended
        return GrpcListener(
            calls,
            self._limits,
            ended=ended,
            compression=protocols.grpc_compression,
            access_log=logging.getLogger("wherry.access") if protocols.access_log else None,
            holdings=self._holdings,
            offload=common.offload,
        )
