"""How does Amazon SageMaker's contract with a container become V2 requests?

    GET /ping           200 when the server is ready, as /v2/health/ready
    POST /invocations   `infer` of one model: the one that is named, or the only one

The length of the JSON before binary data is part of the content type there:
`application/vnd.sagemaker-triton.binary+json;json-header-size=123`, both ways.
"""

from __future__ import annotations

import re
from typing import Final

from wherry.frontends.http.answers import Headers
from wherry.frontends.http.exchange import Exchange
from wherry.frontends.http.route import Handler, Route
from wherry.frontends.v2.http.entry import HttpEntry
from wherry.frontends.v2.http.infer_codec import HEADER_LENGTH
from wherry.frontends.v2.http.kserve import HttpInferCall, infer
from wherry.frontends.v2.http.model_path import ModelPath
from wherry.values.errors import InvalidRequest

BINARY: Final = "application/vnd.sagemaker-triton.binary+json;json-header-size="
_BINARY: Final = re.compile(re.escape(BINARY).replace(";", r"\s*;\s*") + r"(.*)", re.IGNORECASE)


class SageMakerRoutes:
    """The two paths; `model` is the model's name, if there may be several."""

    def __init__(self, entry: HttpEntry, ready: Handler, model: str | None = None) -> None:
        self._entry = entry
        self._ready = ready
        self._name = model
        #: The last one that was asked for, with its codec.
        self._model: ModelPath | None = None

    def routes(self) -> dict[str, Route]:
        return {
            "/ping": Route({"GET": self._ready}, "health", open=True),
            "/invocations": Route({"POST": self._invoke}, "inference"),
        }

    def _invoke(self, exchange: Exchange) -> None:
        headers = exchange.request.headers
        binary = _BINARY.fullmatch(headers.get("content-type", ""))
        if binary is not None:
            headers[HEADER_LENGTH] = binary[1].strip()
        infer(self._chosen(), exchange, Invocation)

    def _chosen(self) -> ModelPath:
        name = self._name
        if name is None:
            names = self._entry.runtime.names()
            if len(names) != 1:
                raise InvalidRequest(
                    f"/invocations has {len(names)} models to choose from"
                    f" ({', '.join(sorted(names)) or 'none'}); the operator must name one in"
                    " SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
                )
            (name,) = names
        if self._model is None or self._model.name != name:
            self._model = ModelPath(self._entry, name, None)
        return self._model


class Invocation(HttpInferCall):
    """An infer request whose answer is told in SageMaker's way."""

    __slots__ = ()

    def binary_head(self, json_bytes: int) -> tuple[str, Headers]:
        return f"{BINARY}{json_bytes}", ()
