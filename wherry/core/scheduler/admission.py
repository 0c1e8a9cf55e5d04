"""Is a request queued, and does it go on waiting, by what its scheduler predicts?"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from wherry.core.models.config import ModelConfig
from wherry.core.scheduler.overload import MIN_QUEUED_BEFORE_REFUSAL, late, refusal, too_slow
from wherry.core.scheduler.policy import Scheduler
from wherry.core.values.errors import (
    Overloaded,
    QueueFull,
    QueueLimitExceeded,
    QueueTimeout,
    RequestTimeoutExpired,
    WherryError,
)
from wherry.core.values.request import InferRequest


class QueueAdmission:
    """For one model that runs batches. Pure; the dispatcher's lock is held.

    While less than `MIN_QUEUED_BEFORE_REFUSAL` requests are queued, only deadlines matter:
    `refusal` need not be called for other requests, and `give_up` gives up none.
    """

    def __init__(self, config: ModelConfig, scheduler: Scheduler) -> None:
        self._config = config
        self._scheduler = scheduler
        self._longest = config.max_queue_wait or None

    def refusal(self, request: InferRequest, now: float) -> Overloaded | None:
        """Why a request that comes now is rejected: its deadline cannot be met, or it would wait
        for longer than `max_queue_wait`."""
        scheduler, left = self._scheduler, None
        turns: float = 0.0
        within = inf
        if request.deadline is not None:
            left = request.deadline - now
        elif self._longest is None or request.follows or scheduler.is_short(self._longest):
            return None
        seconds = scheduler.predicted_seconds(request)
        if left is None:
            _, of_a_batch = scheduler.head() or (0.0, 0.0)
            turns = scheduler.queue.queued_requests
            if turns >= MIN_QUEUED_BEFORE_REFUSAL:
                turns = seconds / of_a_batch if of_a_batch else inf
            within = scheduler.forecast.turns.within(self._longest or inf)
        return refusal(
            self._config.name,
            seconds,
            left=left,
            longest=self._longest,
            turns=turns,
            within=within,
        )

    def full(self, request: InferRequest) -> WherryError:
        """The error of a request that the scheduler did not enqueue."""
        wait = self._scheduler.predicted_seconds(request) or 1.0
        name, queued = self._config.name, self._scheduler.queue.queued_requests
        if self._is_tritons(request):
            return QueueLimitExceeded(request.id, name, queued, wait)
        return QueueFull(name, queued, wait)

    def late(self, request: InferRequest, now: float) -> WherryError:
        """Why a request has expired in the queue: its own timeout is over, or the queue's."""
        waited = now - request.enqueued_at
        if request.deadline is not None and now >= request.deadline:
            return late(self._config.name, waited)
        kind = RequestTimeoutExpired if self._is_tritons(request) else QueueTimeout
        return kind(self._config.name, waited)

    def give_up(self) -> Sequence[tuple[InferRequest, WherryError]]:
        """After a batch: forget and return the requests that are now known to wait for longer than
        `max_queue_wait`, each with its error."""
        longest = self._longest
        if longest is None or self._scheduler.is_short(longest):
            return ()
        abandoned = self._scheduler.give_up(self._scheduler.forecast.turns.within(longest))
        return [(request, too_slow(self._config.name, longest)) for request in abandoned]

    def _is_tritons(self, request: InferRequest) -> bool:
        policy = self._config.queue_policy(request.priority)
        return policy is not None and policy.triton
