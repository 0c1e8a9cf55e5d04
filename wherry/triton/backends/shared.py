"""What do backends share: the import of a library, parameters of a configuration, and weights that
several instances in one process use?

A parameter is always text. The functions return None if it is not there, and raise ConfigError if
it is no such value.
"""

from __future__ import annotations

import importlib
import math
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from wherry.core.api import ConfigError
from wherry.triton.repository.triton_config import TritonConfig

_TRUTH: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def parameter_text(config: TritonConfig, name: str) -> str | None:
    found = config.parameters.get(name)
    return None if found is None else found.string_value


def parameter_truth(config: TritonConfig, name: str) -> bool | None:
    setting = parameter_text(config, name)
    if setting is None:
        return None
    if setting.strip().lower() not in _TRUTH:
        raise _wrong(config, name, "true or false", setting)
    return _TRUTH[setting.strip().lower()]


def parameter_whole(config: TritonConfig, name: str) -> int | None:
    setting = parameter_text(config, name)
    try:
        return None if setting is None else int(setting)
    except ValueError:
        raise _wrong(config, name, "a whole number", setting) from None


def parameter_number(config: TritonConfig, name: str) -> float | None:
    setting = parameter_text(config, name)
    try:
        value = None if setting is None else float(setting)
    except ValueError:
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise _wrong(config, name, "a number", setting)
    return value


def _wrong(config: TritonConfig, name: str, kind: str, setting: str | None) -> ConfigError:
    return ConfigError(f"model {config.name!r}: parameter {name!r} must be {kind}, not {setting!r}")


def library(name: str, model: str, install: str) -> Any:
    """The module of this name, imported for a model. ConfigError says what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"model {model!r}: it needs {name.partition('.')[0]}, which cannot be imported"
            f" ({error}): pip install {install}"
        ) from error


T = TypeVar("T")


class Shared(Generic[T]):
    """A value made by its first user and dropped by its last one. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._value: T | None = None

    def take(self, make: Callable[[], T]) -> T:
        """The value; the first caller makes it while others wait."""
        with self._lock:
            if self._value is None:
                self._value = make()
            self._users += 1
            return self._value

    @property
    def value(self) -> T:
        """The value, for a user between `take` and `give_back`."""
        assert self._value is not None
        return self._value

    def give_back(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._value = None
