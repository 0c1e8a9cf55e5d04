"""What does a user write for a model that works in steps, which requests join and leave between?

A decoder, a diffusion loop, a recogniser that eats audio piece by piece: each answer takes many
calls of the network, and every call may serve all answers that are under way.

    class Countdown(wherry.StepModel):
        max_batch_size = 8

        def start(self, n: int) -> Counter:
            return Counter(n)

        def step(self, active: list[Counter]) -> list[wherry.Step[int]]:
            ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, get_args, get_origin

from wherry.models.annotations import hints_of
from wherry.models.config import ModelConfig
from wherry.models.model import Model
from wherry.models.signature import Signature, read_signature
from wherry.values.errors import ConfigError

T = TypeVar("T")


@dataclass(slots=True)
class Step(Generic[T]):
    """What one step did for one request."""

    #: For its caller, now: none, one or several.
    responses: Sequence[T] = ()
    #: The request is finished. The model has let go of its state; `stop` does not come.
    done: bool = False
    #: The request has failed: its caller gets this, its neighbours go on.
    error: Exception | None = None


class StepModel(Model):
    """Subclass this for a model that works in steps.

    `max_batch_size` is how many requests may be active; more wait. All methods run in one thread
    of the instance, one at a time. What `step` raises ends every active request, so report what
    concerns one request as its `Step.error`. A model that cannot go on at all raises
    `wherry.WorkerDied`: it is loaded anew, in a new worker if it has one.
    """

    def start(self, *args: Any, **inputs: Any) -> Any:
        """One request's row joins: its state, which `step` gets from now on.

        The parameters' annotations are the model's inputs, one row each. What it raises ends this
        request only.
        """
        raise NotImplementedError

    def step(self, active: list[Any]) -> Sequence[Step[Any]]:
        """One step of all that are active: what it did for each, in their order.

        The return annotation, `list[wherry.Step[str]]`, says what a response is.
        """
        raise NotImplementedError

    def stop(self, state: Any) -> None:
        """The caller of this one has left: let go of its state. It is not stepped again."""

    def gauges(self) -> Mapping[str, float]:
        """Numbers to show in statistics and metrics, asked for after a step. Must be quick."""
        return {}

    def execute(self, *args: Any, **inputs: Any) -> Any:
        """An instance starts a request through this, as it calls any model."""
        return self.start(*args, **inputs)

    def signature(self, name: str = "") -> Signature:
        name = name or type(self).__name__
        for method in ("start", "step"):
            if getattr(type(self), method) is getattr(StepModel, method):
                raise ConfigError(f"model {name!r}: {type(self).__name__} has no {method}() method")
        signature = read_signature(self.start, name, returns=self._responses(name))
        if not signature.row_wise:
            raise ConfigError(
                f"model {name!r}: start() takes one row: annotate single values (text: str), not"
                " columns"
            )
        return signature

    def check_signature(self, signature: Signature, config: ModelConfig) -> None:
        """Its requests are of one row each: `max_batch_size` counts those."""
        if not config.max_batch_size:
            raise ConfigError(f"model {config.name!r}: max_batch_size must be at least 1")
        super().check_signature(signature, replace(config, max_batch_size=1))

    def _responses(self, name: str) -> Any:
        """What a request's answer is: an iterator of step()'s responses."""
        try:
            hint = hints_of(self.step).get("return")
        except (NameError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"model {name!r}: an annotation of step() cannot be read: {error}"
            ) from None
        for part in get_args(hint):
            if get_origin(part) is Step:
                return Iterator[get_args(part)[0]]  # type: ignore[misc]
        raise ConfigError(
            f"model {name!r}: step() must say what a response is: annotate it"
            " -> list[wherry.Step[str]], or whatever type it is"
        )
