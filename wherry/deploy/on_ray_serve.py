"""How do models become an application of Ray Serve?

Ray Serve's proxies accept the connections and choose a replica; a replica batches what it gets.
Ray and Starlette are imported where they are used: Ray Serve brings both.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    aclosing,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from wherry.core.api import ConfigError, Model, ModelNotReady, Runtime, WherryError, in_thread
from wherry.deploy.on_load import autoscaling_stats, routing_stats
from wherry.server.api import AsgiApp, Receive, Scope, Send, asgi, load_targets

logger = logging.getLogger("wherry")

#: Batches that may be sent to a replica for each instance: one that runs, one that gathers.
BATCHES_AHEAD: Final = 2
#: The least number of requests at once: pipelines have no batches to count.
LEAST_ONGOING: Final = 32
#: Seconds that a replica may take to unload its models, after `drain_timeout`.
UNLOADING: Final = 10.0

#: Options of `asgi` that are those of a Runtime, where there is one.
OF_RUNTIME: Final = ("isolation", "overrides")
_OF_ASGI: Final = frozenset(
    name
    for name, parameter in inspect.signature(asgi).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
)


def ray_serve(*targets: str, max_num_models_per_replica: int | None = None, **options: Any) -> Any:
    """Create a Ray Serve application of the models of `targets`, for `serve run module:app`.

        app = wherry.deploy.ray_serve("app.py", num_replicas=2)

    A target is what `wherry serve` takes: `app.py`, `package.module`, `module:object` or
    `llm:checkpoint`. Each replica imports it from its own working folder. With
    `max_num_models_per_replica` a replica loads a model when a request names it (in the header
    `serve_multiplexed_model_id`, or by a handle), and unloads the least recently used one.
    `options` are those of `wherry.asgi` and of `serve.deployment`; these defaults differ:

    - `isolation`: "process", as in `wherry serve`
    - `max_ongoing_requests`: two full batches for each instance; the targets are imported here to
      count them, unless you set it
    - `autoscaling_config`: scales by how busy the instances are (`replicas_needed`), with half of
      the above as `target_ongoing_requests`
    - `request_router_config`: the replica that would answer first (`FirstAnswer`), as reported in
      the last second; not with RAY_SERVE_ENABLE_HA_PROXY
    - `logging_config`: no line per request
    - `graceful_shutdown_timeout_s`: `drain_timeout` plus 10 s to unload the models

    Returns a `ray.serve.Application`. Raises ConfigError if a target does not exist, TypeError for
    an unknown option, ModuleNotFoundError without Ray Serve.
    """
    from ray import serve

    ours: dict[str, Any] = {"isolation": "process", "drain_timeout": 30.0}
    ours |= {name: value for name, value in options.items() if name in _OF_ASGI}
    deployment: dict[str, Any] = {
        "name": "wherry",
        "graceful_shutdown_timeout_s": ours["drain_timeout"] + UNLOADING,
        "logging_config": {"log_level": "WARNING"},
    }
    if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY", "0") != "1":
        deployment["request_router_config"] = {
            "request_router_class": "wherry.deploy.ray_router:FirstAnswer",
            "request_routing_stats_period_s": 1.0,
        }
    elif "request_router_config" not in options:  # Ray Serve refuses it
        logger.info("Ray Serve's HAProxy chooses the replicas: not FirstAnswer, by their wait")
    deployment |= {name: value for name, value in options.items() if name not in _OF_ASGI}
    if "max_ongoing_requests" not in deployment:
        deployment["max_ongoing_requests"] = ongoing_requests(
            targets, ours.get("overrides") or {}, max_num_models_per_replica
        )
    scaling = deployment.get("autoscaling_config")
    if scaling is not None or deployment.get("num_replicas") == "auto":
        if scaling is not None and not isinstance(scaling, Mapping):
            scaling = scaling.model_dump(exclude_unset=True)
        deployment["autoscaling_config"] = {
            "target_ongoing_requests": deployment["max_ongoing_requests"] / BATCHES_AHEAD,
            "policy": {"policy_function": "wherry.deploy.on_load:replicas_needed"},
            **(scaling or {}),
        }
    made = serve.deployment(**deployment)(ModelReplica)
    return made.bind(targets, ours, max_num_models_per_replica)


def ongoing_requests(
    targets: Sequence[str],
    overrides: Mapping[str, Mapping[str, Any]],
    most_models: int | None = None,
) -> int:
    """The requests at once with which every instance of every model that is loaded at once has a
    full batch, and the next one gathers. Imports the targets."""
    models = load_targets(targets)
    if isinstance(models, Runtime):
        raise ConfigError(
            "the batches of a Runtime are not known before it is made: give max_ongoing_requests"
        )
    configs = [model.config(**overrides.get(model.name, {})) for model in models]
    rows = [one.max_batch_size * sum(group.count for group in one.instances) for one in configs]
    most = sum(sorted(rows, reverse=True)[:most_models])
    return max(BATCHES_AHEAD * most, LEAST_ONGOING)


class ModelsByRequest:
    """Loads a model into `runtime` when a request is for it, and at most `most` at once."""

    def __init__(
        self, runtime: Runtime, models: Iterable[Model], most: int, drain_timeout: float
    ) -> None:
        from ray import serve

        self._runtime = runtime
        self._models = {model.name: model for model in models}
        self._drain_timeout = drain_timeout

        async def load(name: str) -> SimpleNamespace:
            await in_thread(partial(runtime.load, self._models[name]), "wherry-load")
            held = SimpleNamespace(requests=0, unused=asyncio.Event())
            held.unused.set()
            # What Ray Serve awaits before it loads another one. It looks at the object, Python's
            # garbage collector only at its class.
            setattr(held, "__del__", partial(self._unload, name, held))  # noqa: B010
            return held

        self._load = serve.multiplexed(max_num_models_per_replica=most)(load)

    @asynccontextmanager
    async def loaded(self, name: str) -> AsyncIterator[None]:
        """Have this model loaded, if it is one of the targets', until the request is answered."""
        if name not in self._models:
            yield
            return
        held = await self._load(name)
        held.requests += 1
        held.unused.clear()
        try:
            yield
        finally:
            held.requests -= 1
            if not held.requests:
                held.unused.set()

    async def _unload(self, name: str, held: SimpleNamespace) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_timeout):
                await held.unused.wait()
        await in_thread(partial(self._runtime.unload, name), "wherry-unload")


