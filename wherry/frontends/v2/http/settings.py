"""What do the routes of the trace and log settings answer?"""

from __future__ import annotations

from wherry.frontends.http.answers import respond_json
from wherry.frontends.http.exchange import Exchange
from wherry.frontends.http.route import Route
from wherry.frontends.v2.http.entry import HttpEntry, ModelPath
from wherry.values.errors import InvalidRequest, ModelNotFound


class SettingRoutes:
    """/v2/logging and /v2/trace/setting; a model's trace settings are a path of the model."""

    def __init__(self, entry: HttpEntry) -> None:
        self._entry = entry
        self._log = entry.common.log_settings
        self._trace = entry.common.trace_settings

    def routes(self) -> dict[str, Route]:
        return {
            "/v2/logging": Route({"GET": self._tell_log, "POST": self._set_log}, "logging"),
            "/v2/trace/setting": Route({"GET": self._tell_trace, "POST": self._set_trace}, "trace"),
        }

    def _tell_log(self, exchange: Exchange) -> None:
        respond_json(exchange, self._log.values())

    def _set_log(self, exchange: Exchange) -> None:
        respond_json(exchange, self._log.update(self._entry.members(exchange)))

    def _tell_trace(self, exchange: Exchange) -> None:
        respond_json(exchange, self._trace.values())

    def _set_trace(self, exchange: Exchange) -> None:
        respond_json(exchange, self._trace.update(self._entry.members(exchange)))


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
