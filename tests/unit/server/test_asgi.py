"""How do models become an ASGI application?"""

import asyncio
import json
from typing import Any

import pytest

import wherry
from tests.unit.server.asking import upper
from tests.unit.server.http.raw import ManualApplication, echo, until
from wherry.server.asgi import Asgi, AsgiApp, Message, Scope, asgi_app
from wherry.server.connections.limits import Limits
from wherry.server.http.exchange import Exchange


def http_scope(path: str = "/", **more: Any) -> Scope:
    return {"type": "http", "method": "POST", "path": path, "headers": [], **more}


class Server:
    """The server's side of one scope: what it gives, and what it has been sent."""

    def __init__(self, *messages: Message) -> None:
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.error: Exception | None = None
        for message in messages:
            self.inbox.put_nowait(message)

    async def receive(self) -> Message:
        return await self.inbox.get()

    async def send(self, message: Message) -> None:
        await self.may_send.wait()
        if self.error is not None:
            raise self.error
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    async def serve(self, app: AsgiApp, scope: Scope) -> None:
        await app(scope, self.receive, self.send)


def request(body: bytes = b"", *, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


LEFT: Message = {"type": "http.disconnect"}


@pytest.mark.parametrize(
    ("root_path", "path", "seen"),
    [
        ("", "/v2", "/v2"),
        ("/ml", "/ml/v2", "/v2"),
        ("/ml/", "/ml/v2", "/v2"),
        ("/ml", "/ml", "/"),
        ("/ml", "/v2", "/v2"),
        ("/ml", "/mlv2", "/mlv2"),
    ],
)
def test_a_mounted_application_sees_the_path_below_its_mount(
    root_path: str, path: str, seen: str
) -> None:
    def application(exchange: Exchange) -> None:
        exchange.respond(200, exchange.request.path.encode())

    async def main() -> None:
        server = Server(request())
        await server.serve(asgi_app(application), http_scope(path, root_path=root_path))
        assert server.body == seen.encode()

    asyncio.run(main())


def test_startup_and_shutdown_run_in_the_lifespan() -> None:
    ran: list[str] = []

    async def startup() -> None:
        ran.append("startup")

    async def shutdown() -> None:
        ran.append("shutdown")

    async def main() -> None:
        server = Server({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
        app = asgi_app(echo, startup=startup, shutdown=shutdown)
        await server.serve(app, {"type": "lifespan"})
        assert ran == ["startup", "shutdown"]
        assert [message["type"] for message in server.sent] == [
            "lifespan.startup.complete",
            "lifespan.shutdown.complete",
        ]

    asyncio.run(main())


def test_a_failing_startup_is_told_to_the_server() -> None:
    async def startup() -> None:
        raise LookupError("no such model")

    async def main() -> None:
        server = Server({"type": "lifespan.startup"})
        with pytest.raises(LookupError):
            await server.serve(asgi_app(echo, startup=startup), {"type": "lifespan"})
        assert server.sent == [{"type": "lifespan.startup.failed", "message": "no such model"}]

    asyncio.run(main())


def test_a_websocket_is_declined() -> None:
    async def main() -> None:
        server = Server({"type": "websocket.connect"})
        await server.serve(asgi_app(echo), {"type": "websocket"})
        assert server.sent == [{"type": "websocket.close", "code": 1000}]

    asyncio.run(main())


def test_a_body_in_pieces_is_put_together_and_limited_in_sum() -> None:
    async def main() -> None:
        app = asgi_app(echo, Limits(max_body_bytes=6))
        server = Server(request(b"ab", more=True), request(b"", more=True), request(b"cd"))
        await server.serve(app, http_scope())
        assert server.body == b"abcd"
        server = Server(request(b"abcd", more=True), request(b"efg", more=True))
        await server.serve(app, http_scope())
        assert server.sent[0]["status"] == 413
        assert "limit of 6 bytes" in json.loads(server.body)["error"]

    asyncio.run(main())


def test_a_client_that_leaves_before_its_body_is_complete_is_never_an_exchange() -> None:
    async def main() -> None:
        application, server = ManualApplication(), Server(request(b"ab", more=True), LEFT)
        await server.serve(asgi_app(application), http_scope())
        assert len(application) == 0
        assert server.sent == []

    asyncio.run(main())


def test_a_stream_is_congested_while_the_server_takes_nothing() -> None:
    async def main() -> None:
        application, server = ManualApplication(), Server(request())
        serving = asyncio.create_task(server.serve(asgi_app(application), http_scope()))
        exchange = await application.next()
        drains: list[bool] = []
        exchange.on_drain = lambda: drains.append(exchange.congested)
        server.may_send.clear()
        exchange.start(200)
        exchange.send(64 * 2**10 * b"x")
        assert not exchange.congested
        exchange.send(b"x")
        assert exchange.congested
        server.may_send.set()
        await until(lambda: bool(drains))
        assert drains == [False]
        exchange.finish()
        await serving
        assert len(server.body) == 64 * 2**10 + 1

    asyncio.run(main())


def test_a_server_that_says_by_an_error_that_the_client_left_is_understood() -> None:
    async def main() -> None:
        application, server = ManualApplication(), Server(request())
        serving = asyncio.create_task(server.serve(asgi_app(application), http_scope()))
        exchange = await application.next()
        left: list[str] = []
        exchange.on_disconnect = lambda: left.append("left")
        server.error = ConnectionResetError()
        exchange.start(200)
        await serving
        assert left == ["left"]
        exchange.send(b"late")

    asyncio.run(main())


def test_a_server_that_gives_up_on_a_request_counts_as_a_client_that_left() -> None:
    async def main() -> None:
        application, server = ManualApplication(), Server(request())
        serving = asyncio.create_task(server.serve(asgi_app(application), http_scope()))
        exchange = await application.next()
        left: list[str] = []
        exchange.on_disconnect = lambda: left.append("left")
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert left == ["left"]

    asyncio.run(main())


def test_a_middleware_that_says_the_body_again_and_again_does_not_stop_the_loop() -> None:
    """As one does that has read the body for itself: `receive` gives it at once, each time."""

    class Again(Server):
        asked = 0

        async def receive(self) -> Message:
            self.asked += 1
            assert self.asked < 100
            return request(b"the body")

    async def main() -> None:
        application, server = ManualApplication(), Again()
        serving = asyncio.create_task(server.serve(asgi_app(application), http_scope()))
        exchange = await application.next()
        await asyncio.sleep(0)  # the loop turns while the answer is awaited
        exchange.respond(200, bytes(exchange.request.body))
        await serving
        assert (server.body, server.asked) == (b"the body", 2)

    asyncio.run(main())


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
