"""How does a model with its settings become a LoadedModel, ready to be started?

What runs it is chosen here: a pipeline, steps or batches; in threads or in processes; by which
scheduler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from wherry.core.instances.device_use import make_current
from wherry.core.instances.devices import Gpus, may_use_gpus
from wherry.core.instances.dispatcher import Dispatcher
from wherry.core.instances.executable import Executable
from wherry.core.instances.instance_slots import Maker
from wherry.core.instances.resources import Resources
from wherry.core.instances.runner import Runner
from wherry.core.instances.sequence_inputs import SequenceInputs, callers_signature
from wherry.core.instances.step_runner import StepRunner
from wherry.core.instances.thread import ThreadInstance
from wherry.core.instances.timer import Timer
from wherry.core.models.config import ModelConfig, SequenceBatching
from wherry.core.models.model import Device, FunctionModel, Model, ModelOfModels, Pipeline
from wherry.core.models.signature import Signature
from wherry.core.models.step_model import StepModel
from wherry.core.observability.statistics import ModelStatistics
from wherry.core.pipelines.pipeline import LoopThread, PipelineRunner, RowByRow
from wherry.core.runtime.cache import ResponseCache
from wherry.core.runtime.loaded_model import LoadedModel
from wherry.core.runtime.row_sizes import RowSize, by_cost, by_length
from wherry.core.runtime.shared_cache import SharedCache
from wherry.core.scheduler.dynamic_batcher import DynamicBatcher
from wherry.core.scheduler.policy import Scheduler
from wherry.core.scheduler.self_tuning_batcher import SelfTuningBatcher
from wherry.core.scheduler.sequence_batcher import SequenceBatcher
from wherry.core.values.errors import ConfigError


class Builder:
    """Makes LoadedModels for one runtime, of what they share: devices, resources, timer, cache."""

    def __init__(
        self,
        caller: Any,
        *,
        isolation: str,
        overrides: Mapping[str, Mapping[str, Any]],
        resources: Resources,
        cache: ResponseCache | SharedCache | None,
        timer: Timer,
        pipelines: LoopThread,
        clock: Callable[[], float],
    ) -> None:
        """`caller` is the Runtime: models that call models go through it. `isolation` is what
        "auto" means; `overrides` are settings by model name, over those of the model itself."""
        self._caller = caller
        self._isolation = isolation
        self._overrides = overrides
        self._resources = resources
        self._gpus = Gpus()
        self._shared_workers: dict[str, Any] = {}
        self._cache = cache
        self._timer = timer
        self._pipelines = pipelines
        self._clock = clock

    def build(self, model: Model, overrides: Mapping[str, Any]) -> LoadedModel:
        """A model, or a class of one, with `overrides` over all its settings. Nothing of it is
        loaded yet. ConfigError if its parts do not go together."""
        if isinstance(model, type):
            model = model()
        if not isinstance(model, Model):
            raise ConfigError(
                f"{model!r} is not a model: decorate a function with @wherry.model, or subclass"
                " wherry.Model"
            )
        config = model.config(**{**self._overrides.get(model.name, {}), **overrides})
        signature = model.signature(config.name)
        inputs = None
        if config.sequence is not None:
            inputs = SequenceInputs(config.name, config.sequence, signature)
            signature = callers_signature(signature, config.sequence)
        runner: Runner
        if isinstance(model, Pipeline | ModelOfModels):
            runner = self._pipeline(model, config)
        elif isinstance(model, StepModel):
            runner = self._steps(model, config, signature)
        else:
            runner = self._batches(model, config, signature, inputs)
        cache = None
        if config.response_cache:
            # What a pipeline calls, only its code knows; of an ensemble it is written down.
            _check_cacheable(config, signature, isinstance(model, Pipeline))
            if self._cache is not None:
                cache = self._cache.of(config.name, config.version, model)
        size = _row_size(model, config, signature)
        is_here = isinstance(model, Pipeline | ModelOfModels) or not self._elsewhere(model, config)
        if not is_here or config.response_cache:
            signature = signature.with_numpy()
        return LoadedModel(
            model, config, signature, runner, self._clock, inputs, cache, size, is_here=is_here
        )

    def _pipeline(
        self, model: Pipeline[..., Any] | ModelOfModels, config: ModelConfig
    ) -> PipelineRunner:
        return PipelineRunner(
            model.body(self._caller)
            if isinstance(model, ModelOfModels)
            else RowByRow(Executable(model, config)),
            config,
            self._caller,
            self._pipelines,
            clock=self._clock,
            timer=self._timer,
            statistics=ModelStatistics(),
        )

    def _steps(self, model: StepModel, config: ModelConfig, signature: Signature) -> StepRunner:
        return StepRunner(
            config,
            self._instances(model, config),
            clock=self._clock,
            timer=self._timer,
            statistics=ModelStatistics(),
            takes_parameters=model.takes_parameters or signature.input("parameters") is not None,
            most_active=partial(model.most_active, config),
        )

    def _batches(
        self,
        model: Model,
        config: ModelConfig,
        signature: Signature,
        inputs: SequenceInputs | None,
    ) -> Dispatcher:
        instances = self._instances(model, config)
        return Dispatcher(
            config,
            _scheduler(config, signature, len(instances), known_costs=callable(model.cost)),
            instances,
            clock=self._clock,
            timer=self._timer,
            statistics=ModelStatistics(),
            sequence_inputs=inputs,
            resources=self._resources,
        )

    def _instances(self, model: Model, config: ModelConfig) -> list[Callable[[], Any]]:
        """Makers of the instances, one for each; called when the instance is started."""
        make = self._maker(model, config)
        devices = self._gpus.place(config.instances, may_use=may_use_gpus(model))
        return [Maker(make, config.name, n, device) for n, device in enumerate(devices)]

    def _maker(self, model: Model, config: ModelConfig) -> Callable[[str, Device], Any]:
        own_kind = model.make_instance
        if own_kind is not None:
            return lambda name, device: own_kind(name, device, config, self._caller)
        if not self._elsewhere(model, config):
            return lambda name, device: _in_thread(name, device, model, config)
        # Here: not every runtime has processes.
        from wherry.core.instances.process import ProcessInstance
        from wherry.core.instances.source import source_of
        from wherry.core.instances.step_instance import StepProcess

        source_of(model, config.name)  # if it cannot be sent: a ConfigError now
        loop = self._caller.ports.workers.calls
        kind: Any = StepProcess if isinstance(model, StepModel) else ProcessInstance
        if self._isolation_of(config) == "shared":
            return lambda name, device: kind(
                name, device, model, config, loop, self._shared_worker(device)
            )
        return lambda name, device: kind(name, device, model, config, loop)

    def _shared_worker(self, device: Device) -> Any:
        from wherry.core.workers.shared_process import SharedWorker

        return self._shared_workers.setdefault(str(device), SharedWorker(str(device)))

    def _elsewhere(self, model: Model, config: ModelConfig) -> bool:
        """Does its code run in other processes?"""
        if model.make_instance is not None:
            return True
        if config.isolation == "auto" and sys.platform == "win32":
            return False  # worker processes need unix sockets
        return self._isolation_of(config) != "thread"

    def _isolation_of(self, config: ModelConfig) -> str:
        return self._isolation if config.isolation == "auto" else config.isolation


def _in_thread(name: str, device: Device, model: Model, config: ModelConfig) -> Any:
    make_current(device)
    # An object that still serves, here or in another runtime, must not be loaded again.
    own = model if isinstance(model, FunctionModel) or model.take() else _copy(model)
    if isinstance(own, StepModel):
        from wherry.core.instances.step_instance import StepThread

        return StepThread(name, device, own, config)
    return ThreadInstance(name, device, own, config)


def _check_cacheable(config: ModelConfig, signature: Signature, is_pipeline: bool) -> None:
    """ConfigError unless the model answers once, and from its inputs alone."""
    for refused, kind in (
        (signature.streams, "it streams"),
        (config.sequence is not None, "its requests are steps of sequences"),
        (is_pipeline, "it is a pipeline; let the models that it calls have it"),
    ):
        if refused:
            raise ConfigError(f"model {config.name!r}: response_cache cannot be on: {kind}")


def _row_size(model: Model, config: ModelConfig, signature: Signature) -> RowSize | None:
    """How the sizes of rows are known; None if they cannot matter."""
    if callable(model.cost):
        return by_cost(model.cost, signature)
    if model.cost not in (None, 1):
        raise ConfigError(
            f"model {config.name!r}: cost {model.cost!r} is neither a function that returns a"
            " row's size nor 1 (all rows cost the same)"
        )
    learns = model.cost is None and _tunes_itself(config, signature)
    return by_length(signature) if learns and not _has_own_runner(model) else None


def _has_own_runner(model: Model) -> bool:
    """Whether something else than batches runs it."""
    return isinstance(model, Pipeline | ModelOfModels | StepModel)


def _tunes_itself(config: ModelConfig, signature: Signature) -> bool:
    """Whether its batcher learns. Not for streams: their batches last as long as the caller
    reads, so there is nothing to learn from their durations."""
    chosen = config.max_queue_delay is not None or config.preferred_batch_sizes
    alone = not config.share_batches or config.max_batch_size <= 1
    return not (chosen or signature.streams or alone or config.sequence is not None)


def _scheduler(
    config: ModelConfig, signature: Signature, instances: int, *, known_costs: bool
) -> Scheduler:
    """SelfTuningBatcher, unless a delay or sizes are set or it cannot learn."""
    if config.sequence is not None:
        return _sequence_batcher(config, config.sequence)
    if _tunes_itself(config, signature):
        return SelfTuningBatcher(
            max_batch_size=config.max_batch_size,
            instances=instances,
            max_queue_size=config.max_queue_size,
            queue_policies=config.queue_policies,
            known_costs=known_costs,
        )
    alone = not config.share_batches or config.max_batch_size <= 1
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


def _copy(model: Model) -> Model:
    """Construct the model again, with the same arguments, what the program has changed since, and
    nothing loaded."""
    args, kwargs = model.constructed_with
    made = type(model)(*args, **kwargs)
    model.attribute_changes().apply(made)
    return made
