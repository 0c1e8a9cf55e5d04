"""How do models become an ASGI application, for uvicorn or a mount in FastAPI?"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final

from wherry.core.api import Buffer, Isolation, Model, ModelSettings, Runtime, in_thread
from wherry.server.access.api_keys import ApiKeys
from wherry.server.calls.admission import Admission
from wherry.server.connections.limits import Limits
from wherry.server.content.urls import InputUrls
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
from wherry.server.http.wire import BODILESS, header_lines
from wherry.server.http_app import HttpApp, refusal_form
from wherry.server.options import Access, Capacity, Life, Options
from wherry.server.parts import plan_for, runtime_of
from wherry.server.v2.common import Common, OpenAISettings
from wherry.triton.api import log_ready

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


async def _watch(exchange: _AsgiExchange, receive: Receive) -> None:
    """Wait for the client to leave. A middleware that has read the body may repeat it at once
    on each call: then it is not known when the client leaves."""
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
                except OSError:  # how newer servers report that the client has left
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
        guessing = ("X-Content-Type-Options", "nosniff")  # as in `wire.first_lines`
        fields = [("Content-Type", content_type), guessing, *headers]
        header_lines(fields)  # not every server looks for line breaks in them
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


class Asgi:
    """Models as an ASGI application: run it under any server, or mount it in another application.

        app = wherry.asgi(sentiment)                      # uvicorn module:app
        host = FastAPI(lifespan=app.lifespan); host.mount("/models", app)

    The models are loaded when the server starts the application's lifespan. A mounted application
    gets none, hence `lifespan` for the host to pass on.
    """

    def __init__(
        self, make_runtime: Callable[[], Runtime], options: Options, limits: Limits
    ) -> None:
        self._make_runtime = make_runtime
        self._options = options
        self._limits = limits
        self._renew()

    def _renew(self) -> None:
        """Make a Runtime and its application: a closed Runtime cannot be started again, but a host
        may start its lifespan again (tests do)."""
        self.runtime = self._make_runtime()
        common = Common(
            keys=ApiKeys(self._options.access.api_keys),
            admission=Admission(self._options.capacity.max_in_flight),
            max_body_bytes=self._limits.max_body_bytes,
            openai=OpenAISettings(
                strict_fields=self._options.protocols.strict_fields,
                max_kept_responses=self._options.capacity.max_kept_responses,
            ),
            input_urls=InputUrls(self._options.access.input_urls),
        )
        self._application = HttpApp(self.runtime, common=common)
        self._app: AsgiApp = asgi_app(
            self._application,
            self._limits,
            startup=self.startup,
            shutdown=self.shutdown,
            refusal_form=refusal_form,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def startup(self) -> None:
        """Load the models; returns when they are ready, or raises."""
        await in_thread(self._start, "wherry-load")
        self._application.start()

    def _start(self) -> None:
        plan = plan_for(self._options.capacity)
        self._application.admission.limit_bytes(plan.max_queue_bytes)
        self.runtime.start(log_ready)

    async def shutdown(self) -> None:
        """Finish what was accepted, and unload."""
        runtime = self.runtime
        self._application.drain()
        self._application.stop()
        await in_thread(lambda: runtime.drain(self._options.life.drain_timeout), "wherry-drain")
        await in_thread(runtime.close, "wherry-close")
        self._renew()

    @contextlib.asynccontextmanager
    async def lifespan(self, host: object = None) -> AsyncIterator[None]:
        """The lifespan for a host application: `FastAPI(lifespan=app.lifespan)`."""
        await self.startup()
        try:
            yield
        finally:
            await self.shutdown()


def asgi(
    *models: Model | type[Model],
    isolation: Isolation = "thread",
    overrides: Mapping[str, ModelSettings] | None = None,
    api_keys: Sequence[str] = (),
    max_in_flight: int | None = None,
    max_queue_bytes: int = 0,
    limits: Limits | None = None,
    drain_timeout: float = 30.0,
) -> Asgi:
    """Create an ASGI application of the models, for uvicorn, hypercorn, or to mount in FastAPI.

        app = wherry.asgi(sentiment)  # uvicorn module:app

    When mounted, pass its lifespan to the host: `FastAPI(lifespan=app.lifespan)`. `isolation` and
    `overrides` are those of `wherry.Runtime`, the others options of `wherry.Server`.
    """
    options = Options(
        access=Access(api_keys=tuple(api_keys)),
        capacity=Capacity(max_in_flight=max_in_flight, max_queue_bytes=max_queue_bytes),
        life=Life(drain_timeout=drain_timeout),
    )
    return Asgi(lambda: runtime_of(models, isolation, overrides), options, limits or Limits())
