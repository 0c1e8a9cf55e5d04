"""What does a parameter of a config.pbtxt say, which is always text?

Each returns None if the parameter is not there, and raises ConfigError if it is no such value.
"""

from __future__ import annotations

import math
from typing import Final

from wherry.core.api import ConfigError
from wherry.triton.repository.triton_config import TritonConfig

_TRUTH: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def text(config: TritonConfig, name: str) -> str | None:
    found = config.parameters.get(name)
    return None if found is None else found.string_value


def truth(config: TritonConfig, name: str) -> bool | None:
    setting = text(config, name)
    if setting is None:
        return None
    if setting.strip().lower() not in _TRUTH:
        raise _wrong(config, name, "true or false", setting)
    return _TRUTH[setting.strip().lower()]


def whole(config: TritonConfig, name: str) -> int | None:
    setting = text(config, name)
    try:
        return None if setting is None else int(setting)
    except ValueError:
        raise _wrong(config, name, "a whole number", setting) from None


def number(config: TritonConfig, name: str) -> float | None:
    setting = text(config, name)
    try:
        value = None if setting is None else float(setting)
    except ValueError:
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise _wrong(config, name, "a number", setting)
    return value


def _wrong(config: TritonConfig, name: str, kind: str, setting: str | None) -> ConfigError:
    return ConfigError(f"model {config.name!r}: parameter {name!r} must be {kind}, not {setting!r}")
