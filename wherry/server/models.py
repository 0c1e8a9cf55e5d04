"""Which Runtime does a server serve, given models or a Runtime?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wherry.models.model import Model
from wherry.runtime.runtime import Runtime
from wherry.values.errors import ConfigError


def runtime_of(
    models: Sequence[Model | type[Model] | Runtime],
    isolation: str,
    overrides: Mapping[str, Mapping[str, Any]] | None,
) -> Runtime:
    """The one Runtime among `models`, or a new one of them."""
    if not models:
        raise ConfigError("a server needs at least one model, or a Runtime")
    if any(isinstance(model, Runtime) for model in models):
        (runtime,) = models if len(models) == 1 else (None,)
        if not isinstance(runtime, Runtime):
            raise ConfigError("give a server its models, or one Runtime that has them")
        return runtime
    made = [model() if isinstance(model, type) else model for model in models]
    return Runtime(*made, isolation=isolation, overrides=overrides)  # type: ignore[arg-type]
