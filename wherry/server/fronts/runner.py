"""How do the models of a front's owner become callable in the front, and how do requests get there?

There is no queue here. A request that reaches the front goes to the owner at the end of the same
turn of the loop, and the owner's batcher sees it beside those of all other fronts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import msgspec

from wherry.core.api import (
    InferRequest,
    InferResponse,
    Load,
    LoadedModel,
    LoopCalls,
    MayHaveRun,
    ModelConfig,
    ModelNotFound,
    ModelNotReady,
    ModelStatistics,
    Refused,
    Reply,
    Runner,
    Runtime,
    Status,
    StreamReply,
    WherryError,
    WorkerDied,
    admitted,
    late,
    notify,
)
from wherry.server.fronts.encoding import RemoteModel
from wherry.server.fronts.link import Answer, ModelChannel, OwnerLink
from wherry.server.fronts.link_protocol import ModelCard, OwnedModels

Version = tuple[str, str]


class RemoteModels:
    """Publishes in a front's runtime what the owner has. Everything happens in its loop.

    A version that is loaded anew without another card stays the same loaded model.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._port = runtime.port()
        #: Each version with its card, whose number is 0.
        self._published: dict[Version, tuple[ModelCard, LoadedModel]] = {}
        #: As they were reported to the lifecycle.
        self._announced: list[str] = []

    def update(self, link: OwnerLink, models: OwnedModels) -> None:
        """The owner at the end of this link has these models from now on."""
        cards = {card.number: card for card in models.cards}
        for number, channel in link.channels.items():
            if number not in cards:
                channel.runner.remove(channel)
        for number, card in cards.items():
            if number not in link.channels:
                self._add(link, card)
        versions = {(card.config.name, card.config.version) for card in models.cards}
        for version in self._published.keys() - versions:
            self._take_out(version)
        self._report_others(models)

    def _add(self, link: OwnerLink, card: ModelCard) -> None:
        version = card.config.name, card.config.version
        plain = msgspec.structs.replace(card, number=0)
        published, loaded = self._published.get(version, (None, None))
        if loaded is None or published != plain:
            model = RemoteModel(plain)
            runner = OwnedModelRunner(card.config, self._port, clock=self._runtime.clock)
            loaded = LoadedModel(model, card.config, model.signature(), runner, self._runtime.clock)
        channel = ModelChannel(link, card, loaded.signature, _own_runner(loaded))
        link.channels[card.number] = channel
        _own_runner(loaded).add(channel)
        if published != plain:
            self._published[version] = plain, loaded
            with self._runtime.registry.locked() as life:
                life.loading([loaded])
                replaced = life.ready(loaded)
                if replaced is not None:
                    life.freed(replaced)

    def _take_out(self, version: Version) -> None:
        del self._published[version]
        with (
            suppress(ModelNotFound),  # this process stops: its runtime is closed already
            self._runtime.registry.locked() as life,
        ):
            for loaded in life.take_out(*version):
                life.freed(loaded)

    def _report_others(self, models: OwnedModels) -> None:
        """Report to the runtime's lifecycle what cannot be called, and why."""
        loading = {name for name, _, state, _ in models.others if state == Status.LOADING}
        loading -= {name for name, _ in self._published}
        with self._runtime.registry.locked() as life:
            life.announced.expect(loading)
            life.announced.expect_no_more(self._announced)
            life.missing = dict.fromkeys(sorted(loading), "loading")
            for name, number, state, why in models.others:
                if state == Status.UNAVAILABLE and (name, number) not in self._published:
                    life.failed(name, [number] if number else [], why)
        self._announced = list(loading)


def _own_runner(loaded: LoadedModel) -> OwnedModelRunner:
    runner = loaded.runner
    assert isinstance(runner, OwnedModelRunner)
    return runner


#: Seconds past a deadline that the owner has to report it.
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

    def _refusal(self, request: InferRequest, now: float) -> WherryError | None:
        if self.channel is None:
            return ModelNotReady(f"model {self.config.name!r} is not ready")
        return None

    def _arrived(
        self, requests: Sequence[InferRequest], now: float
    ) -> tuple[list[InferRequest], list[Refused]]:
        return admitted(requests, self._refusal, now)

    def _hand_over(self, chosen: tuple[list[InferRequest], list[Refused]]) -> None:
        new, refused = chosen
        if new:
            assert self.channel is not None  # as they were let in in this turn
            self.channel.send(new, self._clock())
        self._fail_all(refused)

    def _forget(self, request: InferRequest, error: WherryError) -> Sequence[Refused]:
        place = request.queued
        if place is not None:
            request.queued = None
            channel, id = cast(tuple[ModelChannel, int], place)
            self._loop.call(channel.cancel, id)
        return ()

    # Outcomes, in the loop

    def answered(self, channel: ModelChannel, answers: Sequence[Answer]) -> None:
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
        notify(here)
        if not self.readiness.takes_requests:
            self.request_ended()

    def responded(
        self, channel: ModelChannel, request: InferRequest, response: InferResponse
    ) -> None:
        request.run = BEGUN
        reply = request.reply
        assert isinstance(reply, StreamReply)
        if not reply.send(response):
            self.fail(request, reply.dropped(self.config.name))

    def refused(
        self, channel: ModelChannel, requests: Sequence[InferRequest], error: WherryError
    ) -> None:
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
