"""How do the models of a front's owner become callable in the front's runtime?"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from wherry.core.api import LoadedModel, ModelNotFound, Runtime, Status
from wherry.server.remote.channel import ModelChannel
from wherry.server.remote.link import OwnerLink
from wherry.server.remote.link_protocol import ModelCard, OwnedModels
from wherry.server.remote.model import RemoteModel
from wherry.server.remote.runner import OwnedModelRunner

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
        #: As they were told to the lifecycle.
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
        self._tell(models)

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

    def _tell(self, models: OwnedModels) -> None:
        """Tell the runtime's lifecycle what cannot be called, and why."""
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
