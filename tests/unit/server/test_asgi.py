"""How do models become an ASGI application?"""

import asyncio
import json
from typing import Any

import pytest

import wherry
from tests.unit.server.asking import upper
from wherry.server.asgi import Asgi


class Broken(wherry.Model):
    def load(self, device: wherry.Device) -> None:
        raise OSError("no weights")

    def execute(self, text: list[str]) -> list[str]:
        return text


async def asgi_request(app: Asgi, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    sent: list[Any] = []
    received = iter([{"type": "http.request", "body": body}])
    gone = asyncio.Event()

    async def receive() -> Any:
        for message in received:
            return message
        await gone.wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
    await app(scope, receive, send)
    status = next(m["status"] for m in sent if m["type"] == "http.response.start")
    return status, b"".join(m["body"] for m in sent if m["type"] == "http.response.body")


def test_the_same_models_as_an_asgi_application_also_a_second_time() -> None:
    async def use() -> None:
        app = wherry.asgi(upper)
        body = json.dumps(
            {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}
        ).encode()
        for _ in range(2):
            assert (await asgi_request(app, "GET", "/v2/health/ready"))[0] == 503
            async with app.lifespan():
                assert (await asgi_request(app, "GET", "/v2/health/ready"))[0] == 200
                status, answer = await asgi_request(app, "POST", "/v2/models/upper/infer", body)
                assert status == 200
                assert json.loads(answer)["outputs"][0]["data"] == ["X"]

    asyncio.run(use())


def test_a_model_that_cannot_be_loaded_fails_the_lifespan() -> None:
    async def use() -> None:
        with pytest.raises(wherry.LoadFailed):
            async with wherry.asgi(Broken).lifespan():
                pass

    asyncio.run(use())
