"""What do the calls of the trace and log settings answer?"""

from __future__ import annotations

from typing import Any

from wherry.core.api import InvalidRequest, ModelNotFound
from wherry.server.grpc.handler import MethodHandler, at_once
from wherry.server.grpc.wire import Values
from wherry.server.v2.grpc.entry import GrpcEntry


class SettingCalls:
    """The calls by the method's name: change what is given, then tell all."""

    def __init__(self, entry: GrpcEntry) -> None:
        self._entry = entry
        self._log = entry.common.log_settings
        self._trace = entry.common.trace_settings

    def handlers(self) -> dict[str, MethodHandler]:
        return {
            "TraceSetting": at_once(self._trace_setting, "trace"),
            "LogSettings": at_once(self._log_settings, "logging"),
        }

    def _trace_setting(self, request: Values) -> Values:
        """A setting without a value goes back to its default."""
        name = request.get("model_name") or None
        if name is not None:
            try:
                self._entry.runtime.model(name)
            except ModelNotFound:  # as Triton says it
                raise InvalidRequest(f"Request for unknown model : {name}") from None
        given = {
            setting: _trace_value(setting, value.get("value", []))
            for setting, value in request.get("settings", {}).items()
        }
        values = self._trace.update(given, name)
        return {
            "settings": {
                setting: {"value": value if isinstance(value, list) else [value]}
                for setting, value in values.items()
            }
        }

    def _log_settings(self, request: Values) -> Values:
        given = {
            setting: next(iter(value.values()), None)
            for setting, value in request.get("settings", {}).items()
        }
        values = self._log.update(given)
        return {"settings": {setting: _log_value(value) for setting, value in values.items()}}


def _trace_value(setting: str, values: list[str]) -> list[str] | str | None:
    if not values:
        return None
    if setting == "trace_level":
        return values
    if len(values) > 1:
        raise InvalidRequest(f"trace setting '{setting}' takes one value, not {len(values)}")
    return values[0]


def _log_value(value: Any) -> Values:
    if isinstance(value, bool):
        return {"bool_param": value}
    if isinstance(value, int):
        return {"uint32_param": value}
    return {"string_param": value}
