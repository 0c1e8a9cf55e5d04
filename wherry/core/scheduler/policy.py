"""What does the dispatcher call on a scheduler?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from wherry.core.scheduler.decisions import Decisions
from wherry.core.scheduler.forecast import Forecast
from wherry.core.values.errors import WherryError
from wherry.core.values.request import Batch, InferRequest


class Dispatch(msgspec.Struct, frozen=True):
    """Run this batch on a free instance, and call `next_action` again."""

    batch: Batch


class Wait(msgspec.Struct, frozen=True):
    """Nothing to run yet; call again at `until`, or when something happens."""

    until: float


class Idle(msgspec.Struct, frozen=True):
    """Nothing waits; call again when a request arrives."""


Action = Dispatch | Wait | Idle


class QueueLength(Protocol):
    @property
    def queued_requests(self) -> int: ...

    @property
    def queued_rows(self) -> int: ...


class Scheduler(Protocol):
    """Decides what runs next. Knows no clock, lock or thread: every call brings the time.

    The caller holds one lock around every call. `next_action` is called only while an instance
    is free, after each arrival, each finished batch and each `Wait.until`.

    Instances have numbers: a sequence stays on the instance on which it has begun. What has a body
    here is right where nothing is learnt.
    """

    #: Requests are steps of sequences: each instance has its own, none is skipped unseen, and none
    #: is run a second time when its worker has died.
    runs_sequences: bool = False
    #: May anything expire, so that `next_deadline` must be called?
    may_expire: bool = False
    max_batch_size: int
    decisions: Decisions
    #: How long batches take, learnt from those that have run.
    forecast: Forecast
    queue: QueueLength

    def enqueue(self, request: InferRequest, now: float) -> bool:
        """Take a request in; False if the queue is full."""

    def requeue(self, request: InferRequest, now: float, *, alone: bool) -> None:
        """Take back a request whose worker died: with its batch, then it runs `alone` from now on,
        or before its batch ran, then it comes first again."""

    def cancel(self, request: InferRequest) -> bool:
        """Forget a waiting request; False if it does not wait here."""

    def expire(self, now: float) -> Sequence[InferRequest]:
        """Forget and return unanswered requests, waiting or running, whose deadline has passed."""

    def next_deadline(self) -> float | None:
        """The earliest moment at which `expire` has something to do."""

    def next_action(self, now: float, instance: int = 0, *, ahead: bool = False) -> Action:
        """Decide for this free instance. Call again after each `Dispatch`, for another one.
        Unless it `runs_sequences`, the answer is the same for each.

        `ahead`: for an instance that runs others. Then only a full batch is dispatched: waiting
        would neither add to it nor let another one come before it.
        """

    def reschedule(self, request: InferRequest, now: float) -> bool:
        """Queue a request again that its model reschedules (iterative sequences), and whose batch
        is about to be `finished`; False if that cannot be."""
        return False

    def broken(self) -> Sequence[tuple[InferRequest, WherryError]]:
        """Forget and return the steps that will never run since an earlier one did not, and
        why. To be called after `cancel`, `expire` and `instance_lost`."""
        return ()

    def instance_up(self, instance: int) -> None:
        """An instance is loaded (again)."""
        return None

    def resize(self, instances: int) -> None:
        """Plan for this number of instances from now on."""
        return None

    def instance_lost(self, instance: int) -> None:
        """An instance is gone, and what its model knew of its sequences."""
        return None

    def may_run_alone(self, now: float) -> bool:
        """Whether a single row that arrives while an instance is idle may run at once, in its
        caller's thread, without being queued."""
        return False

    def ran_alone(self, seconds: float, now: float) -> None:
        """Such a row has run for `seconds`, and requests have queued up meanwhile. Not called if
        none have: there is nothing to learn then, and the call would cost a lone caller."""
        return None

    def finished(
        self,
        requests: Sequence[InferRequest],
        seconds: float | None,
        now: float,
        *,
        batches: int = 1,
    ) -> None:
        """A batch has ended after `seconds`, or several equal ones with these `requests` in all
        after `seconds` each; None: there is nothing to learn from it (it was run in parts, or
        its worker died)."""

    def predicted_seconds(self, request: InferRequest) -> float:
        """How long this request would take to be answered if it came in now; 0.0 if not known, or
        if an instance is free."""

    def is_short(self, seconds: float) -> bool:
        """Whether `predicted_seconds` is certainly at most this for any request, found at little
        cost. `seconds` is the same each time."""
        return True

    def give_up(self, turns: float) -> Sequence[InferRequest]:
        """Forget the waiting requests without a timeout that more batches than these, of
        each instance, come before: the latest first."""
        return ()

    def head(self) -> tuple[float, float] | None:
        """When the oldest waiting request came, and the seconds that its batch would take (0.0:
        not known); None if nothing waits."""

    def limit_rows(self, rows: int) -> None:
        """A larger batch did not find enough memory: form none with more rows from now on."""

    def explain(self) -> dict[str, Any]:
        """What was learnt and is planned, for people: the keys are in docs/reference/http.md."""

    def waiting(self) -> Sequence[InferRequest]:
        """Everything that waits. Looks at all of it: for what happens rarely."""

    def clear(self) -> Sequence[InferRequest]:
        """Forget and return everything that waits."""
