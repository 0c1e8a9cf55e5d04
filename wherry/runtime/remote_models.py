"""How do the models of owners become callable in a front's runtime?"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from wherry.remote.channel import ModelChannel
from wherry.remote.link import OwnerLink
from wherry.remote.messages import ModelCard, OwnedModels
from wherry.remote.model import RemoteModel
from wherry.remote.runner import ReplicaRunner
from wherry.runtime.lifecycle import ANY, Status
from wherry.runtime.loaded_model import LoadedModel
from wherry.runtime.runtime import Runtime
from wherry.values.errors import ModelNotFound

Version = tuple[str, str]

#: Kinds of one version that are remembered, so that an owner that comes back is not taken for new.
MOST_KINDS: Final = 8


@dataclass(slots=True, eq=False)
class _Kind:
    """One version as some owners have it: their cards are equal but for the number."""

    card: ModelCard
    loaded: LoadedModel
    runner: ReplicaRunner


@dataclass(slots=True, eq=False)
class _Told:
    """What one owner has said last; it holds for a while after its link has ended."""

    versions: set[Version] = field(default_factory=set)
    others: list[tuple[str, str, str, str]] = field(default_factory=list)


class RemoteModels:
    """Publishes in a front's runtime what the owners have. Everything happens in its loop.

    Owners with equal cards of a version share one loaded model. Of differing cards that which was
    first seen last is published, as long as an owner has it. A version that no owner has at the
    moment stays, and is not ready, until it is known that none will have it.
    """

    def __init__(self, runtime: Runtime, *, hold: float = 0.0) -> None:
        """`hold`: as ReplicaRunner has it."""
        self._runtime = runtime
        self._hold = hold
        self._port = runtime.port()
        #: Why no owner can be reached, if none can.
        self.no_owner = ""
        #: Of each version, in the order in which they were first seen.
        self._kinds: dict[Version, list[_Kind]] = {}
        self._published: dict[Version, _Kind] = {}
        #: By the owner's address.
        self._told: dict[str, _Told] = {}
        #: As they were told to the lifecycle.
        self._announced: list[str] = []

    def update(self, owner: str, link: OwnerLink, models: OwnedModels) -> None:
        """The owner at the end of this link has these models from now on."""
        cards = {card.number: card for card in models.cards}
        for number, channel in link.channels.items():
            if number not in cards:
                _runner_of(channel).remove(channel)
        for number, card in cards.items():
            if number not in link.channels:
                self._add(link, card)
        versions = {(card.config.name, card.config.version) for card in models.cards}
        self._told[owner] = _Told(versions, models.others)
        self.settle()

    def withdraw(self, link: OwnerLink) -> None:
        """The owner takes no more requests, or is gone."""
        for channel in link.channels.values():
            _runner_of(channel).remove(channel)
        self.settle()

    def forget(self, owner: str) -> None:
        """The owner with this address will not come back."""
        if self._told.pop(owner, None) is not None:
            self.settle()

    def settle(self) -> None:
        """Tell the runtime's lifecycle what can be called, and what cannot be and why."""
        for version in list(self._kinds):
            self._publish(version)
        others = [other for told in self._told.values() for other in told.others]
        loading = {name for name, _, state, _ in others if state == Status.LOADING}
        loading -= {name for name, _ in self._published}
        missing = dict.fromkeys(sorted(loading), "loading")
        if not self._told:
            loading, missing = {ANY}, {ANY: "loading"}
        if self.no_owner:
            missing = {ANY: self.no_owner}
        with self._runtime.registry.locked() as life:
            life.announced.expect(loading)
            life.announced.expect_no_more(self._announced)
            life.missing = missing
            for name, number, state, why in others:
                if state == Status.UNAVAILABLE and (name, number) not in self._published:
                    life.failed(name, [number] if number else [], why)
        self._announced = list(loading)

    # Kinds

    def _add(self, link: OwnerLink, card: ModelCard) -> None:
        kinds = self._kinds.setdefault((card.config.name, card.config.version), [])
        plain = msgspec.structs.replace(card, number=0)
        kind = next((one for one in kinds if one.card == plain), None)
        if kind is None:
            kind = self._made(plain)
            kinds.append(kind)
        channel = ModelChannel(link, card, kind.loaded.signature, kind.runner)
        link.channels[card.number] = channel
        kind.runner.add(channel)

    def _made(self, card: ModelCard) -> _Kind:
        model, clock = RemoteModel(card), self._runtime.clock
        runner = ReplicaRunner(card.config, self._port, clock=clock, hold=self._hold)
        loaded = LoadedModel(model, card.config, model.signature(), runner, clock)
        return _Kind(card, loaded, runner)

    def _publish(self, version: Version) -> None:
        """Publish the newest kind that an owner has, or none if no owner will have any."""
        kinds, published = self._kinds[version], self._published.get(version)
        owned = [kind for kind in kinds if kind.runner.has_owners]
        if owned and owned[-1] is not published:
            kind = self._published[version] = owned[-1]
            with self._runtime.registry.locked() as life:
                life.loading([kind.loaded])
                replaced = life.ready(kind.loaded)
                if replaced is not None:
                    life.freed(replaced)
        elif not owned and not any(version in told.versions for told in self._told.values()):
            del self._kinds[version]
            if self._published.pop(version, None) is not None:
                with (
                    suppress(ModelNotFound),  # this process stops: its runtime is closed already
                    self._runtime.registry.locked() as life,
                ):
                    for loaded in life.take_out(*version):
                        life.freed(loaded)
        elif len(kinds) > MOST_KINDS > len(owned):
            kinds.remove(next(one for one in kinds if one not in owned and one is not published))


def _runner_of(channel: ModelChannel) -> ReplicaRunner:
    runner = channel.desk
    assert isinstance(runner, ReplicaRunner)
    return runner
