"""How does a front run the requests of a model whose code is elsewhere?

There is no queue here. A request that reaches the front goes to an owner at the end of the same
turn of the loop, and the owner's batcher sees it beside those of all other fronts.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, cast

from wherry.instances.runner import Refused, Runner
from wherry.models.config import ModelConfig
from wherry.observability.statistics import ModelStatistics
from wherry.remote.channel import Answer, ModelChannel
from wherry.remote.held import HeldRequests, no_owner
from wherry.remote.router import Router
from wherry.scheduler.door import late
from wherry.values.errors import Cancelled, ModelNotReady, SequenceLost, WherryError, WorkerDied
from wherry.values.load import Load
from wherry.values.reply import Reply, StreamReply, tell
from wherry.values.request import InferRequest, InferResponse
from wherry.workers.loop import LoopCalls

#: Owners that may have lost a request, or not been ready for it, before it fails.
MOST_LOSSES: Final = 1
#: Seconds past a deadline that an owner has to say so.
GRACE: Final = 0.25
#: In `request.run`: a response of the stream has reached its caller.
BEGUN: Final = object()


class ReplicaRunner(Runner):
    """Sends the requests of one model to the owners that have it."""

    #: The owner splits what is larger than its batches.
    takes_any_rows = True

    def __init__(
        self,
        config: ModelConfig,
        loop: LoopCalls,
        *,
        clock: Callable[[], float],
        random: Random | None = None,
        hold: float = 0.0,
    ) -> None:
        """For `hold` seconds after the last owner has gone, requests wait for another one."""
        super().__init__(config, clock=clock, statistics=ModelStatistics())
        self._loop = loop
        self.router = Router(random or Random())
        self._new: list[InferRequest] = []
        self._held = HeldRequests(config.name, loop, clock, self.fail, hold)
        #: The owner that must not get what is submitted now, as it had it.
        self._but: ModelChannel | None = None

    # Owners, in the loop

    def add(self, channel: ModelChannel) -> None:
        """An owner has the model from now on."""
        self.router.add(channel)
        self.readiness.loaded()
        if held := self._held.end():
            self.submit(held)

    def remove(self, channel: ModelChannel) -> None:
        """The owner takes nothing new but steps of its sequences, and answers what it has."""
        had = self.has_owners
        self.router.drain(channel)
        if had and not self.router:
            self._held.begin()

    @property
    def has_owners(self) -> bool:
        """Whether one takes new requests."""
        return bool(self.router)

    def lost(self, channel: ModelChannel, error: Exception) -> None:
        """The owner is gone. Send what it had to another one, unless a response has come."""
        self.remove(channel)
        self.router.remove(channel)
        requests = list(channel.requests.values())
        channel.requests = {}
        for request in requests:
            request.attempts += 1
        self._again(channel, requests, error)

    def _again(
        self, channel: ModelChannel, requests: Sequence[InferRequest], error: Exception
    ) -> None:
        """Send requests to another owner than the one that had them, or fail them."""
        again: list[InferRequest] = []
        elsewhere = self.router.has_another(channel) or self._held.takes()
        steps = Counter(one.sequence.id for one in requests if one.sequence is not None)
        for request in requests:
            request.queued = None
            if request.sequence is not None:
                # The first step is as new elsewhere, unless another one has come behind it.
                may = request.sequence.start and steps[request.sequence.id] == 1
                may = may and not self.router.takes(channel)
            else:
                may = request.run is not BEGUN
            if not elsewhere or not may or request.attempts > MOST_LOSSES:
                self.fail(request, _why_lost(self.config.name, request, error))
            elif not request.reply.settled:
                again.append(request)
        if again:
            self._but = channel
            self.submit(again)
            self._but = None

    # Life

    def start(self) -> None:
        """Do nothing: the owner has loaded it."""

    def wait_ready(self, timeout: float | None = None) -> None:
        """Return at once: the owner has it ready."""

    def close(self, timeout: float | None = 10.0) -> None:
        self.readiness.closing()
        self._fail_waiting(ModelNotReady(f"model {self.config.name!r} is unloading"))
        self.failures.close()
        self.readiness.unloaded()

    def not_ready_reason(self) -> str:
        if self.readiness.reason:
            return self.readiness.reason
        return "" if self.router else "no server has it at the moment"

    def _is_quiet(self) -> bool:
        return not self._held and not any(one.requests for one in self.router.channels)

    def _clear_queue(self) -> Sequence[InferRequest]:
        sent = [one for channel in self.router.channels for one in channel.requests.values()]
        return sent + self._held.end()

    # What is shown

    @property
    def queued_requests(self) -> int:
        return len(self._held) + sum(len(one.requests) for one in self.router.channels)

    def running(self) -> list[tuple[str, int, float]]:
        return []

    def load(self) -> Load:
        """What is here: the owners know what it takes."""
        return Load(ready=self.has_owners, running_rows=self.queued_requests)

    def explain(self) -> dict[str, Any]:
        return {
            "policy": "of two replicas the one that is predicted to answer first",
            "replicas": self.router.explain(self._clock()),
        }

    # Requests

    def submit(self, requests: Sequence[InferRequest]) -> None:
        if threading.get_ident() == self._loop.thread:
            super().submit(requests)
        else:
            self._loop.call(super().submit, requests)

    def _enqueue(self, request: InferRequest, now: float) -> WherryError | None:
        if not self.router and request.sequence is None and not self._held.takes():
            return no_owner(self.config.name)
        self._new.append(request)
        return None

    def _assign(self, now: float) -> list[InferRequest]:
        new, self._new = self._new, []
        return new

    def _hand_over(self, chosen: Sequence[InferRequest]) -> None:
        if not chosen:
            return
        now = self._clock()
        placed = self.router.spread(chosen, now, self._but)
        for channel, requests in placed.items():
            channel.send(requests, now)
        if sum(map(len, placed.values())) < len(chosen):
            self._held.add([one for one in chosen if one.queued is None])

    def _forget(self, request: InferRequest, error: WherryError) -> Sequence[Refused]:
        place = request.queued
        if place is not None:
            request.queued = None
            channel, id = cast(tuple[ModelChannel, int], place)
            self._loop.call(channel.cancel, id)
        return ()

    # Outcomes, in the loop

    def answered(self, channel: ModelChannel, answers: Sequence[Answer]) -> None:
        """These requests of a channel have ended."""
        self.router.ended(channel, sum([request.rows for request, _ in answers]))
        here: list[Reply[InferResponse]] = []
        for request, response in answers:
            request.queued = None
            reply = request.reply
            if response is not None and reply.claim():
                if reply.loop is self._loop:
                    reply.outcome = response
                    here.append(reply)
                else:
                    reply.deliver(response)
        tell(here)
        if not self.readiness.takes_requests:
            self.request_ended()

    def responded(
        self, channel: ModelChannel, request: InferRequest, response: InferResponse
    ) -> None:
        """An owner has sent one response of a stream."""
        self.router.heard(channel, self._clock())
        request.run = BEGUN
        reply = request.reply
        assert isinstance(reply, StreamReply)
        if not reply.send(response):
            unread = f"model {self.config.name!r}: the caller left {reply.unread} responses unread"
            self.fail(request, Cancelled(unread))

    def refused(
        self, channel: ModelChannel, requests: Sequence[InferRequest], error: WherryError
    ) -> None:
        """An owner has answered these with an error."""
        self.router.ended(channel, sum([request.rows for request in requests]))
        if isinstance(error, ModelNotReady):  # nothing was run: another one may be ready
            if self.router.takes(channel):  # else this one will not be asked again
                for request in requests:
                    request.attempts += 1
            self._again(channel, requests, error)
            return
        for request in requests:
            request.queued = None
            self.fail(request, error)

    def give_up_late(self, channel: ModelChannel) -> None:
        """Fail the requests that are past their deadlines: the owner does, unless it hangs."""
        now = self._clock()
        for request in list(channel.requests.values()):
            if request.deadline is not None and request.deadline + GRACE < now:
                self.fail(request, late(self.config.name, now - request.enqueued_at))

    def reported(self, channel: ModelChannel, load: Load, yours: int) -> None:
        """An owner has told its load."""
        self.router.reported(channel, load, yours, self._clock())


def _why_lost(model: str, request: InferRequest, error: Exception) -> WherryError:
    """The error of a request that is not sent to another owner."""
    if isinstance(error, WherryError):
        return error
    if request.sequence is not None:
        return SequenceLost(f"model {model!r}: the server with this sequence is gone; begin anew")
    what = "the stream broke off" if request.run is BEGUN else "the request was not answered"
    why = f" ({error})" if str(error) else ""
    return WorkerDied(f"model {model!r}: {what}: the server that ran it is gone{why}")
