"""How does Triton's core look at the models of this server? For `--triton-strict`."""

from __future__ import annotations

from wherry.frontends.v2.model_tensors import ModelTensors
from wherry.frontends.v2.shared_memory import SharedMemory
from wherry.frontends.v2.triton_core import CoreView, ViewOf
from wherry.frontends.v2.whole_numbers import number_before
from wherry.runtime.runtime import Runtime
from wherry.values.errors import WherryError


def views_of(runtime: Runtime, shared_memory: SharedMemory) -> ViewOf:
    """A view of each model as it is loaded now, made when it is asked for: after a refusal."""

    def view_of(name: str, version: str) -> CoreView | None:
        number = number_before(version)
        try:
            loaded = runtime.model(name, None if number is None else str(number))
        except WherryError:
            return None
        config = loaded.config
        return CoreView(
            ModelTensors(config, loaded.signature), config.max_batch_size, shared_memory.has
        )

    return view_of
