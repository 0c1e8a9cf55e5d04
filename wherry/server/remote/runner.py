"""How does a front run the requests of a model whose code is elsewhere?

There is no queue here. A request that reaches the front goes to the owner at the end of the same
turn of the loop, and the owner's batcher sees it beside those of all other fronts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from wherry.core.api import (
    Cancelled,
    InferRequest,
    InferResponse,
    Load,
    LoopCalls,
    MayHaveRun,
    ModelConfig,
    ModelNotReady,
    ModelStatistics,
    Refused,
    Reply,
    Runner,
    StreamReply,
    WherryError,
    WorkerDied,
    late,
    tell,
)
from wherry.server.remote.channel import Answer, ModelChannel

#: Seconds past a deadline that the owner has to say so.
GRACE: Final = 0.25
#: In `request.run`: a response of the stream has reached its caller.
BEGUN: Final = object()


class OwnedModelRunner(Runner):
    """Sends the requests of one model to its owner."""

    #: The owner splits what is larger than its batches.
    takes_any_rows = True

    def __init__(self, config: ModelConfig, loop: LoopCalls, *, clock: Callable[[], float]) -> None:
        super().__init__(config, clock=clock, statistics=ModelStatistics())
        self._loop = loop
        #: Takes new requests; None: the owner does not have the model.
        self.channel: ModelChannel | None = None
        #: It and those of loads before it, which have requests that are not answered.
        self._channels: list[ModelChannel] = []
        self._new: list[InferRequest] = []

    # The owner, in the loop

    def add(self, channel: ModelChannel) -> None:
        """The owner has the model, or has loaded it anew."""
        self.channel = channel
        self._channels = [one for one in self._channels if one.requests] + [channel]
        self.readiness.loaded()

    def remove(self, channel: ModelChannel) -> None:
        """The owner takes nothing new by this channel, and answers what it has."""
        if channel is self.channel:
            self.channel = None

    def lost(self, channel: ModelChannel, error: Exception) -> None:
        """The owner is gone."""
        self.remove(channel)
        self._channels = [one for one in self._channels if one is not channel]
        requests, channel.requests = list(channel.requests.values()), {}
        for request in requests:
            request.queued = None
            self.fail(request, _why_lost(self.config, request, error))

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
        return "" if self.channel is not None else "its owner does not have it at the moment"

    def _is_quiet(self) -> bool:
        return not any(one.requests for one in self._channels)

    def _clear_queue(self) -> Sequence[InferRequest]:
        return [one for channel in self._channels for one in channel.requests.values()]

    # What is shown

    @property
    def queued_requests(self) -> int:
        return sum(len(one.requests) for one in self._channels)

    def running(self) -> list[tuple[str, int, float]]:
        return []

    def load(self) -> Load:
        """What is here: the owner knows what it takes."""
        return Load(ready=self.channel is not None, running_rows=self.queued_requests)

    def explain(self) -> dict[str, Any]:
        return {"policy": "the process that owns the models batches the rows of all fronts"}

    # Requests

    def submit(self, requests: Sequence[InferRequest]) -> None:
        if threading.get_ident() == self._loop.thread:
            super().submit(requests)
        else:
            self._loop.call(super().submit, requests)

    def _enqueue(self, request: InferRequest, now: float) -> WherryError | None:
        if self.channel is None:
            return ModelNotReady(f"model {self.config.name!r} is not ready")
        self._new.append(request)
        return None

    def _assign(self, now: float) -> list[InferRequest]:
        new, self._new = self._new, []
        return new

    def _hand_over(self, chosen: Sequence[InferRequest]) -> None:
        if chosen:
            assert self.channel is not None  # as they were let in in this turn
            self.channel.send(chosen, self._clock())

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
        """The owner has sent one response of a stream."""
        request.run = BEGUN
        reply = request.reply
        assert isinstance(reply, StreamReply)
        if not reply.send(response):
            unread = f"model {self.config.name!r}: the caller left {reply.unread} responses unread"
            self.fail(request, Cancelled(unread))

    def refused(
        self, channel: ModelChannel, requests: Sequence[InferRequest], error: WherryError
    ) -> None:
        """The owner has answered these with an error."""
        again: list[InferRequest] = []
        reloaded = self.channel is not None and channel is not self.channel
        for request in requests:
            request.queued = None
            # Nothing was run: they have met the model's next load on their way.
            if reloaded and isinstance(error, ModelNotReady) and request.sequence is None:
                if not request.reply.settled:
                    again.append(request)
            else:
                self.fail(request, error)
        if again:
            self.submit(again)

    def give_up_late(self, channel: ModelChannel) -> None:
        """Fail the requests that are past their deadlines: the owner does, unless it hangs."""
        now = self._clock()
        for request in list(channel.requests.values()):
            if request.deadline is not None and request.deadline + GRACE < now:
                self.fail(request, late(self.config.name, now - request.enqueued_at))


def _why_lost(config: ModelConfig, request: InferRequest, error: Exception) -> WherryError:
    what = "the stream broke off" if request.run is BEGUN else "the request was not answered"
    why = f" ({error})" if str(error) else ""
    kind = WorkerDied if config.run_again else MayHaveRun
    return kind(f"model {config.name!r}: {what}: the process that ran it is gone{why}")
