"""Is the library that a backend needs installed, and what is to be installed if not?"""

from __future__ import annotations

import importlib
from typing import Any

from wherry.core.api import ConfigError


def library(name: str, model: str, install: str) -> Any:
    """The module of this name, imported for a model. ConfigError says what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"model {model!r}: it needs {name.partition('.')[0]}, which cannot be imported"
            f" ({error}): pip install {install}"
        ) from error
