"""Which model does a path name?"""

from __future__ import annotations

from weakref import ref

from wherry.frontends.v2.http.entry import HttpEntry
from wherry.frontends.v2.http.infer_codec import ModelCodec
from wherry.runtime.loaded_model import LoadedModel


class ModelPath:
    """The model that one path names; looked up for each request, as it may be loaded again."""

    def __init__(self, entry: HttpEntry, name: str, version: str | None) -> None:
        self.entry = entry
        self.name = name
        self.version = version
        # Not kept alive: paths are remembered, and an unloaded model must give its memory back.
        self._coded: ref[LoadedModel] | None = None
        self._codec: ModelCodec | None = None

    def loaded(self) -> LoadedModel:
        """The model as it is loaded now. ModelNotFound if it is not."""
        return self.entry.runtime.model(self.name, self.version)

    def find(self) -> tuple[LoadedModel, ModelCodec]:
        """`loaded`, with its codec."""
        loaded = self.entry.runtime.model(self.name, self.version)
        codec = self._codec
        if codec is None or self._coded is None or self._coded() is not loaded:
            codec = self._codec = ModelCodec(
                loaded.config,
                loaded.signature,
                labels=loaded.model.output_labels,
                shared_memory=self.entry.common.shared_memory,
            )
            self._coded = ref(loaded)
        return loaded, codec
