"""What does the V2 protocol tell over gRPC of a server and its models?

Decoded messages in, plain values out; which fields of them a message has is the schema's business.
"""

from __future__ import annotations

from typing import Any, Final

from wherry.core.api import ModelNotFound, ModelNotReady
from wherry.server.grpc.handler import MethodHandler, at_once
from wherry.server.grpc.wire import Values
from wherry.server.v2 import describe
from wherry.server.v2.grpc.entry import GrpcEntry

EXTENSIONS: Final = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


class KServeCalls:
    """The calls of one server that answer at once."""

    def __init__(self, entry: GrpcEntry, *, name: str, version: str) -> None:
        self._entry = entry
        self._server = {"name": name, "version": version, "extensions": EXTENSIONS}

    def handlers(self) -> dict[str, MethodHandler]:
        """Return the handlers by the method's name."""
        return {
            "ServerLive": at_once(lambda _: {"live": True}, "health", open=True),
            "ServerReady": at_once(
                lambda _: {"ready": not self._entry.not_ready()}, "health", open=True
            ),
            "ServerMetadata": at_once(lambda _: self._server, "metadata"),
            "ModelReady": at_once(self._model_ready, "health"),
            "ModelMetadata": at_once(self._model_metadata, "metadata"),
            "ModelConfig": at_once(self._model_config, "model-config"),
            "ModelStatistics": at_once(self._model_statistics, "statistics"),
        }

    def _model_ready(self, request: Values) -> Values:
        """An unknown model is not ready, which is no error."""
        try:
            loaded = self._entry.model(*_named(request))
        except (ModelNotFound, ModelNotReady):
            return {"ready": False}
        return {"ready": not loaded.not_ready_reason()}

    def _model_metadata(self, request: Values) -> Values:
        name, version = _named(request)
        return describe.metadata(self._entry.runtime, self._entry.model(name, version), version)

    def _model_config(self, request: Values) -> Values:
        return {"config": describe.model_config(self._entry.model(*_named(request)))}

    def _model_statistics(self, request: Values) -> Values:
        """Of one model, or of all."""
        name, version = _named(request)
        return describe.model_stats(self._entry.runtime, name, self._entry.version(version))


def _named(request: dict[str, Any]) -> tuple[str, str]:
    return request.get("name", ""), request.get("version", "")
