"""Which loaded model and version is meant, and how is it called from this process?

The runtime builds the parts below it and knows no sockets. Everybody enters here: frontends have no
private door.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager, nullcontext
from queue import SimpleQueue
from typing import Any

import numpy as np

from wherry.instances.devices import Gpus
from wherry.instances.dispatcher import Dispatcher
from wherry.instances.executable import Executable, Failure
from wherry.instances.instance import Instance
from wherry.instances.resources import Resources
from wherry.instances.sequence_inputs import SequenceInputs, callers_signature
from wherry.instances.step_runner import StepRunner
from wherry.instances.thread import ThreadInstance
from wherry.instances.timer import Timer
from wherry.models.config import ModelConfig, SequenceBatching
from wherry.models.model import Call, Device, FunctionModel, Model, Pipeline, current_call
from wherry.models.rows import columns_of_rows
from wherry.models.signature import Signature
from wherry.models.step_model import StepModel
from wherry.observability.statistics import ModelStatistics
from wherry.observability.tracing import Span
from wherry.pipelines.ensemble import Ensemble, EnsembleModel
from wherry.pipelines.pipeline import LoopThread, PipelineRunner, RowByRow
from wherry.runtime.cache import ResponseCache
from wherry.runtime.forks import watch
from wherry.runtime.loaded_model import LoadedModel, Runner
from wherry.runtime.loop_port import LoopPort
from wherry.scheduler.dynamic_batcher import DynamicBatcher
from wherry.scheduler.policy import Scheduler
from wherry.scheduler.self_tuning_batcher import SelfTuningBatcher
from wherry.scheduler.sequence_batcher import SequenceBatcher
from wherry.values.errors import (
    ConfigError,
    InvalidRequest,
    ModelNotFound,
    ModelNotReady,
)
from wherry.values.reply import Reply, StreamReply
from wherry.values.request import Columns, InferRequest, InferResponse, SequenceStep

log = logging.getLogger("wherry")

#: What a call that no pipeline makes is traced in.
NO_SPAN = nullcontext()


class Runtime:
    """Models in this process, called from any thread or event loop.

        with wherry.Runtime(sentiment, Embedder()) as runtime:
            runtime.infer("sentiment", text="good")

    `isolation` is what "auto" means for the models: "thread", or "process" (as in a server).
    `overrides` are settings by model name, over those of the model itself. `resources` says how
    much there is of what models with `resources` share; else one batch at a time runs of them.
    With `cache_bytes` the answers of models with `response_cache` are remembered, in so many bytes.
    """

    def __init__(
        self,
        *models: Model,
        isolation: str = "thread",
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        resources: Mapping[str, int] | None = None,
        cache_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.isolation = isolation
        #: The ModelControl that loads into this runtime, if there is one: for models that ask for
        #: other models to be loaded.
        self.control: Any = None
        self.overrides = dict(overrides or {})
        self._resources = Resources(resources, clock)
        self._gpus = Gpus()
        self.cache = ResponseCache(cache_bytes) if cache_bytes else None
        self._to_load = models
        self._models: dict[str, dict[str, LoadedModel]] = {}
        self._loading: list[LoadedModel] = []
        #: Taken out or replaced, and not freed yet.
        self._retiring: list[LoadedModel] = []
        #: Names of models that will be loaded; "*": which ones is not known yet.
        self._expected = frozenset([getattr(m, "name", "") for m in models])
        #: What was here, or should have been, and is not: the versions of each name.
        self._unavailable: dict[str, set[str]] = {}
        self._lock = threading.Lock()
        self._timer = Timer(clock)
        self._pipeline_thread = LoopThread("wherry-pipelines")
        self._ports: dict[asyncio.AbstractEventLoop, LoopPort] = {}
        self._closed = False
        #: The process that this copy was forked from; None: it is no copy.
        self._parent: int | None = None
        watch(self)

    # Life

    def __enter__(self) -> Runtime:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self, on_ready: Callable[[LoadedModel, float], None] | None = None) -> Runtime:
        """Load the models given to the constructor. Blocks until all are ready, or raises."""
        self._refuse_a_copy()
        try:
            self._timer.start()
            self.load_all(self._to_load, on_ready=on_ready)
        except BaseException:
            self.close()
            raise
        self._to_load = ()
        self.expect_no_more(self._expected - {"*"})
        return self

    def load(self, model: Model, **overrides: Any) -> LoadedModel:
        """Load one model, warm it up and make it callable. Blocks; the others go on serving.

        Loading a version again replaces it without a gap: the old one serves until the new one
        is ready, then finishes what it has. Raises ConfigError or LoadFailed.
        """
        return self.load_all([model], **overrides)[0]

    def load_all(
        self,
        models: Iterable[Model],
        *,
        on_ready: Callable[[LoadedModel, float], None] | None = None,
        replaced: Callable[[LoadedModel], None] | None = None,
        **overrides: Any,
    ) -> list[LoadedModel]:
        """Load several models side by side; `on_ready(model, seconds)` tells of each. What they
        take the place of is retired here, or given to `replaced`, which must see to that."""
        self._refuse_a_copy()
        made = [self._make(model, overrides) for model in models]
        names = [(one.name, one.version) for one in made]
        for name, version in names:
            if names.count((name, version)) > 1:
                raise ConfigError(f"two models are called {name!r} (version {version})")
        started = self.clock()
        with self._lock:
            if self._closed:
                raise ModelNotReady("the runtime is closed")
            self._loading += made
        try:
            for loaded in made:
                if isinstance(loaded.runner, Dispatcher | StepRunner):
                    loaded.runner.start()
            for loaded in made:
                if isinstance(loaded.runner, Dispatcher | StepRunner):
                    loaded.runner.wait_ready()
                loaded.load_seconds = self.clock() - started
                if on_ready is not None:
                    on_ready(loaded, loaded.load_seconds)
        except BaseException:
            for loaded in made:
                loaded.runner.close()
            self._loaded(made)
            raise
        for loaded in made:
            old = self._install(loaded)
            if old is not None:
                (replaced or self._retire_soon)(old)
        self._loaded(made)
        return made

    def unload(
        self, name: str, version: str | None = None, *, drain_timeout: float | None = 30.0
    ) -> None:
        """Stop taking requests for `name` (all its versions), finish the running ones, free it.

        Requests still there after `drain_timeout` seconds fail. Blocks; safe from any thread.
        """
        for loaded in self.take_out(name, version):
            self.retire(loaded, drain_timeout)

    def take_out(self, name: str, version: str | None = None) -> list[LoadedModel]:
        """The first half of `unload`, at once: no new request finds them. `retire` must follow."""
        with self._lock:
            versions = self._models.get(name, {})
            chosen = [v for v in versions.values() if version in (None, v.version)]
            if not chosen:
                raise self._unknown(name, version)
            # Replaced, not changed: model() reads it without the lock.
            left = {v: loaded for v, loaded in versions.items() if loaded not in chosen}
            if left:
                self._models[name] = left
            else:
                del self._models[name]
            self._unavailable.setdefault(name, set()).update(v.version for v in chosen)
            self._retiring += chosen
        return chosen

    def expect(self, names: Iterable[str]) -> None:
        """Models of these names will be loaded ("*": it is not known yet which): until
        `expect_no_more` their callers are told to come back."""
        with self._lock:
            self._expected |= set(names)

    def expect_no_more(self, names: Iterable[str]) -> None:
        with self._lock:
            self._expected -= set(names)

    def note_unavailable(self, name: str, versions: Iterable[str]) -> None:
        """There are such versions, but they could not be loaded: callers are told so."""
        with self._lock:
            self._unavailable.setdefault(name, set()).update(versions)

    def retire(
        self, loaded: LoadedModel, drain_timeout: float | None, at_most: float | None = None
    ) -> None:
        """The second half: let what it has finish, free it. That takes at most its own
        `unload_timeout` and `at_most`; to close the runtime ends the wait, too."""
        loaded.runner.drain(drain_timeout)
        limits = [s for s in (loaded.config.unload_timeout, at_most) if s is not None]
        loaded.runner.close(min(limits, default=None))
        with self._lock:
            self._retiring = [one for one in self._retiring if one is not loaded]
        if loaded.cache is not None:
            loaded.cache.forget()
        still_loaded = any(m.model is loaded.model for m in self.models())
        if loaded.model._caller is self and not still_loaded:
            loaded.model._caller = None

    def drain(self, timeout: float | None = 30.0) -> bool:
        """Finish what is here, take no more. False if some of it was not finished in time."""
        ends_at = None if timeout is None else self.clock() + timeout
        # Pipelines first: they still need the models that they call.
        with self._lock:
            retiring = list(self._retiring)
        models = sorted([*self.models(), *retiring], key=_callers_first)
        drained = True
        for loaded in models:
            left = None if ends_at is None else max(0.0, ends_at - self.clock())
            drained = loaded.runner.drain(left) and drained
        return drained

    def close(self, timeout: float = 10.0) -> None:
        """End everything: no thread, process or descriptor is left. Waiting requests fail, and
        so do those that still run after `timeout` seconds; a worker that still unloads its model
        then is killed. May be called while models load. In a forked child it does nothing."""
        if self._parent is not None:
            return
        with self._lock:
            self._closed = True
            models = [m for versions in self._models.values() for m in versions.values()]
            models += [loaded for loaded in self._loading if loaded not in models]
            models += self._retiring
            self._models = {}
        models.sort(key=_callers_first)
        for _, group in itertools.groupby(models, key=_callers_first):
            self._retire_all(list(group), timeout)
        for port in self._ports.values():
            port.close()
        self._pipeline_thread.close()
        self._timer.close()

    def forked(self, parent: int) -> None:
        """In a forked child: refuse every use. The models stay the parent's, and none is freed."""
        self._parent = parent
        self._lock = threading.Lock()  # a thread of the parent may have held it
        self._of_the_parent = (
            self._models,
            self._loading,
            self._retiring,
        )  # not to be destroyed here
        self._models, self._loading, self._retiring = {}, [], []

    def _refuse_a_copy(self) -> None:
        if self._parent is not None:
            raise RuntimeError(
                f"this Runtime belongs to process {self._parent}, which this process was forked"
                " from, and cannot be used here: make a Runtime in the child, or start children by"
                " multiprocessing's 'spawn'"
            )

    def _retire_soon(self, replaced: LoadedModel) -> None:
        self.retire(replaced, 30.0)

    def _retire_all(self, models: Sequence[LoadedModel], timeout: float) -> None:
        """Side by side: each may take its time to unload."""
        threads = [
            threading.Thread(target=self.retire, args=(loaded, 0.0, timeout), daemon=True)
            for loaded in models[1:]
        ]
        for thread in threads:
            thread.start()
        self.retire(models[0], 0.0, timeout)
        for thread in threads:
            thread.join()

    # Which model

    def model(self, name: str, version: str | int | None = None) -> LoadedModel:
        """The loaded model; without a version the highest one.

        ModelNotFound if there is none, ModelNotReady if its first load is under way or to come.
        """
        if version is not None and type(version) is not str:
            version = _as_text(version)
        # Before _models: what is ready comes there first, then leaves here.
        expected, coming = self._expected, self._loading
        versions = self._models.get(name)
        if versions is None:
            self._refuse_a_copy()
            if name in expected or "*" in expected:
                raise _not_ready(name)
            raise self._away(name, version, coming)
        if version is None:
            if len(versions) == 1:
                return next(iter(versions.values()))
            return versions[max(versions, key=int)]
        loaded = versions.get(version)
        if loaded is None:
            raise self._away(name, version, coming)
        return loaded

    def names(self) -> set[str]:
        """Names of all models that are loaded, load or will be. ModelNotReady while it is not known
        yet which those are."""
        # Before _models, as in model().
        expected, coming = self._expected, self._loading
        if "*" in expected:
            raise ModelNotReady("the models are not ready: loading")
        return {*expected, *(one.name for one in coming), *self._models}

    def models(self) -> list[LoadedModel]:
        with self._lock:
            return [m for versions in self._models.values() for m in versions.values()]

    def not_ready(self) -> dict[str, str]:
        """Models that cannot answer now, and why; those still loading for the first time, too."""
        reasons = {m.name: reason for m in self.models() if (reason := m.not_ready_reason())}
        with self._lock:
            names = [loaded.name for loaded in self._loading]
            if not names:  # start() has not come so far yet
                names = [getattr(m, "__name__", type(m).__name__) for m in self._to_load]
            return {
                **dict.fromkeys((n for n in names if n not in self._models), "loading"),
                **reasons,
            }

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
        """Run one row, batched with whoever else calls: the value of the only output, or a dict.

        Blocks; safe from any thread. With an idle thread instance the model may run right here,
        in the caller's thread. `version` is the model's, without one the highest; `timeout` in
        seconds. An input that is called like one of these arguments is given by its place. Raises
        WherryError.
        """
        loaded = self.model(model, version)
        columns = loaded.row_columns(args, inputs)
        if loaded.runs_in_caller and timeout is None and not priority:
            outcome = loaded.runner.run_in_caller(columns)
            if outcome is not None:
                if isinstance(outcome, Failure):
                    raise outcome.as_exception()
                return loaded.row(outcome)
        return loaded.row(self._call(loaded, columns, 1, timeout, priority, sequence_step).outputs)

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
        """Run many rows of one caller: columns in, columns out by output name. Blocks.

        More rows than the model's max_batch_size are split and joined again.
        """
        loaded = self.model(model, version)
        checked, rows = columns_of_rows(loaded.signature, loaded.config, columns)
        return self._call(loaded, checked, rows, timeout, priority).outputs

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
        """`infer` for asyncio, from any event loop; cancelling the task cancels the request."""
        loaded = self.model(model, version)
        columns = loaded.row_columns(args, inputs)
        answer = await self.answer(
            loaded, columns, 1, timeout=timeout, priority=priority, sequence=sequence_step
        )
        return loaded.row(answer.outputs)

    def map(
        self, model: str, rows: Iterable[Any], /, *, version: str | int | None = None
    ) -> Iterator[Any]:
        """Results for many rows in their order, enough in flight to fill batches.

        Lazy: rows are taken as results are asked for. The first error is raised in its place;
        closing the iterator cancels what is in flight.
        """
        loaded = self.model(model, version)
        config = loaded.config
        window = 4 * max(1, config.max_batch_size) * sum(g.count for g in config.instances)
        window = max(16, window)
        if config.max_queue_size is not None:
            window = max(1, min(window, config.max_queue_size // 2))
        pending: deque[tuple[InferRequest, threading.Lock]] = deque()
        try:
            for row in rows:
                args, inputs = ((), dict(row)) if loaded.is_row(row) else ((row,), {})
                pending.append(self._begin(loaded, loaded.row_columns(args, inputs), 1))
                if len(pending) >= window:
                    answer = _wait(pending[0])
                    pending.popleft()
                    yield loaded.row(answer.outputs)
            while pending:
                answer = _wait(pending[0])
                pending.popleft()
                yield loaded.row(answer.outputs)
        finally:
            for request, _ in pending:
                loaded.cancel(request)

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
        """The responses of a generator model as they come. Closing the iterator cancels."""
        loaded = self.model(model, version)
        if self._pipeline_thread.is_here:
            self._refuse_to_wait(loaded)
        queue: SimpleQueue[InferResponse | None] = SimpleQueue()
        reply: StreamReply[InferResponse] = StreamReply(
            lambda _, response: queue.put(response), lambda _: queue.put(None)
        )
        request = loaded.request(
            loaded.row_columns(args, inputs),
            1,
            reply,
            timeout=timeout,
            priority=priority,
            sequence=sequence_step,
        )
        loaded.submit([request])
        try:
            while (response := queue.get()) is not None:
                reply.consumed()
                yield loaded.row(response.outputs)
            reply.result()
        finally:
            loaded.cancel(request)

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
        loaded = self.model(model, version)
        columns = loaded.row_columns(args, inputs)
        responses = self.responses(
            loaded, columns, 1, timeout=timeout, priority=priority, sequence=sequence_step
        )
        async with aclosing(responses):
            async for response in responses:
                yield loaded.row(response.outputs)

    async def answer(
        self, loaded: LoadedModel, columns: Columns, rows: int, **options: Any
    ) -> InferResponse:
        """For models that call models: one answer to checked columns, in an event loop.

        The options are those of LoadedModel.request. Cancelling the task cancels the request.
        """
        port = self.port()
        future: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()

        def done(reply: Reply[InferResponse]) -> None:
            if not future.done():
                if isinstance(reply.outcome, Exception):
                    future.set_exception(reply.outcome)
                else:
                    future.set_result(reply.outcome)

        reply: Reply[InferResponse] = Reply(lambda reply: port.call(done, reply))
        call = current_call.get()
        if call is not None:
            options = self._inherited(call, options)
        request = loaded.request(columns, rows, reply, **options)
        with NO_SPAN if call is None else self._traced(call, loaded, request):
            port.submit(loaded, request)
            try:
                return await future
            except asyncio.CancelledError:
                loaded.cancel(request)
                raise

    async def responses(
        self, loaded: LoadedModel, columns: Columns, rows: int, **options: Any
    ) -> AsyncGenerator[InferResponse, None]:
        """`answer` for a model that streams. Closing the generator cancels the request."""
        port = self.port()
        queue: asyncio.Queue[InferResponse | None] = asyncio.Queue()
        reply: StreamReply[InferResponse] = StreamReply(
            lambda _, response: port.call(queue.put_nowait, response),
            lambda _: port.call(queue.put_nowait, None),
        )
        call = current_call.get()
        if call is not None:
            options = self._inherited(call, options)
        request = loaded.request(columns, rows, reply, **options)
        with NO_SPAN if call is None else self._traced(call, loaded, request):
            port.submit(loaded, request)
            try:
                while (response := await queue.get()) is not None:
                    reply.consumed()
                    yield response
                reply.result()
            finally:
                loaded.cancel(request)

    def _inherited(self, call: Call, options: dict[str, Any]) -> dict[str, Any]:
        """A pipeline's deadline is that of its calls, too, unless theirs is earlier; and they are
        made on behalf of the same tenant."""
        options = {"tenant": call.tenant, **options}
        if call.deadline is not None:
            left = max(0.0, call.deadline - self.clock())
            own = options.get("timeout")
            options["timeout"] = left if own is None else min(own, left)
        return options

    @contextmanager
    def _traced(self, call: Call, loaded: LoadedModel, request: InferRequest) -> Iterator[None]:
        """A call of a pipeline is a branch of its tree."""
        request.follows = True
        request.span = span = Span(loaded.name, request.rows, self.clock())
        call.span.add(span)
        try:
            yield
        except BaseException as error:
            span.error = type(error).__name__
            raise
        finally:
            span.seconds = self.clock() - span.started
            if request.started_at is not None:
                span.queue_seconds = max(0.0, request.started_at - request.enqueued_at)

    def port(self) -> LoopPort:
        """The running event loop's way into this runtime."""
        loop = asyncio.get_running_loop()
        port = self._ports.get(loop)
        if port is None:
            port = LoopPort(loop)
            with self._lock:  # another loop's thread may be here as well
                ended = [other for other in self._ports if other.is_closed()]
                for other in ended:
                    self._ports[other].close()
                # Replaced, not changed: it is read without the lock.
                left = {other: p for other, p in self._ports.items() if other not in ended}
                self._ports = {**left, loop: port}
        return port

    # Parts

    def _begin(
        self,
        loaded: LoadedModel,
        columns: Columns,
        rows: int,
        timeout: float | None = None,
        priority: int = 0,
        sequence: SequenceStep | None = None,
    ) -> tuple[InferRequest, threading.Lock]:
        if self._pipeline_thread.is_here:
            self._refuse_to_wait(loaded)
        answered = threading.Lock()
        answered.acquire()
        request = loaded.request(
            columns,
            rows,
            Reply(lambda _: answered.release()),
            timeout=timeout,
            priority=priority,
            sequence=sequence,
        )
        loaded.submit([request])
        return request, answered

    def _refuse_to_wait(self, loaded: LoadedModel) -> None:
        """What needs the event loop of the pipelines cannot be waited for in it."""
        if loaded.is_pipeline or getattr(loaded.model, "calls_others", False):
            name = loaded.name
            raise RuntimeError(
                f"a pipeline cannot wait for model {name!r} without `await`, which would run in the"
                f" same event loop: write `await {name}.ainfer(...)`, or `async for ... in"
                f" {name}.astream(...)`"
            )

    def _call(
        self,
        loaded: LoadedModel,
        columns: Columns,
        rows: int,
        timeout: float | None,
        priority: int,
        sequence: SequenceStep | None = None,
    ) -> InferResponse:
        call = self._begin(loaded, columns, rows, timeout, priority, sequence)
        try:
            return _wait(call)
        except BaseException:
            loaded.cancel(call[0])  # a KeyboardInterrupt while it runs; else it is settled
            raise

    def _make(self, model: Model, overrides: Mapping[str, Any]) -> LoadedModel:
        if isinstance(model, type):
            model = model()
        if not isinstance(model, Model):
            raise ConfigError(
                f"{model!r} is no model: decorate a function with @wherry.model, or subclass"
                " wherry.Model"
            )
        config = model.config(**{**self.overrides.get(model.name, {}), **overrides})
        signature = model.signature(config.name)
        inputs = None
        if config.sequence is not None:
            inputs = SequenceInputs(config.name, config.sequence, signature)
            signature = callers_signature(signature, config.sequence)
        statistics = ModelStatistics()
        runner: Runner
        if isinstance(model, Pipeline | EnsembleModel):
            body = (
                Ensemble(model, self)
                if isinstance(model, EnsembleModel)
                else RowByRow(Executable(model, config))
            )
            runner = PipelineRunner(
                body,
                config,
                self,
                self._pipeline_thread,
                clock=self.clock,
                statistics=statistics,
            )
        elif isinstance(model, StepModel):
            runner = StepRunner(
                config,
                self._instances(model, config),
                clock=self.clock,
                timer=self._timer,
                statistics=statistics,
                takes_parameters=signature.input("parameters") is not None,
            )
        else:
            instances = self._instances(model, config)
            runner = Dispatcher(
                config,
                _scheduler(config, signature, len(instances)),
                instances,
                clock=self.clock,
                timer=self._timer,
                statistics=statistics,
                sequence_inputs=inputs,
                resources=self._resources,
            )
        cache = None
        if config.response_cache:
            # What a pipeline calls, only its code knows; of an ensemble it is written down.
            is_code = isinstance(runner, PipelineRunner) and not hasattr(model, "triton")
            _check_cacheable(config, signature, is_code)
            if self.cache is not None:
                cache = self.cache.of(config.name, config.version)
        return LoadedModel(model, config, signature, runner, self.clock, inputs, cache)

    def _instances(self, model: Model, config: ModelConfig) -> list[Callable[[], Any]]:
        own_kind = getattr(model, "make_instance", None)
        if own_kind is not None:
            return [
                lambda number=number, device=device: own_kind(  # type: ignore[misc]
                    f"{config.name}_{number}", device, config, self
                )
                for number, device in enumerate(self._gpus.place(config.instances))
            ]
        isolation = self.isolation if config.isolation == "auto" else config.isolation
        if config.isolation == "auto" and sys.platform == "win32":
            isolation = "thread"  # worker processes need unix sockets
        if isolation == "process":
            from wherry.instances.process import ProcessInstance
            from wherry.instances.source import source_of
            from wherry.instances.step_instance import StepProcess

            source_of(model, config.name)  # if it cannot be sent: a ConfigError now

            def make(number: int, device: Device) -> Instance:
                name = f"{config.name}_{number}"
                if isinstance(model, StepModel):
                    return StepProcess(name, device, model, config)
                return ProcessInstance(name, device, model, config)
        else:

            def make(number: int, device: Device) -> Instance:
                # An object that still serves, here or in another runtime, must not be loaded again.
                own = model
                if not isinstance(model, FunctionModel) and not model.take():
                    own = _copy(model)
                name = f"{config.name}_{number}"
                if isinstance(own, StepModel):
                    from wherry.instances.step_instance import StepThread

                    return StepThread(name, device, own, config)
                return ThreadInstance(name, device, own, config)

        return [
            lambda number=number, device=device: make(number, device)  # type: ignore[misc]
            for number, device in enumerate(self._gpus.place(config.instances))
        ]

    def _install(self, loaded: LoadedModel) -> LoadedModel | None:
        """Let it be called from now on; the one whose place it takes, which is to be retired."""
        with self._lock:
            closed = self._closed
            old = None
            if not closed:
                versions = self._models.get(loaded.name, {})
                old = versions.get(loaded.version)
                self._retiring += [old] if old is not None else []
                self._models[loaded.name] = {**versions, loaded.version: loaded}
        if closed:
            loaded.runner.close()
            raise ModelNotReady("the runtime is closed")
        loaded.model._caller = self
        # Else what still comes was meant for the old one.
        if old is not None and old.signature == loaded.signature:
            old.runner.successor = loaded.submit
        return old

    def _loaded(self, made: list[LoadedModel]) -> None:
        with self._lock:
            self._loading = [loaded for loaded in self._loading if loaded not in made]

    def _away(
        self, name: str, version: str | None, coming: Sequence[LoadedModel]
    ) -> ModelNotReady | ModelNotFound:
        """Why a model cannot be called."""
        if any(one.name == name and version in (None, one.version) for one in coming):
            return _not_ready(name)
        return self._unknown(name, version)

    def _unknown(self, name: str, version: str | None) -> ModelNotFound:
        which, why = f"{name!r}", "is not found"
        known = self._unavailable.get(name)
        if name in self._models and version is not None:
            which = f"{name!r} version {version}"
            if known is not None and version in known:
                why = "is not at ready state"
        elif known is not None:
            why = "has no available versions"
        return ModelNotFound(f"Request for unknown model: {which} {why}")


def _as_text(version: Any) -> str:
    """A version as the models know it."""
    if not isinstance(version, str | int | np.integer) or isinstance(version, bool):
        raise InvalidRequest(
            f"version must be a str or an int, not {type(version).__name__}; an input of that name"
            " is given by its place"
        )
    return str(version)


def _not_ready(name: str) -> ModelNotReady:
    return ModelNotReady(f"model {name!r} is not ready: loading")


def _check_cacheable(config: ModelConfig, signature: Signature, is_pipeline: bool) -> None:
    """Only what answers once, from its inputs alone."""
    for refused, kind in (
        (signature.streams, "it streams"),
        (config.sequence is not None, "its requests are steps of sequences"),
        (is_pipeline, "it is a pipeline; let the models that it calls have it"),
    ):
        if refused:
            raise ConfigError(f"model {config.name!r}: response_cache cannot be on: {kind}")


def _scheduler(config: ModelConfig, signature: Signature, instances: int) -> Scheduler:
    """Whoever sets a delay or sizes gets them; everybody else a batcher that needs none.

    A stream's batch lasts as long as its generator, which nobody can learn from.
    """
    if config.sequence is not None:
        return _sequence_batcher(config, config.sequence)
    chosen = config.max_queue_delay is not None or config.preferred_batch_sizes
    alone = not config.share_batches or config.max_batch_size <= 1
    if chosen or signature.streams or alone:
        return DynamicBatcher(
            # The first request of a batch is taken in any case, whatever its rows.
            max_batch_size=1 if alone else config.max_batch_size,
            max_queue_delay=config.max_queue_delay or 0.0,
            preferred_batch_sizes=() if alone else config.preferred_batch_sizes,
            max_queue_size=config.max_queue_size,
            instances=instances,
            queue_policies=config.queue_policies,
            wait_when_mixed=config.wait_when_mixed,
        )
    return SelfTuningBatcher(
        max_batch_size=config.max_batch_size,
        instances=instances,
        max_queue_size=config.max_queue_size,
        queue_policies=config.queue_policies,
    )


def _sequence_batcher(config: ModelConfig, sequence: SequenceBatching) -> SequenceBatcher:
    direct = sequence.strategy == "direct"
    # Without a minimum, Triton's direct batcher takes no notice of the delay.
    delayed = not direct or sequence.minimum_slot_utilization
    return SequenceBatcher(
        model=config.name,
        max_batch_size=config.max_batch_size,
        slots=0 if direct else sequence.max_candidate_sequences,
        max_queue_delay=(config.max_queue_delay or 0.0) if delayed else 0.0,
        minimum_slot_utilization=sequence.minimum_slot_utilization if direct else 0.0,
        preferred_batch_sizes=() if direct else config.preferred_batch_sizes,
        max_sequence_idle=sequence.max_sequence_idle,
        max_queue_size=config.max_queue_size,
        rows_are_slots=direct and any(one.kind == "ready" for one in sequence.controls),
        iterative=sequence.iterative,
    )


def _callers_first(loaded: LoadedModel) -> tuple[bool, bool]:
    """In which order models end: those that call others need them until then."""
    return (not loaded.is_pipeline, not getattr(loaded.model, "calls_others", False))


def _copy(model: Model) -> Model:
    """Another object of the same class and arguments, with nothing loaded yet."""
    args, kwargs = model._source
    return type(model)(*args, **kwargs)


def _wait(call: tuple[InferRequest, threading.Lock]) -> InferResponse:
    request, answered = call
    answered.acquire()
    return request.reply.result()
