"""TorchServe's inference routes (`POST /predictions/MODEL`), with errors as it writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import numpy as np

import wherry
from wherry.server.api import HttpProtocol, HttpRequest, Route


class TorchServe(HttpProtocol):
    """The body is the model's only input, or a JSON object of several; the answer is JSON."""

    def routes(self) -> Mapping[str, Route]:
        return {
            "/predictions/{model}": self.route(POST=self.predict),
            "/predictions/{model}/{version}": self.route(POST=self.predict_version),
        }

    def error(self, status: int, message: str) -> bytes:
        kind = HTTPStatus(status).phrase.title().replace(" ", "") + "Exception"
        return json.dumps({"code": status, "type": kind, "message": message}).encode()

    async def predict(self, model: str, request: HttpRequest) -> bytes:
        return await self.predict_version(model, None, request)

    async def predict_version(self, model: str, version: str | None, request: HttpRequest) -> bytes:
        names = [spec.name for spec in self.runtime.model(model, version).signature.inputs]
        row = body_of(request)
        if isinstance(row, dict) and row.keys() & set(names):
            answer = await self.runtime.ainfer(model, version=version, **row)
        else:
            answer = await self.runtime.ainfer(model, row, version=version)
        return json.dumps(answer, default=plain).encode()


def body_of(request: HttpRequest) -> Any:
    """JSON, text or bytes, as the Content-Type says. InvalidRequest."""
    kind, body = request.headers.get("content-type", ""), bytes(request.body)
    try:
        if kind.startswith("application/json"):
            return json.loads(body)
        return body.decode() if kind.startswith("text/") else body
    except ValueError as error:
        raise wherry.InvalidRequest(f"the body is no {kind}: {error}") from None


def plain(value: Any) -> Any:
    """A part of an answer that JSON does not know."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    raise wherry.InvalidRequest(f"the answer has a {type(value).__name__}, which JSON cannot hold")
