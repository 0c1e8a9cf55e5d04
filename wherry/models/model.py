"""What does a user write, and what is one caller's view of it?

A decorated function stays the function it was; `infer`, `ainfer`, `map` and `stream` go through
the batcher of the Runtime that has the model loaded.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from wherry.models.config import FIELDS, ModelConfig, model_config
from wherry.models.signature import Signature, read_signature
from wherry.observability.custom_metrics import CustomMetrics
from wherry.observability.tracing import Span
from wherry.values.datatypes import Form
from wherry.values.errors import ConfigError, ModelNotReady
from wherry.values.request import Columns

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Device:
    """Where an instance should put its weights: `str(device)` is "cpu" or "cuda:1"."""

    kind: str = "cpu"
    index: int = 0
    #: "auto" has chosen it: if what the model needs cannot use it, the CPU will do.
    automatic: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


class Caller(Protocol):
    """What a model needs of the Runtime that has it loaded."""

    def infer(self, model: str, /, *args: Any, **inputs: Any) -> Any: ...
    async def ainfer(self, model: str, /, *args: Any, **inputs: Any) -> Any: ...
    def map(
        self, model: str, rows: Iterable[Any], /, *, version: str | int | None = None
    ) -> Iterator[Any]: ...
    def stream(self, model: str, /, *args: Any, **inputs: Any) -> Iterator[Any]: ...
    def astream(self, model: str, /, *args: Any, **inputs: Any) -> AsyncIterator[Any]: ...


#: What infer() takes beside the inputs: no input may have such a name.
RESERVED = ("version", "timeout", "priority", "sequence_step")


@dataclass(frozen=True, slots=True)
class Call:
    """The request that a pipeline works on: what its calls have of it."""

    #: The Runtime that runs it: the models it calls are that Runtime's.
    caller: Caller
    #: When it must be finished, by the runtime's clock; None: no deadline.
    deadline: float | None
    #: The tenant of the request.
    tenant: str
    span: Span


current_call: ContextVar[Call | None] = ContextVar("wherry_current_call", default=None)


class Model:
    """Subclass this where there is something to load.

    Class attributes named like the fields of ModelConfig configure it. `load` and `execute` run
    in the instance's thread or process; `execute` may run in any thread there, one at a time.
    It may write to its inputs, and returns arrays of its own each time: they go to the callers
    as they are.

    A model that pads its rows to the longest may say what a row weighs, by a method
    `cost(self, *row) -> float` with the inputs in their order (tokens, characters, pixels): rows
    of similar cost then go together. It runs in the caller's process and must be quick.
    """

    # Hooks: what a model may have beside `load`, `execute` and `unload`. All but `cost` are for
    # backends.

    #: What a row weighs; see above.
    cost: Callable[..., float] | None = None
    #: For classification: the name of each class of an output, by output.
    output_labels: Mapping[str, Sequence[str]] = {}
    #: What the model counts itself, over all its instances.
    custom_metrics: CustomMetrics | None = None
    #: The model's code may call other models: they have to end after it.
    calls_others: bool = False
    #: Makes an instance that is none of the usual ones, from its name, device, configuration and
    #: the Runtime.
    make_instance: Callable[[str, Device, ModelConfig, Any], Any] | None = None

    @property
    def variable_strings(self) -> Sequence[str]:
        """Inputs of strings whose rows must have one shape in a batch."""
        return ()

    def warmup_batches(self) -> Iterator[tuple[Columns, int]]:
        """Batches with their rows that each instance runs before it is ready, before the
        configuration's `warmup`."""
        return iter(())

    # What the package sets.

    #: The constructor's arguments: a worker process needs them to build the same model.
    constructed_with: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    #: The Runtime that loaded the model last.
    _caller: Caller | None = None
    _settings: Mapping[str, Any] = {}

    def __new__(cls, *args: Any, **kwargs: Any) -> Model:
        self = super().__new__(cls)
        self.constructed_with = (args, kwargs)
        return self

    def load(self, device: Device) -> None:
        """Load weights; runs once in each instance before it is ready."""

    def execute(self, *args: Any, **inputs: Any) -> Any:
        """Columns in, columns out: exactly one row out for each row in."""
        raise NotImplementedError

    def unload(self) -> None:
        """Free what `load` took."""

    def take(self) -> bool:
        """For an instance: may it load this very object? One at a time may, others make a copy."""
        mine = object()
        return self.__dict__.setdefault("_taken", mine) is mine  # atomic

    def give_back(self) -> None:
        """The instance that took it has unloaded it."""
        self.__dict__.pop("_taken", None)

    def serve_through(self, caller: Caller) -> None:
        """A Runtime has it loaded: `infer` and the like go there from now on."""
        self._caller = caller

    def serve_no_more_through(self, caller: Caller) -> None:
        """That Runtime has it unloaded."""
        if self._caller is caller:
            self._caller = None

    @functools.cached_property
    def name(self) -> str:
        return self.config().name

    def config(self, **overrides: Any) -> ModelConfig:
        """The model's configuration: its class attributes or decorator arguments, overridden."""
        settings = {
            key: getattr(type(self), key)
            for key in [*FIELDS, "device"]
            if key in dir(type(self))
            and not isinstance(getattr(type(self), key), functools.cached_property)
        }
        settings.update(self._settings)
        settings.update(overrides)
        name = settings.pop("name", None) or _snake_case(type(self).__name__)
        config = model_config(name, settings)
        self.check_signature(self.signature(config.name), config)
        return config

    def check_signature(self, signature: Signature, config: ModelConfig) -> None:
        """Do the code and its configuration go together? ConfigError if not."""
        _check_signature(signature, config)

    def signature(self, name: str = "") -> Signature:
        name = name or type(self).__name__
        if getattr(self.execute, "__func__", None) is Model.execute:
            raise ConfigError(f"model {name!r}: {type(self).__name__} has no execute() method")
        return read_signature(self.execute, name)

    # One caller's view: a row in, a row out, through the batcher.

    def infer(self, *args: Any, **inputs: Any) -> Any:
        """Run one row, in a batch with other callers' rows. Blocks; safe from any thread."""
        return self._loaded().infer(self.name, *args, **inputs)

    async def ainfer(self, *args: Any, **inputs: Any) -> Any:
        """`infer` for asyncio; cancelling the task cancels the request."""
        return await self._loaded().ainfer(self.name, *args, **inputs)

    def map(self, rows: Iterable[Any], *, version: str | int | None = None) -> Iterator[Any]:
        """Results for many rows in their order, many in flight at a time. A row is the value of
        the only input, or a dict with the inputs by name."""
        return self._loaded().map(self.name, rows, version=version)

    def stream(self, *args: Any, **inputs: Any) -> Iterator[Any]:
        """The responses of a generator model, as they come. Close the iterator to cancel."""
        return self._loaded().stream(self.name, *args, **inputs)

    def astream(self, *args: Any, **inputs: Any) -> AsyncIterator[Any]:
        """`stream` for asyncio."""
        return self._loaded().astream(self.name, *args, **inputs)

    def _loaded(self) -> Caller:
        call = current_call.get()
        caller = self._caller if call is None else call.caller
        if caller is None:
            raise ModelNotReady(
                f"model {self.name!r} is not loaded; call it inside `with wherry.Runtime(...):`"
            )
        return caller


