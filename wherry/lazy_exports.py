"""How does a part of wherry offer some of its names to the others, each loaded when it is used?"""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(api: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a part's `api` module. `homes`: names of classes, functions and modules,
    separated by blanks, by the module or folder of the part that has them. Type checkers read the
    same names beside it; a test holds the two equal."""
    part = api.rpartition(".")[0]
    where = {name: f"{part}.{home}" for home, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {api!r} has no attribute {name!r}")
        home = importlib.import_module(where[name])
        if not hasattr(home, name):
            importlib.import_module(f"{where[name]}.{name}")
        found = getattr(home, name)
        setattr(sys.modules[api], name, found)
        return found

    return load
