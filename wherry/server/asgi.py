"""How do models become an ASGI application?"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from wherry.core.api import Model, Runtime, in_thread
from wherry.server.access.api_keys import ApiKeys
from wherry.server.calls.admission import Admission
from wherry.server.connections.limits import Limits
from wherry.server.content.urls import InputUrls
from wherry.server.http.asgi import AsgiApp, Receive, Scope, Send, asgi_app
from wherry.server.http_app import HttpApp, refusal_form
from wherry.server.options import Access, Capacity, Life, Options
from wherry.server.parts import plan_for, runtime_of
from wherry.server.v2.common import Common, OpenAISettings
from wherry.triton.api import log_ready


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

    def _start(self) -> None:
        plan = plan_for(self._options.capacity)
        self._application.admission.limit_bytes(plan.max_queue_bytes)
        self.runtime.start(log_ready)

    async def shutdown(self) -> None:
        """Finish what was accepted, and unload."""
        runtime = self.runtime
        self._application.drain()
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
    isolation: str = "thread",
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    api_keys: Sequence[str] = (),
    max_in_flight: int | None = None,
    max_queue_bytes: int = 0,
    limits: Limits | None = None,
    drain_timeout: float = 30.0,
) -> Asgi:
    """The models as an ASGI application, for uvicorn, hypercorn, or a mount in FastAPI.

        app = wherry.asgi(sentiment)  # uvicorn module:app

    Its `lifespan` is for a host that mounts it: `FastAPI(lifespan=app.lifespan)`. `isolation` and
    `overrides` are those of `wherry.Runtime`, the others options of `wherry.Server`.
    """
    options = Options(
        access=Access(api_keys=tuple(api_keys)),
        capacity=Capacity(max_in_flight=max_in_flight, max_queue_bytes=max_queue_bytes),
        life=Life(drain_timeout=drain_timeout),
    )
    return Asgi(lambda: runtime_of(models, isolation, overrides), options, limits or Limits())