class ModelReplica:
    """One replica: the models of the targets, loaded in this process, behind `wherry.asgi`.

    Ray Serve makes it in its own process and calls its public methods, in one event loop.
    """

    async def __init__(  # type: ignore[misc] # Ray Serve awaits it
        self, targets: Sequence[str], options: Mapping[str, Any], most_models: int | None = None
    ) -> None:
        found = load_targets(targets)
        models: list[Any] = [found] if isinstance(found, Runtime) else found
        self._loaded: Callable[[str], AbstractAsyncContextManager[None]]
        self._loaded = lambda name: nullcontext()
        if most_models is not None:
            if isinstance(found, Runtime):
                raise ConfigError("a Runtime has its models: no max_num_models_per_replica")
            runtime = Runtime(**{name: options[name] for name in OF_RUNTIME if name in options})
            drain_timeout = options["drain_timeout"]
            by_request = ModelsByRequest(runtime, found, most_models, drain_timeout)
            self._loaded, models = by_request.loaded, [runtime]
        self._app = asgi(*models, **options)
        self._response = _response(self._app, self._loaded)
        await self._app.startup()

    async def __call__(self, request: object) -> Any:
        """Answer a request over HTTP. What is returned is called with its ASGI scope, and is
        cancelled if the client leaves."""
        return self._response()

    async def infer(self, model: str, /, *args: Any, **inputs: Any) -> Any:
        """`Runtime.ainfer` for a handle: `await handle.infer.remote("model", text="good")`."""
        async with self._loaded(model):
            return await self._app.runtime.ainfer(model, *args, **inputs)

    async def stream(self, model: str, /, *args: Any, **inputs: Any) -> AsyncIterator[Any]:
        """`Runtime.astream` for a handle with `stream=True`."""
        async with self._loaded(model):
            answers = self._app.runtime.astream(model, *args, **inputs)
            async with aclosing(answers):  # type: ignore[type-var]
                async for answer in answers:
                    yield answer

    async def check_health(self) -> None:
        """Raise ModelNotReady if a model cannot answer; Ray Serve replaces a replica that raises
        three times in a row."""
        reasons = self._app.runtime.not_ready()
        if reasons:
            raise ModelNotReady("; ".join(f"{name}: {why}" for name, why in reasons.items()))

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What Ray Serve's controller hands to its policy of autoscaling."""
        return autoscaling_stats(self._app.runtime.registry.load_report())

    async def record_routing_stats(self) -> dict[str, float]:
        """What Ray Serve's controller hands to its routers."""
        return routing_stats(self._app.runtime.registry.load_report())

    async def __del__(self) -> None:
        """Unload the models. Ray Serve awaits it when the replica has answered what it had."""
        app = vars(self).pop("_app", None)
        if app is not None:  # else the models could not be loaded
            await app.shutdown()


def _response(app: AsgiApp, loaded: Callable[[str], AbstractAsyncContextManager[None]]) -> Any:
    """A class of Starlette responses that have `app` answer: the only way in which Ray Serve passes
    the ASGI scope to a class without FastAPI, and so the client's disconnect and each piece of a
    stream. The model that a request names is `loaded` until the answer is sent."""
    from ray import serve
    from starlette.responses import JSONResponse, Response

    class FromApp(Response):
        def __init__(self) -> None:
            """Read the model's name, available only here. `app` sends status, headers and body."""
            self._model: str = serve.get_multiplexed_model_id()

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            try:
                async with loaded(self._model):
                    await app(scope, receive, send)
            except WherryError as error:  # it cannot be loaded; the application raises none
                answer: Any = JSONResponse({"error": str(error)}, error.http_status)
                await answer(scope, receive, send)

    return FromApp
