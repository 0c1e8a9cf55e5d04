"""How does a model get other instances without being loaded again?

As in Triton: if only `instance_group` has changed, what stays serves on, further instances are
loaded beside it, and those that are too many end what they run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from wherry.core.api import ConfigError, Dispatcher, LoadedModel, LoadFailed, Runtime
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.repository.layout import Fingerprint, Found, fingerprint
from wherry.triton.repository.normalise import normalised
from wherry.triton.repository.triton_config import TritonConfig


@dataclass(frozen=True, slots=True)
class LoadedFrom:
    found: Found
    #: Of the configuration's files, and of all others. With the time of a change that no copy can
    #: set back: a model that is not loaded anew must be the same.
    configured: Fingerprint
    files: Fingerprint

    @classmethod
    def of(cls, found: Found) -> LoadedFrom:
        own: tuple[list[Any], list[Any]] = [], []
        for file in fingerprint(found.folder):
            inside = os.path.relpath(file[0], found.folder)
            with suppress(OSError):  # it has disappeared
                own[inside == "config.pbtxt" or inside.startswith("configs")].append(
                    (file[0], os.stat(file[0]).st_ctime_ns if file[1] else 0, file[2])
                )
        return cls(found, tuple(own[True]), tuple(own[False]))

    def is_touched(self, other: LoadedFrom) -> bool:
        """Whether nothing but the configuration is another one, or was written again."""
        same = self.files == other.files and self.found.versions == other.found.versions
        return same and (
            self.configured != other.configured or self.found.config != other.found.config
        )


class InstanceUpdate:
    """Gives the models of a runtime other instances. Any thread, one at a time for a model."""

    def __init__(self, runtime: Runtime, settings: Callable[[str], Mapping[str, Any]]) -> None:
        """`settings` are the operator's for a model of this name."""
        self._registry = runtime.registry
        self._builder = runtime.builder
        self._settings = settings

    def __call__(self, before: LoadedFrom | None, after: LoadedFrom) -> bool:
        """Whether only its instances were to change, and have: in all its versions that serve.
        ConfigError if one cannot be loaded. Blocks."""
        name = after.found.name
        if before is None or not after.is_touched(before):
            return False
        with self._registry.quietly() as life:
            serving = [one for one in life.all_ready() if one.name == name]
        # Clients send the configuration that they were told, which is complete.
        own = [one.model.triton for one in serving if isinstance(one.model, RepositoryModel)]
        if _rest(after.found.config) not in [_rest(one) for one in (before.found.config, *own)]:
            return False
        try:
            return bool(serving) and all(self._updated(one, after.found) for one in serving)
        except LoadFailed as error:
            raise ConfigError(f"load failed for model '{after.found.name}': {error}") from error

    def _updated(self, loaded: LoadedModel, found: Found) -> bool:
        """False if it has to be loaded for that."""
        runner, model = loaded.runner, loaded.model
        if not isinstance(runner, Dispatcher) or not isinstance(model, RepositoryModel):
            return False
        before = model.triton.instance_group
        model.use_groups(found.config.instance_group)
        try:
            config = self._builder.config_of(model, self._settings(found.name))
            same = replace(loaded.config, instances=config.instances) == config
            if same and self._builder.resize(runner, model, config):
                loaded.config = runner.config = config
                before = found.config.instance_group
                return True
        finally:
            model.use_groups(before)
        return False


def _rest(config: TritonConfig) -> TritonConfig:
    """A configuration, as Triton completes it, without its instances."""
    return msgspec.structs.replace(normalised(config), instance_group=[])
