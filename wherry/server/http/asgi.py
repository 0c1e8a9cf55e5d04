"""How does the same application run inside another server (uvicorn, a FastAPI mount)?"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from wherry.core.api import Buffer
from wherry.server.connections.limits import Limits
from wherry.server.http.exchange import (
    ANSWERED,
    JSON,
    STREAMING,
    WAITING,
    Application,
    Body,
    Exchange,
    Headers,
    HttpRequest,
    RefusalForm,
    RequestHead,
    plain_form,
)
from wherry.server.http.wire import BODILESS, header_line

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Hook = Callable[[], Awaitable[None]]

HIGH_WATER_BYTES: Final = 64 * 2**10


class BodyTooLarge(Exception):
    pass


class ClientLeft(Exception):
    pass


def asgi_app(
    application: Application,
    limits: Limits | None = None,
    *,
    startup: Hook | None = None,
    shutdown: Hook | None = None,
    refusal_form: RefusalForm = plain_form,
) -> AsgiApp:
    """`application` as an ASGI 3 application.

    `startup` and `shutdown` run in the server's lifespan; a mounted application has none of its
    own, so the host calls them. Of `limits` only the body's size applies: the rest is the server's.
    """
    max_body_bytes = (limits or Limits()).max_body_bytes

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _serve(application, max_body_bytes, refusal_form, scope, receive, send)
        elif scope["type"] == "lifespan":
            await _lifespan(startup, shutdown, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            raise ValueError(f"ASGI scope {scope['type']!r} is not known here")

    return app


async def _serve(
    application: Application,
    max_body_bytes: int,
    refusal_form: RefusalForm,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    request = _request(scope)
    exchange = _AsgiExchange(request, refusal_form)
    try:
        request.body = await _read_body(request, receive, max_body_bytes)
    except ClientLeft:
        return
    except BodyTooLarge:
        exchange.refuse_body(max_body_bytes)
        return await exchange.deliver(send)
    watcher = asyncio.create_task(_watch(exchange, receive))
    try:
        application(exchange)
        await exchange.deliver(send)
    finally:
        watcher.cancel()
        exchange.leave()  # if the server gave up on us


def _request(scope: Scope) -> HttpRequest:
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    client = scope.get("client")
    head = RequestHead(
        method=scope["method"],
        path=_below(scope.get("root_path", ""), scope["path"]),
        query=scope.get("query_string", b"").decode("latin-1"),
        headers=headers,
    )
    return HttpRequest(head, peer=f"{client[0]}:{client[1]}" if client else None)


def _below(root_path: str, path: str) -> str:
    """The path as seen from where we are mounted; not every host leaves the mount's prefix in."""
    root = root_path.rstrip("/")
    if root and (path == root or path.startswith(root + "/")):
        return path[len(root) :] or "/"
    return path


async def _read_body(request: HttpRequest, receive: Receive, max_body_bytes: int) -> Buffer:
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > max_body_bytes:
        raise BodyTooLarge
    body: bytes | bytearray = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        piece = message.get("body", b"")
        if not body:
            body = piece
        elif piece:
            body = body if isinstance(body, bytearray) else bytearray(body)
            body += piece
        if len(body) > max_body_bytes:
            raise BodyTooLarge
        if not message.get("more_body", False):
            return body


async def _watch(exchange: "_AsgiExchange", receive: Receive) -> None:
    """Wait for the client to leave. A middleware that has read the body for itself may say it
    again, each time and at once: then nothing is heard of the client."""
    if (await receive())["type"] == "http.disconnect":
        exchange.leave()


async def _lifespan(
    startup: Hook | None, shutdown: Hook | None, receive: Receive, send: Send
) -> None:
    for hook, event in ((startup, "startup"), (shutdown, "shutdown")):
        await receive()
        try:
            if hook is not None:
                await hook()
        except Exception as error:
            await send({"type": f"lifespan.{event}.failed", "message": str(error)})
            raise
        await send({"type": f"lifespan.{event}.complete"})


class _AsgiExchange(Exchange):
    """An exchange whose answer waits as ASGI messages until `deliver` has sent them."""

    __slots__ = ("_messages", "_refusal_form", "_unsent_bytes", "_wake")

    def __init__(self, request: HttpRequest, refusal_form: RefusalForm) -> None:
        super().__init__(request)
        self._refusal_form = refusal_form
        self._messages: deque[Message] = deque()
        self._unsent_bytes = 0
        self._wake = asyncio.Event()

    async def deliver(self, send: Send) -> None:
        """Send the answer as it comes; return when it is complete, or the client has left."""
        while True:
            while self._messages:
                message = self._messages.popleft()
                try:
                    await send(message)
                except OSError:  # how newer servers say that the client has left
                    self.leave()
                    return
                self._sent(len(message.get("body", b"")))
            if self._phase not in (WAITING, STREAMING):
                return
            self._wake.clear()
            await self._wake.wait()

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        if not self._may_go_on(WAITING):
            return
        whole = body if isinstance(body, bytes) else b"".join(body)
        if status not in BODILESS:
            headers = (*headers, ("Content-Length", str(len(whole))))
        self._put_start(status, content_type, headers)
        self._put_body(whole, more=False)

    def start(self, status: int, *, content_type: str = JSON, headers: Headers = ()) -> None:
        if self._may_go_on(WAITING):
            self._phase = STREAMING
            self._put_start(status, content_type, headers)

    def send(self, chunk: bytes) -> None:
        if self._may_go_on(STREAMING) and chunk:
            self._put_body(chunk, more=True)

    def finish(self) -> None:
        if self._may_go_on(STREAMING):
            self._put_body(b"", more=False)

    def refusal(self, status: int, message: str) -> bytes:
        return self._refusal_form(self.request.path, status, message)

    @property
    def congested(self) -> bool:
        return self._unsent_bytes > HIGH_WATER_BYTES

    def leave(self) -> None:
        self._messages.clear()
        self._unsent_bytes = 0
        self._wake.set()
        super().leave()

    def refuse_body(self, max_body_bytes: int) -> None:
        self.respond(
            413,
            self.refusal(
                413,
                f"the body exceeds the limit of {max_body_bytes} bytes;"
                " send less at a time, or raise the server's --max-body-size",
            ),
            headers=[("Connection", "close")],
        )

    def _put_start(self, status: int, content_type: str, headers: Headers) -> None:
        guessing = ("X-Content-Type-Options", "nosniff")  # as `wire.first_lines` says it
        fields = [("Content-Type", content_type), guessing, *headers]
        for name, value in fields:
            header_line(name, value)  # not every server looks for line breaks in them
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in fields]
        self._put({"type": "http.response.start", "status": status, "headers": raw})

    def _put_body(self, body: bytes, *, more: bool) -> None:
        if not more:
            self._phase = ANSWERED
            self.on_disconnect = self.on_drain = None
        self._unsent_bytes += len(body)
        self._put({"type": "http.response.body", "body": body, "more_body": more})

    def _put(self, message: Message) -> None:
        self._messages.append(message)
        self._wake.set()

    def _sent(self, nbytes: int) -> None:
        was_congested = self.congested
        self._unsent_bytes = max(0, self._unsent_bytes - nbytes)
        if was_congested:
            self.drained()