class FunctionModel(Model, Generic[P, R]):
    """A function as a model. Calling it runs the function directly, without the batcher."""

    def __init__(self, function: Callable[P, R], settings: Mapping[str, Any]) -> None:
        self.function = function
        settings = dict(settings)
        if (cost := settings.pop("cost", None)) is not None:
            self.cost = cost
        self._settings = {"name": function.__name__, **settings}
        self.execute = function  # type: ignore[method-assign]
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)


class Pipeline(FunctionModel[P, R]):
    """An async function that calls models: one row at a time, many at a time in flight."""


@overload
def model(function: Callable[P, R], /) -> FunctionModel[P, R]: ...
@overload
def model(**settings: Any) -> Callable[[Callable[P, R]], FunctionModel[P, R]]: ...
def model(function: Callable[P, R] | None = None, /, **settings: Any) -> Any:
    """Make a function a model; the settings are the fields of ModelConfig, and `cost`: what a
    row weighs when it is padded to the longest (`cost=len` for texts; see Model).

    Mistakes in the annotations or settings are ConfigErrors here, at import.
    """

    def decorate(function: Callable[P, R]) -> FunctionModel[P, R]:
        made = FunctionModel(function, settings)
        made.config()
        return made

    return decorate if function is None else decorate(function)


@overload
def pipeline(function: Callable[P, R], /) -> Pipeline[P, R]: ...
@overload
def pipeline(**settings: Any) -> Callable[[Callable[P, R]], Pipeline[P, R]]: ...
def pipeline(function: Callable[P, R] | None = None, /, **settings: Any) -> Any:
    """Make an `async def` function that calls other models a model of its own."""

    def decorate(function: Callable[P, R]) -> Pipeline[P, R]:
        name = function.__name__
        if not _is_async(function):
            raise ConfigError(f"pipeline {name!r}: write `async def {name}`, and await the models")
        made: Pipeline[P, R] = Pipeline(function, settings)
        if not made.signature(name).row_wise:
            raise ConfigError(
                f"pipeline {name!r} takes one row: annotate single values (text: str),"
                " the models it calls do the batching"
            )
        made.config()
        return made

    return decorate if function is None else decorate(function)


def _check_signature(signature: Signature, config: ModelConfig) -> None:
    """Do the code and its configuration go together?"""
    where = f"model {config.name!r}"
    for spec in signature.inputs:
        if spec.name in RESERVED:
            raise ConfigError(
                f"{where}: parameter {spec.name!r} is also an argument of infer(); rename it"
            )
    if signature.row_wise:
        if config.max_batch_size > 1:
            raise ConfigError(
                f"{where}: max_batch_size is {config.max_batch_size}, but the code"
                " takes one row at a time; make its parameters columns, for example list[str]"
            )
    elif not config.max_batch_size:
        for spec in (*signature.inputs, *signature.outputs):
            if spec.form is not Form.ARRAY:
                raise ConfigError(
                    f"{where}: max_batch_size is 0, so there is no batch dimension, but"
                    f" {spec.name!r} is a column ({spec.form.value}); use arrays or single"
                    " values, or max_batch_size=1"
                )


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
