"""What does a user write for a model with iteration-level batching?

A decoder, a diffusion loop, a streaming speech recogniser: each answer takes many calls of the
network, and each call (step) computes all active requests. Requests join and leave between steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, get_args, get_origin

from wherry.core.models.annotations import hints_of
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device, Model
from wherry.core.models.signature import Signature, read_signature
from wherry.core.values.errors import ConfigError

T = TypeVar("T")


@dataclass(slots=True)
class Step(Generic[T]):
    """Result of one step for one request.

    For example:

        wherry.Step(["a word"], done=True).done  # -> True
    """

    #: Responses to send to its caller now.
    responses: Sequence[T] = ()
    #: Whether the request is finished. The model drops its state; `stop` is not called.
    done: bool = False
    #: Error that ends only this request.
    error: Exception | None = None


class StepModel(Model):
    """A model that works in steps: subclass this.

        class Countdown(wherry.StepModel):
            max_batch_size = 8

            def start(self, n: int) -> list[int]:
                return [n]

            def step(self, active: list[list[int]]) -> Sequence[wherry.Step[int]]:
                for left in active:
                    left[0] -= 1
                return [wherry.Step([left[0]], done=left[0] == 0) for left in active]

        with wherry.Runtime(Countdown()) as runtime:
            list(runtime.stream("countdown", n=3))  # -> [2, 1, 0]

    At most `max_batch_size` requests are active; more wait. All methods run in one thread of the
    instance. An exception from `step` ends every active request: report the error of a single one
    as its `Step.error`. After an out-of-memory error `step` runs again with half of the requests,
    and so on; only a request that does not fit alone fails. So modify states last. If the model
    cannot continue, raise `wherry.WorkerDied`: it is loaded again, in a new worker if it has one.
    """

    # For backends.

    #: Whether `start` takes the request's own parameters, as `parameters`, beside its inputs.
    takes_parameters: bool = False

    def most_active(self, config: ModelConfig, device: Device) -> int:
        """Return how many requests may be active in an instance on this device."""
        return config.max_batch_size

    def start(self, *args: Any, **inputs: Any) -> Any:
        """Add a request. Returns its state, which is passed to `step`.

        The parameters are the model's inputs, one row each. An exception ends only this request.
        """
        raise NotImplementedError

    def step(self, active: list[Any]) -> Sequence[Step[Any]]:
        """Compute one step of all active requests. Returns a Step for each, in their order.

        The return annotation, `list[wherry.Step[str]]`, is the type of a response.
        """
        raise NotImplementedError

    def stop(self, state: Any) -> None:
        """Drop the state of a cancelled request."""

    def gauges(self) -> Mapping[str, float]:
        """Return numbers for statistics and metrics. Called after the load and each step; must be
        fast."""
        return {}

    def execute(self, *args: Any, **inputs: Any) -> Any:
        """Start a request: instances call this for any model."""
        return self.start(*args, **inputs)

    def signature(self, name: str = "") -> Signature:
        name = name or type(self).__name__
        for method in ("start", "step"):
            if getattr(type(self), method) is getattr(StepModel, method):
                raise ConfigError(f"model {name!r}: {type(self).__name__} has no {method}() method")
        returns = self._responses(name)
        return read_signature(self.start, name, returns=returns, one_row=True)

    def check_signature(self, signature: Signature, config: ModelConfig) -> None:
        """Raise ConfigError if the code and its configuration contradict each other. Each request
        is one row; `max_batch_size` counts requests."""
        if not config.max_batch_size:
            raise ConfigError(f"model {config.name!r}: max_batch_size must be at least 1")
        super().check_signature(signature, replace(config, max_batch_size=1))

    def _responses(self, name: str) -> Any:
        """The type of the answer: an iterator over step()'s responses."""
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
            f"model {name!r}: step() must declare the type of a response: annotate it"
            " -> list[wherry.Step[str]], or whatever type it is"
        )
