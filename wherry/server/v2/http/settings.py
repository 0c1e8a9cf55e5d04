"""What do the routes of the trace and log settings answer?"""

from __future__ import annotations

from wherry.core.api import InvalidRequest, ModelNotFound
from wherry.server.http.answers import respond_json
from wherry.server.http.exchange import Exchange
from wherry.server.http.route import Route
from wherry.server.v2.http.entry import HttpEntry, ModelPath
from wherry.server.v2.settings import LogSettings
from wherry.server.v2.trace_settings import TraceSettings


def setting_routes(entry: HttpEntry) -> dict[str, Route]:
    """Return the routes of the server's own settings; a model's are below the model's path."""

    def route(settings: LogSettings | TraceSettings, group: str) -> Route:
        def tell(exchange: Exchange) -> None:
            respond_json(exchange, settings.values())

        def change(exchange: Exchange) -> None:
            given = entry.members(exchange)
            if isinstance(settings, LogSettings):  # null leaves one as it is; a trace setting goes
                given = {name: value for name, value in given.items() if value is not None}
            respond_json(exchange, settings.update(given))

        return Route({"GET": tell, "POST": change}, group)

    return {
        "/v2/logging": route(entry.common.log_settings, "logging"),
        "/v2/trace/setting": route(entry.common.trace_settings, "trace"),
    }


def tell_trace_of(model: ModelPath, exchange: Exchange) -> None:
    _check_known(model)
    respond_json(exchange, model.entry.common.trace_settings.values(model.name))


def set_trace_of(model: ModelPath, exchange: Exchange) -> None:
    _check_known(model)
    given = model.entry.members(exchange)
    respond_json(exchange, model.entry.common.trace_settings.update(given, model.name))


def _check_known(model: ModelPath) -> None:
    try:
        model.loaded()
    except ModelNotFound:  # as Triton says it
        raise InvalidRequest(f"Request for unknown model : {model.name}") from None
