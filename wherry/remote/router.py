"""To which of the owners that have a model does each request go?"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec

from wherry.remote.channel import ModelChannel
from wherry.remote.choice import PREFIX_BYTES, Replica, ReplicaChoice
from wherry.remote.messages import ModelCard
from wherry.values.load import Load
from wherry.values.request import InferRequest, SequenceStep


class OwnerLoad(NamedTuple):
    """What an owner has to do of one model."""

    #: Its last report.
    load: Load
    #: Predicted seconds until a row that comes now begins to run.
    wait: float
    #: Rows that it was sent and that have not ended.
    rows: int


class Router:
    """The owners that have one model, with their channels. For the loop's thread.

    With a single owner nothing is chosen.
    """

    def __init__(self, random: Random) -> None:
        self._choice = ReplicaChoice(random)
        self._channels: dict[Replica, ModelChannel] = {}
        self._replicas: dict[ModelChannel, Replica] = {}
        #: Whether one takes new requests, which is asked for each.
        self._takes = False

    def __bool__(self) -> bool:
        """Whether one takes new requests."""
        return self._takes

    @property
    def channels(self) -> list[ModelChannel]:
        """Also of those that take no new requests."""
        return list(self._replicas)

    def add(self, channel: ModelChannel) -> None:
        """An owner has the model."""
        replica = self._choice.added(channel.link.name, channel.link.round_trip)
        self._channels[replica] = channel
        self._replicas[channel] = replica
        self._takes = True

    def drain(self, channel: ModelChannel) -> None:
        """An owner takes nothing new but the steps of its sequences."""
        replica = self._replicas.get(channel)
        if replica is not None:
            self._choice.drains(replica)
            self._count()
            self.ended(channel, 0)

    def remove(self, channel: ModelChannel) -> None:
        """An owner is gone, with all that it had."""
        replica = self._replicas.pop(channel, None)
        if replica is not None:
            del self._channels[replica]
            self._choice.removed(replica)
            self._count()

    def _count(self) -> None:
        self._takes = any(not replica.draining for replica in self._channels)

    def ended(self, channel: ModelChannel, rows: int) -> None:
        """So many rows of a channel have ended."""
        replica = self._replicas.get(channel)
        if replica is not None:
            self._choice.ended(replica, rows)
            if replica.draining and not replica.own and channel.card.config.sequence is None:
                self.remove(channel)

    def reported(self, channel: ModelChannel, load: Load, yours: int, now: float) -> None:
        """An owner has told its load, in which `yours` rows are this front's."""
        replica = self._replicas.get(channel)
        if replica is not None:
            self._choice.reported(replica, load, yours, now)

    def heard(self, channel: ModelChannel, now: float) -> None:
        """An owner has sent something."""
        replica = self._replicas.get(channel)
        if replica is not None:
            self._choice.heard(replica, now)

    def takes(self, channel: ModelChannel) -> bool:
        """Whether this one takes new requests."""
        replica = self._replicas.get(channel)
        return replica is not None and not replica.draining

    def has_another(self, channel: ModelChannel) -> bool:
        """Whether another one takes new requests."""
        return any(
            other is not channel and not replica.draining
            for replica, other in self._channels.items()
        )

    def spread(
        self, requests: Sequence[InferRequest], now: float, but: ModelChannel | None = None
    ) -> dict[ModelChannel, list[InferRequest]]:
        """The channel of each request, `but` this one. Those that no owner takes are left out."""
        if len(self._channels) == 1 and but is None and self:
            ((replica, channel),) = self._channels.items()
            for request in requests:
                if request.sequence is not None:  # another owner may come before its next step
                    self._note(request.sequence, replica, now)
            self._choice.sent(replica, sum([request.rows for request in requests]), now)
            return {channel: list(requests)}
        placed: dict[ModelChannel, list[InferRequest]] = {}
        for request in requests if self._channels else ():
            chosen = self._choose(request, now)
            if chosen is None or self._channels[chosen] is but:
                chosen = self._any(but)  # also as long as none has reported
                if chosen is not None and request.sequence is not None:
                    self._note(request.sequence, chosen, now)
            if chosen is not None:
                self._choice.sent(chosen, request.rows, now)
                placed.setdefault(self._channels[chosen], []).append(request)
        return placed

    def _note(self, step: SequenceStep, replica: Replica, now: float) -> None:
        """This replica has the sequence from now on, up to its last step."""
        if step.end:
            self._choice.sequence_ended(step.id)
        elif step.id:
            self._choice.sequence_is_on(step.id, replica, now)

    def _any(self, but: ModelChannel | None) -> Replica | None:
        """The one with the fewest rows of those that take new requests."""
        others = [
            replica
            for replica, channel in self._channels.items()
            if channel is not but and not replica.draining
        ]
        return min(others, key=lambda one: one.own + one.others, default=None)

    def _choose(self, request: InferRequest, now: float) -> Replica | None:
        step = request.sequence
        if step is not None and step.id:
            chosen = self._choice.choose_for_sequence(step.id, now, starts=step.start)
            if step.end:
                self._choice.sequence_ended(step.id)
            return chosen
        return self._choice.choose(request.rows, now, self._prompt(request))

    def _prompt(self, request: InferRequest) -> bytes:
        """How the text begins that a model of steps is to go on with."""
        card = next(iter(self._replicas)).card
        return _beginning(request, card) if card.steps else b""

    def loads(self, now: float) -> list[OwnerLoad]:
        """Of each owner that takes new requests."""
        return [
            OwnerLoad(
                replica.load,
                max(0.0, replica.answer_seconds(1, now) - replica.load.batch_seconds(1)),
                replica.own + replica.others,
            )
            for replica in self._channels
            if not replica.draining
        ]

    def explain(self, now: float) -> list[dict[str, Any]]:
        """Each owner, for people: its name, state, predicted wait in seconds, and rows."""
        return [
            {
                "replica": replica.name,
                "state": _state(replica, now),
                "wait_seconds": replica.answer_seconds(1, now),
                "rows": replica.own + replica.others,
                "own_rows": replica.own,
            }
            for replica in self._channels
        ]


def _state(replica: Replica, now: float) -> str:
    if replica.draining:
        return "draining"
    if replica.is_silent(now):
        return "silent"
    return "ready" if replica.load.ready else "not ready"


def _beginning(request: InferRequest, card: ModelCard) -> bytes:
    """The first bytes of the first input that holds text or JSON."""
    for spec in card.inputs:
        column = request.inputs.get(spec.name)
        if spec.form.is_bytes and column is not None and len(column):
            value = column[0]
            if isinstance(value, str):
                return value[:PREFIX_BYTES].encode(errors="replace")[:PREFIX_BYTES]
            if isinstance(value, bytes):
                return value[:PREFIX_BYTES]
            return msgspec.json.encode(value)[:PREFIX_BYTES]
    return b""
