"""What do the routes of the trace and log settings answer?"""

from __future__ import annotations

from typing import Any

from wherry.errors import InvalidRequest, ModelNotFound
from wherry.frontends.http.answers import respond
from wherry.frontends.http.exchange import Exchange
from wherry.frontends.http.infer_codec import parse_object
from wherry.frontends.http.model_path import Entry, Handlers, ModelPath
from wherry.frontends.http.tensors import encode_json


class SettingRoutes:
    """/v2/logging and /v2/trace/setting; a model's trace settings are a path of the model."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._log = entry.common.log_settings
        self._trace = entry.common.trace_settings

    def routes(self) -> dict[str, Handlers]:
        return {
            "/v2/logging": {"GET": self._tell_log, "POST": self._set_log},
            "/v2/trace/setting": {"GET": self._tell_trace, "POST": self._set_trace},
        }

    def _tell_log(self, exchange: Exchange) -> None:
        _json(exchange, self._log.values())

    def _set_log(self, exchange: Exchange) -> None:
        _json(exchange, self._log.update(_given(self._entry, exchange)))

    def _tell_trace(self, exchange: Exchange) -> None:
        _json(exchange, self._trace.values())

    def _set_trace(self, exchange: Exchange) -> None:
        _json(exchange, self._trace.update(_given(self._entry, exchange)))


def tell_trace_of(model: ModelPath, exchange: Exchange) -> None:
    _check_known(model)
    _json(exchange, model.entry.common.trace_settings.values(model.name))


def set_trace_of(model: ModelPath, exchange: Exchange) -> None:
    _check_known(model)
    given = _given(model.entry, exchange)
    _json(exchange, model.entry.common.trace_settings.update(given, model.name))


def _check_known(model: ModelPath) -> None:
    try:
        model.loaded()
    except ModelNotFound:  # as Triton says it
        raise InvalidRequest(f"Request for unknown model : {model.name}") from None


def _given(entry: Entry, exchange: Exchange) -> dict[str, Any]:
    body = entry.body(exchange)
    return parse_object(body) if len(body) else {}


def _json(exchange: Exchange, value: Any) -> None:
    respond(exchange, encode_json(value), compress=False)
