"""How does a model that works in steps run, and how does each request's share of a step go out?

One copy of the model with what is active in it. It runs in a thread of the server or in a worker
process, so nothing here knows of requests, sockets or locks: a request is a number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns
from typing import Any, Final

from wherry.core.instances.device_errors import out_of_memory
from wherry.core.instances.executable import Executable
from wherry.core.instances.model_errors import model_errors
from wherry.core.instances.own_rows import gather_rows
from wherry.core.instances.worker_protocol import Join, Leave, Share, Stepped
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device
from wherry.core.models.rows import describe
from wherry.core.models.step_model import Step, StepModel
from wherry.core.values.errors import BadModelOutput, WorkerDied
from wherry.core.values.request import Columns

log = logging.getLogger("wherry")

#: Steps after one that found no memory until twice as many requests at once are tried again.
STEPS_OF_CAUTION: Final = 64


class StepLoop:
    """A step model and its active requests."""

    def __init__(
        self,
        model: StepModel,
        config: ModelConfig,
        device_lost: Callable[[str], None] = lambda _: None,
        *,
        in_worker: bool = False,
    ) -> None:
        self.model = model
        self._executable = Executable(model, config, device_lost, in_worker=in_worker)
        self.config = config
        self._active: dict[int, Any] = {}
        #: The most requests of one call that there is memory for, and how many steps that holds.
        self._most = 0
        self._steps_of_caution = 0

    @property
    def broken_device(self) -> str:
        return self._executable.broken_device

    @property
    def active_requests(self) -> int:
        return len(self._active)

    def load(self, device: Device) -> None:
        """Load the model and run its warm-up rows to their end."""
        self._executable.load_on(device)
        for row in self.config.warmup or self.config.examples[:1]:
            columns = gather_rows([self._executable.columns_of(row)], once=False)
            share = self.join(0, columns)
            while share is None or not (share.done or share.failure):
                share = self.step()[0]
            if share.failure is not None:
                raise share.failure.as_exception()

    def unload(self) -> None:
        self._executable.unload()

    def join(self, key: int, columns: Columns) -> Share | None:
        """Let a request join; returns its end if it cannot."""
        try:
            own = gather_rows([columns])
            self._active[key] = self._executable.call(self._executable.decoded(own), 1)
        except model_errors() as error:
            return Share(key, failure=self._executable.failure(error))
        return None

    def leave(self, key: int) -> None:
        if key in self._active:  # late is not wrong
            self.model.stop(self._active.pop(key))

    def progress(self, mail: Iterable[Join | Leave]) -> Stepped:
        """Let requests join and leave, then do one step of the active ones."""
        shares: list[Share] = []
        for message in mail:
            if isinstance(message, Leave):
                self.leave(message.key)
            elif (end := self.join(message.key, message.columns)) is not None:
                shares.append(end)
        active, started = self.active_requests, perf_counter_ns()
        if active:
            shares += self.step()
        taken = perf_counter_ns() - started
        return Stepped(shares, active, taken, dict(self.model.gauges()))

    def step(self) -> list[Share]:
        """One step for all that are active: in one call, or in several if there was no memory for
        that. What the model raises ends them all; WorkerDied, which means that it cannot go on,
        also ends this copy of it."""
        keys = list(self._active)
        if not self._steps_of_caution:
            return self._step_of(keys)
        self._steps_of_caution -= 1
        size = self._most
        if not self._steps_of_caution and 2 * size < len(keys):
            self._most, self._steps_of_caution = 2 * size, STEPS_OF_CAUTION
        parts = [keys[first : first + size] for first in range(0, len(keys), size)]
        return [share for part in parts for share in self._step_of(part)]

    # Parts

    def _step_of(self, keys: list[int]) -> list[Share]:
        """One call for these, or for their halves if there is no memory for all."""
        try:
            steps = self._checked(self.model.step([self._active[key] for key in keys]), len(keys))
            return [self._share(key, step) for key, step in zip(keys, steps, strict=True)]
        except WorkerDied:
            raise
        except model_errors() as error:
            failure = self._executable.failure(error)
            again = out_of_memory(error) and self._active.keys() >= {*keys}
            if again:
                error.__traceback__ = None  # whose frames hold what was computed
        if not again or len(keys) == 1:
            self._steps_of_caution = 0  # without it there may be memory for all others
            for key in keys:
                if key in self._active:
                    self._stop_quietly(self._active.pop(key))
            return [Share(key, failure=failure) for key in keys]
        half = len(keys) // 2
        self._most, self._steps_of_caution = half, STEPS_OF_CAUTION
        log.warning(
            "out of memory in a step: fewer requests at once from here on",
            extra={"model": self.config.name, "requests": len(keys)},
        )
        return self._step_of(keys[:half]) + self._step_of(keys[half:])

    def _checked(self, steps: Any, active: int) -> Sequence[Step[Any]]:
        if not isinstance(steps, Sequence) or len(steps) != active:
            count = len(steps) if hasattr(steps, "__len__") else f"a {type(steps).__name__}"
            raise BadModelOutput(
                f"model {self.config.name!r}: step() must return one wherry.Step for each of the"
                f" {active} active requests, in their order; it returned {count}"
            )
        return steps

    def _share(self, key: int, step: Step[Any]) -> Share:
        if step.error is not None:
            del self._active[key]
            return Share(key, failure=self._executable.failure(step.error))
        try:
            if type(step.responses) not in (list, tuple):
                self._check_responses(step.responses)
            responses = [self._executable.outputs.of(item, 1) for item in step.responses]
            if (own := self._executable.own) is not None:
                responses = [own(columns) for columns in responses]
        except BadModelOutput as error:
            if not step.done:
                self._stop_quietly(self._active[key])
            del self._active[key]
            return Share(key, failure=self._executable.failure(error))
        if step.done:
            del self._active[key]
        return Share(key, responses, step.done)

    def _check_responses(self, responses: object) -> None:
        """A text is not the list of its letters, and a generator may change what it has yielded."""
        if isinstance(responses, str | bytes) or not isinstance(responses, Sequence):
            raise BadModelOutput(
                f"model {self.config.name!r}: the responses of a wherry.Step must be a list, not"
                f" {describe(responses)}"
            )

    def _stop_quietly(self, state: Any) -> None:
        try:
            self.model.stop(state)
        except model_errors():  # the first error is the one to report
            pass
