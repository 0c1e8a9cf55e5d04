"""What does a user write for a model, and how does a caller use it?

A decorated function remains callable; `infer`, `ainfer`, `map` and `stream` go through the batcher
of the Runtime that has loaded it.
"""

from __future__ import annotations

import functools
import inspect
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    overload,
)

from wherry.core.models.changes import AttributeChanges, State, changes, class_attributes, states
from wherry.core.models.config import FIELDS, ModelConfig, model_config
from wherry.core.models.host_weights import move_weights
from wherry.core.models.rows import with_checked_samples
from wherry.core.models.settings import FunctionSettings, ModelSettings, SettingAttributes
from wherry.core.models.signature import Signature, read_signature
from wherry.core.observability.custom_metrics import CustomMetrics
from wherry.core.observability.tracing import Trace
from wherry.core.values.datatypes import Form
from wherry.core.values.errors import ConfigError, ModelNotReady
from wherry.core.values.request import Columns

if TYPE_CHECKING:
    from wherry.core.models.typed_calls import AsyncInfer, AsyncStream, Infer, Map, Stream

#: Held while a model object becomes an instance's own.
_TAKING = threading.RLock()

P = ParamSpec("P")
R = TypeVar("R")


class VariantStore(Protocol):
    """The variants of a model; they may come and go while it is served."""

    def names(self) -> Sequence[str]:
        """The current variants. May read files."""

    def may_have(self, name: str) -> bool:
        """Whether a variant of this name may exist, without reading files."""


@dataclass(frozen=True, slots=True)
class Device:
    """The device for an instance's weights: `str(device)` is "cpu" or "cuda:1".

    For example:

        str(wherry.Device("cuda", 1))  # -> 'cuda:1'
    """

    #: "cpu" or "cuda".
    kind: str = "cpu"
    #: The number of the GPU, from 0.
    index: int = 0
    #: Chosen by "auto": a model that cannot use it may use the CPU instead.
    automatic: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


class Caller(Protocol):
    """The calls of a Runtime that a model uses."""

    def infer(self, model: str, /, *args: Any, **inputs: Any) -> Any: ...
    async def ainfer(self, model: str, /, *args: Any, **inputs: Any) -> Any: ...
    def map(
        self, model: str, rows: Iterable[Any], /, *, version: str | int | None = None
    ) -> Iterator[Any]: ...
    def stream(self, model: str, /, *args: Any, **inputs: Any) -> Iterator[Any]: ...
    def astream(self, model: str, /, *args: Any, **inputs: Any) -> AsyncIterator[Any]: ...


#: Arguments of infer() beside the inputs, which therefore cannot be names of inputs.
RESERVED = ("version", "timeout", "priority", "sequence_step")


@dataclass(frozen=True, slots=True)
class PipelineCall:
    """The pipeline's request that the current task works on. Its calls inherit from it."""

    #: The Runtime that runs it, which also runs its calls.
    caller: Caller
    deadline: float | None
    tenant: str
    trace: Trace


current_call: ContextVar[PipelineCall | None] = ContextVar("wherry_current_call", default=None)


