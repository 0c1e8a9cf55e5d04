"""What do loaded models have in common whose requests run on instances?"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Generic

from wherry.core.instances.execution import Failure
from wherry.core.instances.life import InstanceLife, InstanceT
from wherry.core.instances.poison_watch import PoisonWatch
from wherry.core.instances.readiness import ModelState
from wherry.core.instances.runner import Runner
from wherry.core.instances.timer import Timer
from wherry.core.models.config import ModelConfig
from wherry.core.observability.statistics import ModelStatistics
from wherry.core.values.errors import (
    MayHaveRun,
    ModelNotReady,
    PoisonRequest,
    WherryError,
    WorkerDied,
)
from wherry.core.values.request import InferRequest

log = logging.getLogger("wherry")


class InstanceRunner(Runner, Generic[InstanceT]):
    """A runner with instances, which come and go, and whose workers may die with a request."""

    #: What an instance is in while it works, for people.
    turn = "batch"

    def __init__(
        self,
        config: ModelConfig,
        make_instances: Sequence[Callable[[], InstanceT]],
        *,
        clock: Callable[[], float],
        timer: Timer,
        statistics: ModelStatistics,
    ) -> None:
        super().__init__(config, clock=clock, statistics=statistics)
        self.life = InstanceLife(
            config,
            make_instances,
            self,
            self.readiness,
            clock=clock,
            timer=timer,
            statistics=statistics,
        )
        self._poisons = PoisonWatch(config.name, clock)

    def start(self) -> None:
        self.life.start()

    def wait_ready(self, timeout: float | None = None) -> None:
        self.life.wait_ready(timeout)

    def close(self, timeout: float | None = 10.0) -> None:
        """Stop the instances. What waits fails with ModelNotReady.

        What still runs after `timeout` seconds fails with it, too; its worker is killed, as is one
        that still unloads its model; a thread is left behind.
        """
        self.life.end()
        self._fail_waiting(ModelNotReady(f"model {self.config.name!r} is unloading"))
        self._stop()
        self.failures.close()
        self.life.join(timeout)
        for instance in self.life.unloading:
            fields = {"instance": instance.name, "after_seconds": timeout}
            log.warning("unload cut short", extra=fields)
        for instance in self.life.not_ended():
            self._abandon(instance, "the server is stopping")
        self.life.join(1.0)
        self.life.slots.makers.clear()  # which hold on to the model
        self.readiness.unloaded()

    def not_ready_reason(self) -> str:
        if self.readiness.reason:
            return self._why_not_ready()
        return self.life.not_ready_reason(self.turn)

    @property
    def instances(self) -> list[InstanceT]:
        return self.life.instances

    def next_try(self) -> float | None:
        """In how many seconds an instance is tried again, if all of them are away."""
        return self.life.next_try()

    def none_left(self, error: WherryError | None) -> None:
        """No instance can be started now: what waits fails."""
        self._fail_waiting(error or self._closed_error())

    def _closed_error(self) -> WherryError:
        error = ModelNotReady(f"model {self.config.name!r} is not ready: {self._why_not_ready()}")
        next_try = self.life.next_try()
        if next_try is not None:
            error.retry_after = next_try
        return error

    def _why_not_ready(self) -> str:
        """Why, and until when if that is known."""
        seconds = self.life.next_try()
        reason = self.readiness.reason
        if not seconds or self.readiness.state is not ModelState.UNAVAILABLE:
            return reason
        return f"{reason}; tried next in {seconds:.1f} s"

    # Requests that fail by their model, or that workers die with

    def failed(self, request: InferRequest, failure: Failure, instance: str) -> None:
        """Fail a request with what its model raised, and log that if the model is to blame."""
        if failure.is_the_models:
            self.failures.tell(
                failure.message, failure.traceback, request_id=request.id, instance=instance
            )
        self.fail(request, failure.as_exception())

    def _without_poison(self, requests: Sequence[InferRequest]) -> Sequence[InferRequest]:
        if not self._poisons.active:
            return requests
        good: list[InferRequest] = []
        for request in requests:
            refusal = self._poisons.refusal(request)
            if refusal is None:
                good.append(request)
                continue
            with self._lock:
                self.statistics.poisoned += 1
            self.fail(request, refusal)
        return good

    def _blame(
        self, instance: InstanceT, requests: Sequence[InferRequest], error: WorkerDied
    ) -> dict[InferRequest, PoisonRequest]:
        """Record that a worker died with `requests`. Returns the poison among them, with errors."""
        if not error.reached or self.life.closing:
            return {}
        poison, excused = self._poisons.died(requests, instance.number, error)
        self.life.excuse(excused)
        return poison

    def _final(
        self,
        request: InferRequest,
        error: WorkerDied,
        poison: Mapping[InferRequest, WherryError],
        *,
        once: str,
    ) -> WherryError | None:
        """Count a death against a request that the worker had. Why it fails; None: it is tried
        once more. `once`: what it is if it must not be."""
        request.attempts += error.reached
        if request in poison:
            return poison[request]
        if error.reached and not self.config.run_again:
            return MayHaveRun(
                f"{error}; the request may have run, and is not run again (run_again=False)"
            )
        if once:
            return WorkerDied(f"{error}; {once} is not run again")
        return error if request.attempts > 1 or self.life.closing else None

    def _go_on(self, waiting: Sequence[InferRequest] = ()) -> None:
        """An instance has come or gone: fail those in the queue that are poison, and run what else
        waits."""
        self._without_poison(waiting)
        with self._lock:
            chosen = self._arrived((), self._clock())
        self._hand_over(chosen)

    def serve(self, instance: InstanceT) -> None:
        self._go_on()  # what came while it was loaded
        instance.serve()

    # The body

    @abstractmethod
    def tick(self) -> None:
        """The timer: a wait is over, or a deadline has passed."""

    @abstractmethod
    def up(self, instance: InstanceT) -> None: ...

    def let_go(self, instances: Sequence[InstanceT]) -> None:
        raise NotImplementedError  # the number of a step model's instances does not change

    @abstractmethod
    def lost(self, instance: InstanceT, error: WorkerDied) -> bool: ...

    @abstractmethod
    def down(self, instance: InstanceT) -> None: ...

    @abstractmethod
    def _stop(self) -> None:
        """Have `serve` return for each instance, at once or after what it runs."""

    def _abandon(self, instance: InstanceT, why: str) -> None:
        """End what an instance does, as it takes too long."""
        instance.abort(why)


def begun(request: InferRequest) -> str:
    """What a stream is that must not run from its start again; "" if the request may."""
    return "a stream that has begun" if request.reply.has_begun else ""
