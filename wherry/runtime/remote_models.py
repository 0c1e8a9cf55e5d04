"""How do the models of owners become callable in a front's runtime?"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from wherry.remote.channel import ModelChannel
from wherry.remote.link import OwnerLink
from wherry.remote.messages import ModelCard, OwnedModels
from wherry.remote.model import RemoteModel
from wherry.remote.runner import ReplicaRunner
from wherry.runtime.lifecycle import Status
from wherry.runtime.loaded_model import LoadedModel
from wherry.runtime.runtime import Runtime
from wherry.values.errors import ModelNotFound

Version = tuple[str, str]


class RemoteModels:
    """Publishes in a front's runtime what the owners have. Everything happens in its loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._port = runtime.port()
        #: What is published, and its card, whose number is that of no link.
        self._loaded: dict[Version, tuple[ModelCard, LoadedModel]] = {}
        #: Versions that are known and not ready, as they were told to the lifecycle.
        self._announced: list[str] = []

    def update(self, link: OwnerLink, models: OwnedModels) -> None:
        """The owner at the end of this link has these models from now on."""
        cards = {card.number: card for card in models.cards}
        for number, channel in list(link.channels.items()):
            if number not in cards and not channel.card.number < 0:
                self._withdraw(channel)
        for card in models.cards:
            if card.number not in link.channels:
                self._add(link, card)
        self._tell_others(models.others)

    def withdraw_all(self, link: OwnerLink) -> None:
        """The owner takes no more requests, or is gone."""
        for channel in link.channels.values():
            self._withdraw(channel)

    def _add(self, link: OwnerLink, card: ModelCard) -> None:
        loaded = self._publish(card)
        runner = loaded.runner
        assert isinstance(runner, ReplicaRunner)
        channel = ModelChannel(link, card, loaded.signature, runner)
        link.channels[card.number] = channel
        runner.add(channel)

    def _publish(self, card: ModelCard) -> LoadedModel:
        """The loaded model of a card: the one that is published, if it is of an equal card."""
        version = card.config.name, card.config.version
        plain = msgspec.structs.replace(card, number=0)
        published = self._loaded.get(version)
        if published is not None and published[0] == plain:
            return published[1]
        runtime = self._runtime
        model = RemoteModel(card)
        runner = ReplicaRunner(card.config, self._port, clock=runtime.clock)
        loaded = LoadedModel(model, card.config, model.signature(), runner, runtime.clock)
        self._loaded[version] = plain, loaded
        with runtime.registry.locked() as life:
            life.loading([loaded])
            replaced = life.ready(loaded)
            if replaced is not None:
                life.freed(replaced)
        return loaded

    def _withdraw(self, channel: ModelChannel) -> None:
        """Send this channel no more. What it has is still answered."""
        runner = channel.desk
        assert isinstance(runner, ReplicaRunner)
        runner.remove(channel)
        config = channel.card.config
        version = config.name, config.version
        published = self._loaded.get(version)
        if published is None or published[1].runner is not runner or runner.has_owners:
            return
        del self._loaded[version]
        with (
            suppress(ModelNotFound),  # this process stops: its runtime is closed already
            self._runtime.registry.locked() as life,
        ):
            for loaded in life.take_out(*version):
                life.freed(loaded)

    def _tell_others(self, others: list[tuple[str, str, str, str]]) -> None:
        """Tell the lifecycle of versions that are not ready, so that refusals are the owner's."""
        loading = [name for name, _, state, _ in others if state == Status.LOADING]
        with self._runtime.registry.locked() as life:
            life.announced.expect(loading)
            life.announced.expect_no_more(self._announced)
            for name, version, state, why in others:
                if state == Status.UNAVAILABLE:
                    life.failed(name, [version] if version else [], why)
        self._announced = loading