class Model(SettingAttributes):
    """A model with state to load: subclass this.

        class Embedder(wherry.Model):
            max_batch_size = 64

            def load(self, device: wherry.Device) -> None:
                self.weights = np.eye(4, dtype=np.float32)

            def execute(self, text: list[str]) -> Annotated[np.ndarray, wherry.FP32[4]]:
                return np.array([self.weights[len(one) % 4] for one in text])

        with wherry.Runtime(Embedder()) as runtime:
            runtime.infer("embedder", text="abcde").tolist()  # -> [0.0, 1.0, 0.0, 0.0]

    Class attributes named like fields of ModelConfig are its settings. `load` and `execute` run in
    the instance's thread or process; `execute` gets one call at a time, not always in the same
    thread. It owns its inputs and may modify, keep or return them; callers get a copy of any
    returned array that the model still references.

    A model that pads rows to the longest can define `cost(self, *row) -> float`, the size of a row
    (tokens, characters); rows of similar cost are then batched together. It runs in the caller's
    process, must be fast, and gets images, audio and files as bytes. Without it, text length is
    used once the longest text proves to determine how long batches take. `cost = 1`: all rows cost
    the same.
    """

    # Optional hooks. All but `cost` are for backends.

    #: A row's cost; see above.
    cost: Callable[..., float] | int | None = None
    #: For classification: the class names of each output.
    output_labels: Mapping[str, Sequence[str]] = {}
    #: Metrics that the model itself defines, over all its instances.
    custom_metrics: CustomMetrics | None = None
    #: Whether the model's code may call other models, which must then be unloaded after it.
    calls_others: bool = False
    #: Whether its configuration composes it of other models of a repository.
    is_ensemble: bool = False
    #: Makes an instance of a special kind from its name, device, configuration and the Runtime.
    make_instance: Callable[[str, Device, ModelConfig, Any], Any] | None = None

    #: The further names under which clients can request this model: adapters of a language model.
    variant_store: VariantStore | None = None

    def cache_identity(self) -> bytes | None:
        """Bytes that differ if its answers may differ: its files, its configuration. None if these
        do not determine its answers, as with code of a program. Reads its folder."""
        return None

    def variants(self) -> Sequence[str]:
        """Those names. May read files."""
        return () if self.variant_store is None else self.variant_store.names()

    def may_have_variant(self, name: str) -> bool:
        """Whether this may be one of `variants`, as far as is known without reading files."""
        return self.variant_store is not None and self.variant_store.may_have(name)

    @property
    def variable_strings(self) -> Sequence[str]:
        """String inputs whose rows must have the same shape within a batch."""
        return ()

    def warmup_batches(self) -> Iterator[tuple[Columns, int]]:
        """Batches with their numbers of rows, which each instance runs before `warmup` and before
        it is ready."""
        return iter(())

    # Set by the package.

    #: Labels of its metrics beside model and version.
    metric_labels: Mapping[str, str] = {}
    #: The constructor's arguments, from which a worker process builds the same model.
    constructed_with: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    _caller: Caller | None = None
    _settings: Mapping[str, Any] = {}
    #: Tensors that `to_host` has moved.
    _moved: Sequence[Any] = ()

    _wherry_class: ClassVar[Mapping[str, State]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._wherry_class = states(class_attributes(cls))

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Here, as a decorator may give a class its __init__ after its definition (dataclass).
        if getattr(cls.__init__, "made_for", None) is not cls:
            cls.__init__ = _recorded(cls, cls.__init__)  # type: ignore[method-assign]
        self = super().__new__(cls)
        self.__dict__["constructed_with"] = (args, kwargs)  # it may be a frozen dataclass
        return self

    def attribute_changes(self) -> AttributeChanges:
        """Return the attributes set since the constructor, up to the first load here."""
        with _TAKING:
            known: AttributeChanges | None = self.__dict__.get("_wherry_changes")
            if known is not None:
                return known
            return changes(self, self.__dict__.get("_wherry_made", {}), _OURS)

    def load(self, device: Device) -> None:
        """Load weights. Runs once in each instance before it is ready; may block.

        A `load` without a `device` parameter is called without one."""

    def execute(self, *args: Any, **inputs: Any) -> Any:
        """Compute one batch: columns in, columns out, one output row for each input row."""
        raise NotImplementedError

    def unload(self) -> None:
        """Free what `load` allocated."""

    def to_host(self) -> bool:
        """With `offload`: free device memory, keeping what `to_device` needs in host memory. Return
        False if that is impossible; the model is then unloaded.

        Moves torch modules and tensors found in attributes, including lists and dicts. Override it
        if addresses must not change (CUDA graphs)."""
        moved = move_weights(vars(self).values(), "cpu")
        self._moved = [*self._moved, *moved]  # for another instance that shares this object, too
        return bool(self._moved)

    def to_device(self, device: Device) -> None:
        """Undo `to_host`."""
        moved, self._moved = self._moved, ()
        move_weights(moved, str(device))

    def take(self) -> bool:
        """Reserve this object for one instance. False if it is in use: then the instance makes a
        copy."""
        with _TAKING:  # a copy needs the changes made before its load
            if "_taken" in self.__dict__:
                return False
            self.__dict__["_taken"] = True
            self.__dict__["_wherry_changes"] = self.attribute_changes()
            return True

    def give_back(self) -> None:
        """End the reservation of `take`."""
        self.__dict__.pop("_taken", None)

    def serve_through(self, caller: Caller) -> None:
        """Direct `infer` and the other calls to this Runtime, which has loaded the model."""
        self.__dict__["_caller"] = caller

    def serve_no_more_through(self, caller: Caller) -> None:
        """Undo `serve_through`, unless another Runtime has followed."""
        if self._caller is caller:
            self.__dict__["_caller"] = None

    @functools.cached_property
    def name(self) -> str:
        """The name that callers use."""
        return self.config().name

    def config(self, **overrides: Unpack[ModelSettings]) -> ModelConfig:
        """Return the configuration: class attributes or decorator arguments, then `overrides`.
        Raises ConfigError."""
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
        signature = self.signature(config.name)
        self.check_signature(signature, config)
        return with_checked_samples(config, signature)

    def check_signature(self, signature: Signature, config: ModelConfig) -> None:
        """Raise ConfigError if the code and its configuration contradict each other."""
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
                        f"{where}: max_batch_size is 0, which means no batch dimension, but"
                        f" {spec.name!r} is a column ({spec.form.value}); use arrays or single"
                        " values, or max_batch_size=1"
                    )

    def signature(self, name: str = "") -> Signature:
        """Return the inputs and outputs that `execute` declares. Raises ConfigError."""
        name = name or type(self).__name__
        if getattr(self.execute, "__func__", None) is Model.execute:
            raise ConfigError(f"model {name!r}: {type(self).__name__} has no execute() method")
        return read_signature(self.execute, name)

    # For callers: one row in, one row out, through the batcher. Type checkers see them with the
    # types of the model's code.

    if TYPE_CHECKING:
        infer: ClassVar[Infer]
        ainfer: ClassVar[AsyncInfer]
        map: ClassVar[Map]
        stream: ClassVar[Stream]
        astream: ClassVar[AsyncStream]
    else:

        def infer(self, *args: Any, **inputs: Any) -> Any:
            """Run one row, batched with other callers' rows. Blocks; safe from any thread.
            Raises WherryError."""
            return self._loaded().infer(self.name, *args, **inputs)

        async def ainfer(self, *args: Any, **inputs: Any) -> Any:
            """`infer` for asyncio. Cancelling the task cancels the request."""
            return await self._loaded().ainfer(self.name, *args, **inputs)

        def map(self, rows: Iterable[Any], *, version: str | int | None = None) -> Iterator[Any]:
            """Yield results in the order of `rows`, with many in flight. A row is the value of the
            only input, or a dict of inputs by name."""
            return self._loaded().map(self.name, rows, version=version)

        def stream(self, *args: Any, **inputs: Any) -> Iterator[Any]:
            """Yield the responses of a generator model. Blocks; closing the iterator cancels the
            request."""
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


