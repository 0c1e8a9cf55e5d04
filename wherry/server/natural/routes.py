"""Which model answers at a path of its own, as models come and go?"""

from __future__ import annotations

from wherry.core.api import ModelNotFound
from wherry.server.http.answers import EventStream, JsonLines
from wherry.server.http.exchange import Exchange
from wherry.server.http.route import Route
from wherry.server.natural.codec import NaturalCodec
from wherry.server.v2.http.entry import HttpEntry, ModelPath
from wherry.server.v2.http.generate import GenerateCall, StreamCall
from wherry.server.v2.http.infer_codec import ModelCodec


class NaturalRoutes:
    """The natural routes of one server."""

    def __init__(self, entry: HttpEntry) -> None:
        self._entry = entry
        self._generation = -1
        self._models: dict[str, NaturalModel] = {}
        self._routes: dict[str, Route] = {}

    def route(self, path: str) -> Route | None:
        """The route at this path as the models are now; it must be looked up for each request."""
        generation = self._entry.registry.generation
        if generation != self._generation:
            self._look_again()
            self._generation = generation  # as it was before: what changes meanwhile is seen next
        return self._routes.get(path)

    def _look_again(self) -> None:
        kept, self._models, self._routes = self._models, {}, {}
        for route, name in self._entry.registry.routes().items():
            old = kept.get(route)
            model = old if old is not None and old.name == name else NaturalModel(self._entry, name)
            self._models[route] = model
            self._routes[route] = Route({"POST": model}, "inference")


class NaturalModel:
    """The highest version of a model at its route: called with each exchange."""

    def __init__(self, entry: HttpEntry, name: str) -> None:
        self._path = ModelPath(entry, name, None)
        #: Of the version that was asked last, and its natural codec.
        self._codecs: tuple[ModelCodec, NaturalCodec] | None = None

    @property
    def name(self) -> str:
        return self._path.name

    def __call__(self, exchange: Exchange) -> None:
        entry = self._path.entry
        entry.admission.check()
        try:
            loaded, codec = self._path.find()
        except ModelNotFound:
            raise ModelNotFound("Not Found") from None  # it has gone just now
        known = self._codecs
        if known is None or known[0] is not codec:
            natural = NaturalCodec(entry.tensors(loaded), loaded.signature)
            known = self._codecs = codec, natural
        call = NaturalStream if loaded.signature.streams else GenerateCall
        call(entry, loaded, known[1], exchange).begin()


class NaturalStream(StreamCall):
    """A call of a generator at its natural route: events, or lines of JSON."""

    def events(self, exchange: Exchange) -> EventStream:
        self.output_format = self.codec.output_format(exchange.request.head)
        return (JsonLines if self.output_format.lines else EventStream)(exchange, self.consumed)
