"""Which loaded model and version is meant, and how is it called from this process?

The runtime builds the parts below it and knows no sockets. Every caller enters here: frontends
have no private door.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, closing
from typing import Any, TypeVar, Unpack

from wherry.core.instances.resources import Resources
from wherry.core.instances.timer import Timer
from wherry.core.models.model import Model
from wherry.core.models.settings import Isolation, ModelSettings
from wherry.core.pipelines.pipeline import LoopThread
from wherry.core.residency.residency import Residency
from wherry.core.runtime.build import Builder
from wherry.core.runtime.calls import LocalCalls
from wherry.core.runtime.loaded_model import LoadedModel, values_of
from wherry.core.runtime.loop_port import LoopPort, LoopPorts
from wherry.core.runtime.registry import Registry
from wherry.core.runtime.shared_cache import cache_of
from wherry.core.values.execution import Failure
from wherry.core.values.request import Columns, InferResponse, SequenceStep

#: Module state, since a fork concerns the whole process and os.register_at_fork has no inverse.
_all: weakref.WeakSet[Runtime] = weakref.WeakSet()


def _in_the_child() -> None:
    for one in tuple(_all):
        one.forked(os.getppid())


if hasattr(os, "register_at_fork"):  # not on Windows, where there is no fork
    os.register_at_fork(after_in_child=_in_the_child)


R = TypeVar("R")


class Runtime:
    """Run models in this process. Safe from any thread or event loop.

        with wherry.Runtime(sentiment, Embedder()) as runtime:
            runtime.infer("sentiment", text="good")

    `isolation` is what "auto" means for the models: "thread", or "process" (as in a server).
    `overrides` are settings by model name. `resources` are the amounts shared by models with
    `resources`; by default one such batch runs at a time. `device_memory` is a budget in bytes by
    device ("cuda:0", "cpu"): unused models sleep when others need the room. `cache_bytes` is the
    size of the response cache; `cache_config` ("NAME,SETTING=VALUE", ...) uses a package's store,
    shared between servers. Call `close`, or use `with`: it is never garbage collected.
    """

    def __init__(
        self,
        *models: Model,
        isolation: Isolation = "thread",
        overrides: Mapping[str, ModelSettings] | None = None,
        resources: Mapping[str, int] | None = None,
        device_memory: Mapping[str, int] | None = None,
        cache_bytes: int = 0,
        cache_config: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        #: The ModelControl that loads into it, if any: for models that load other models.
        self.control: Any = None
        self.cache = cache_of(cache_bytes, cache_config, clock)
        self.residency = Residency(device_memory or {}, clock)
        # What is loaded, loads or will be.
        self.registry = Registry(self, clock, residency=self.residency)
        #: Limited amounts that models share.
        self.resources = Resources(resources, clock)
        self._timer = Timer(clock)
        self._pipeline_thread = LoopThread("wherry-pipelines")
        self.ports = LoopPorts()
        self.calls = LocalCalls(clock, self._pipeline_thread, self.ports)
        self.builder = Builder(
            self,
            isolation=isolation,
            overrides=dict(overrides or {}),
            resources=self.resources,
            cache=self.cache,
            timer=self._timer,
            pipelines=self._pipeline_thread,
            clock=clock,
        )
        self._to_load = models
        self.expect(_names_of(models))
        _all.add(self)

    # Life

    def __enter__(self) -> Runtime:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self, on_ready: Callable[[LoadedModel, float], None] | None = None) -> Runtime:
        """Load the constructor's models. Blocks until all are ready, or raises."""
        self.registry.refuse_a_copy()
        try:
            if self.cache is not None:
                self.cache.start()
            self._timer.start()
            self.load_all(self._to_load, on_ready=on_ready)
        except BaseException:
            self.close()
            raise
        self.expect_no_more(_names_of(self._to_load))
        self._to_load = ()
        return self

    def load(self, model: Model, **overrides: Unpack[ModelSettings]) -> LoadedModel:
        """Load and warm up one model. Blocks; other models keep serving. If the version is loaded
        already it is replaced without a gap: the old one serves until the new one is ready.
        Raises ConfigError or LoadFailed.
        """
        loaded = self.load_all([model], **overrides)[0]
        self.residency.wake(loaded.runner)
        return loaded

    def load_all(
        self,
        models: Iterable[Model],
        *,
        on_ready: Callable[[LoadedModel, float], None] | None = None,
        replaced: Callable[[LoadedModel], None] | None = None,
        **overrides: Unpack[ModelSettings],
    ) -> list[LoadedModel]:
        """Load several models side by side; `on_ready(model, seconds)` is called for each. What
        they replace is retired here, or passed to `replaced`, which must retire it."""
        self.registry.refuse_a_copy()
        made = [self.builder.build(model, overrides) for model in models]
        self.registry.load(made, on_ready, replaced or self.registry.retire)
        return made

    def unload(
        self, name: str, version: str | None = None, *, drain_timeout: float | None = 30.0
    ) -> None:
        """Stop accepting requests for `name` (by default all versions), finish those accepted, and
        free it. Blocks; safe from any thread.

        Requests unfinished after `drain_timeout` seconds fail.
        """
        for loaded in self.registry.take_out(name, version):
            self.registry.retire(loaded, drain_timeout)

    def expect(self, names: Iterable[str]) -> None:
        """A model of each of these names will be loaded ("*": it is not known yet which): until
        `expect_no_more` its callers get a 503 with a time to retry."""
        with self.registry.locked() as life:
            life.announced.expect(names)

    def expect_no_more(self, names: Iterable[str]) -> None:
        """Take back an `expect`: the models are loaded, or will not be."""
        with self.registry.locked() as life:
            life.announced.expect_no_more(names)

    def drain(self, timeout: float | None = 30.0) -> bool:
        """Stop accepting requests and finish those accepted. Returns False after `timeout`."""
        return self.registry.drain(timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Unload all models, leaving no thread, process or descriptor behind. Queued requests
        fail, as do those running after `timeout` seconds, when workers are killed. May be called
        while models load. Does nothing in a forked child."""
        if self.registry.is_a_copy:
            return
        self.registry.close(timeout)
        for part in (self.residency, self.ports, self._pipeline_thread, self._timer, self.cache):
            if part is not None:
                part.close()

    def forked(self, parent: int) -> None:
        """Refuse every use, in a forked child. The parent's models are not freed."""
        self.registry.forked(parent)

    # Which model

    def model(self, name: str, version: str | int | None = None) -> LoadedModel:
        """Return a loaded model, by default its highest version. Raises ModelNotFound, or
        ModelNotReady before its first load is complete."""
        return self.registry.find(name, version)

    def names(self) -> set[str]:
        """Return the names of all models, loaded or not. ModelNotReady while these are unknown."""
        return self.registry.names()

    def models(self) -> list[LoadedModel]:
        """Return the models that can be called."""
        return self.registry.models()

    def not_ready(self) -> dict[str, str]:
        """Return, by model, why it cannot answer now, such as "loading"."""
        reasons = self.registry.unable()
        with self.registry.quietly() as life:
            # The first ones, if start() has not come so far yet.
            names = life.loading_first() or set(_names_of(self._to_load)) - life.ready_names()
        return {**dict.fromkeys(names, "loading"), **reasons}

    # Calls

    def infer(
        self,
        model: str,
        /,
        *args: Any,
        version: str | int | None = None,
        timeout: float | None = None,
        priority: int = 0,
        sequence_step: SequenceStep | None = None,
        **inputs: Any,
    ) -> Any:
        """Run one row, batched with other callers' rows. Returns what the code returns for it, or
        a dict of outputs. Blocks; safe from any thread. Raises WherryError.

        With an idle thread instance the model may run in the caller's thread. `version`: by
        default the highest. `timeout` in seconds. Pass inputs named like these by position.
        """
        loaded = self.registry.find(model, version)
        columns = loaded.row_columns(args, inputs)
        span = None if self.calls.tracing is None else self.calls.span(loaded)
        if loaded.runs_in_caller and timeout is None and not priority and span is None:
            outcome = loaded.runner.run_in_caller(columns)
            if outcome is not None:
                if isinstance(outcome, Failure):
                    raise outcome.as_exception()
                return loaded.row(outcome)
        response = self.calls.run(loaded, columns, 1, timeout, priority, sequence_step, span)
        return loaded.row(response.outputs)

    def infer_batch(
        self,
        model: str,
        /,
        *,
        version: str | int | None = None,
        timeout: float | None = None,
        priority: int = 0,
        **columns: Any,
    ) -> Columns:
        """Run many rows: columns in, columns out by output name. Blocks. Rows beyond
        max_batch_size run in several batches.
        """
        loaded = self.registry.find(model, version)
        checked, rows = loaded.inputs.of_columns(columns)
        run, span = self.calls.run, self.calls.span(loaded)
        outputs = run(loaded, checked, rows, timeout, priority, None, span).outputs
        return values_of(loaded, outputs)

    async def ainfer(
        self,
        model: str,
        /,
        *args: Any,
        version: str | int | None = None,
        timeout: float | None = None,
        priority: int = 0,
        sequence_step: SequenceStep | None = None,
        **inputs: Any,
    ) -> Any:
        """`infer` for asyncio. The row is copied; cancelling the task cancels the request."""
        loaded = self.registry.find(model, version)
        columns = await _off_loop(loaded, loaded.inputs.kept, args, inputs)
        answer = await self.calls.answer(
            loaded, columns, 1, timeout=timeout, priority=priority, sequence=sequence_step
        )
        return await _off_loop(loaded, loaded.row, answer.outputs)

    def map(
        self, model: str, rows: Iterable[Any], /, *, version: str | int | None = None
    ) -> Iterator[Any]:
        """Yield results in the order of `rows`, with enough in flight to fill batches.

        Lazy: consuming results consumes rows. The first error is raised in its place; closing the
        iterator cancels what is in flight.
        """
        return self.calls.map(self.registry.find(model, version), rows)

    def stream(
        self,
        model: str,
        /,
        *args: Any,
        version: str | int | None = None,
        timeout: float | None = None,
        priority: int = 0,
        sequence_step: SequenceStep | None = None,
        **inputs: Any,
    ) -> Iterator[Any]:
        """Yield the responses of a generator model; closing the iterator cancels the request."""
        loaded = self.registry.find(model, version)
        columns = loaded.row_columns(args, inputs)
        responses = self.calls.stream(
            loaded, columns, timeout=timeout, priority=priority, sequence=sequence_step
        )
        with closing(responses):
            for response in responses:
                yield loaded.row(response.outputs)

    async def astream(
        self,
        model: str,
        /,
        *args: Any,
        version: str | int | None = None,
        timeout: float | None = None,
        priority: int = 0,
        sequence_step: SequenceStep | None = None,
        **inputs: Any,
    ) -> AsyncIterator[Any]:
        """`stream` for asyncio."""
        loaded = self.registry.find(model, version)
        columns = await _off_loop(loaded, loaded.inputs.kept, args, inputs)
        responses = self.calls.responses(
            loaded, columns, 1, timeout=timeout, priority=priority, sequence=sequence_step
        )
        async with aclosing(responses):
            async for response in responses:
                yield await _off_loop(loaded, loaded.row, response.outputs)

    # For models that call models, and frontends

    def answer(
        self, loaded: LoadedModel, columns: Columns, rows: int, **options: Any
    ) -> Coroutine[Any, Any, InferResponse]:
        """One answer to checked columns, in an event loop.
        The options are those of LoadedModel.request. Cancelling the task cancels the request.
        """
        return self.calls.answer(loaded, columns, rows, takes_values=False, **options)

    def responses(
        self, loaded: LoadedModel, columns: Columns, rows: int, **options: Any
    ) -> AsyncGenerator[InferResponse, None]:
        """`answer` for a model that streams. Closing the generator cancels the request."""
        return self.calls.responses(loaded, columns, rows, **options)

    def port(self) -> LoopPort:
        """Return the running event loop's port into this runtime."""
        return self.ports.here()


def _names_of(models: Iterable[Any]) -> list[str]:
    """Names of models that are not built yet; a class stands for a model without arguments."""
    names = (getattr(one, "name", None) for one in models)
    return [
        name if isinstance(name, str) else getattr(one, "__name__", type(one).__name__)
        for name, one in zip(names, models, strict=True)
    ]


async def _off_loop(loaded: LoadedModel, function: Callable[..., R], *args: Any) -> R:
    """Call it; in a thread if it may have images, audio or files to encode or decode."""
    if loaded.has_media:
        return await asyncio.to_thread(function, *args)
    return function(*args)