#: Attributes of a model object that the package sets.
_OURS = frozenset(
    {"metric_labels", "constructed_with", "name", "_filled"}
    | {"_caller", "_moved", "_taken", "_wherry_made", "_wherry_changes"}
)


def _recorded(cls: type[Model], init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that notes what it leaves."""

    @functools.wraps(init)
    def recorded(self: Model, *args: Any, **kwargs: Any) -> None:
        if init is object.__init__:
            init(self)
        else:
            init(self, *args, **kwargs)
        if type(self) is cls:  # else a class below goes on
            self.__dict__["_wherry_made"] = states(vars(self))

    recorded.__dict__["made_for"] = cls
    return recorded


class FunctionModel(Model, Generic[P, R]):
    """A function as a model. Calling it runs the function directly, without the batcher."""

    def __init__(self, function: Callable[P, R], settings: FunctionSettings) -> None:
        self.function = function
        settings = settings.copy()
        if (cost := settings.pop("cost", None)) is not None:
            self.cost = cost
        self._settings = {"name": function.__name__, **settings}
        self.execute = function  # type: ignore[method-assign]
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._filled:
            self._fill(args, kwargs)
        return self.function(*args, **kwargs)

    @functools.cached_property
    def _filled(self) -> Mapping[str, Any]:
        """Columns with a default for each row."""
        signature = self.signature()
        return {} if signature.row_wise else signature.defaults

    def _fill(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            passed = inspect.signature(self.function).bind_partial(*args, **kwargs).arguments
            rows = len(next(iter(passed.values()), ()))
        except TypeError:  # the call itself raises it, with its reason
            return
        for name, default in self._filled.items():
            if name not in passed:
                kwargs[name] = [default] * rows

    if TYPE_CHECKING:

        def execute(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


class ModelOfModels(Model):
    """A model that passes each request through other models: it has no instances."""

    def body(self, calls: Any) -> Any:
        """A `pipelines.pipeline.Body` that answers its requests by `calls` of the Runtime."""
        raise NotImplementedError


class Pipeline(FunctionModel[P, R]):
    """An async function that calls models, once for each row and for many rows concurrently."""

    if TYPE_CHECKING:
        takes_one_row: bool

    def signature(self, name: str = "") -> Signature:
        return read_signature(self.function, name or self.function.__name__, one_row=True)


@overload
def model(function: Callable[P, R], /) -> FunctionModel[P, R]: ...
@overload
def model(
    **settings: Unpack[FunctionSettings],
) -> Callable[[Callable[P, R]], FunctionModel[P, R]]: ...
def model(function: Callable[P, R] | None = None, /, **settings: Unpack[FunctionSettings]) -> Any:
    """Turn a function into a model. It can still be called as a function.

        @wherry.model(max_batch_size=32)
        def shout(text: list[str]) -> list[str]:
            return [one.upper() for one in text]

        shout(["a", "b"])  # -> ['A', 'B']
        with wherry.Runtime(shout):
            shout.infer("a")  # -> 'A'

    `settings` are fields of ModelConfig, and `cost`: a function of a row (`cost=len`), or 1 (see
    Model). Raises ConfigError, at import, for invalid annotations or settings.
    """

    def decorate(function: Callable[P, R]) -> FunctionModel[P, R]:
        if isinstance(function, type):
            name = function.__name__
            raise ConfigError(
                f"model {name!r}: @wherry.model is for functions; write class {name}(wherry.Model),"
                " with `execute` for a batch and, if something must be loaded, `load`"
            )
        if not hasattr(function, "__name__"):  # functools.partial, an object that can be called
            kind = type(function).__name__
            raise ConfigError(f"@wherry.model is for functions, not {kind}; wrap it in a def")
        made = FunctionModel(function, settings)
        made.config()
        return made

    return decorate if function is None else decorate(function)


@overload
def pipeline(function: Callable[P, R], /) -> Pipeline[P, R]: ...
@overload
def pipeline(
    **settings: Unpack[FunctionSettings],
) -> Callable[[Callable[P, R]], Pipeline[P, R]]: ...
def pipeline(
    function: Callable[P, R] | None = None, /, **settings: Unpack[FunctionSettings]
) -> Any:
    """Turn an `async def` function that calls other models into a model.

        @wherry.pipeline
        async def each(text: str) -> list[str]:
            return await wherry.gather(sentiment.ainfer(one) for one in text.split("."))

        with wherry.Runtime(sentiment, each) as runtime:
            runtime.infer("each", text="good. bad")  # -> ['POSITIVE', 'NEGATIVE']

    `settings` are fields of ModelConfig. Raises ConfigError, at import, for invalid ones.
    """

    def decorate(function: Callable[P, R]) -> Pipeline[P, R]:
        name = function.__name__
        if not _is_async(function):
            raise ConfigError(f"pipeline {name!r}: write `async def {name}`, and await the models")
        made: Pipeline[P, R] = Pipeline(function, settings)
        made.config()
        return made

    return decorate if function is None else decorate(function)


def load_on(model: Model, device: Device) -> Any:
    """Have a model load, with the device if its `load` takes one. Returns what must be awaited if
    its `load` is async."""
    load: Callable[..., Any] = model.load
    return load(device) if inspect.signature(load).parameters else load()


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
