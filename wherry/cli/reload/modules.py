"""How is a module imported again, such that a mistake in it costs nothing?"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import linecache
import sys
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from wherry.cli.reload.sources import Sources


def loaded_from(folders: Set[Path]) -> dict[Path, list[ModuleType]]:
    """The imported modules whose files lie directly in these folders."""
    found: dict[Path, list[ModuleType]] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name != "__main__" and (path := Path(file).resolve()).parent in folders:
            found.setdefault(path, []).append(module)
    return found


@contextmanager
def imported_anew(files: Set[Path], changed: Set[Path], sources: Sources) -> Iterator[None]:
    """Within, what has changed of these files is imported again, and so is what imports it.
    Modules that have not come back by the end are as they were."""
    modules = loaded_from({file.parent for file in files})
    stale = [path for path in modules if path in files and sources.files([path]) & changed]
    dropped: dict[str, ModuleType] = {}
    for path in stale:
        for module in modules[path]:
            if sys.modules.get(module.__name__) is module:
                dropped[module.__name__] = sys.modules.pop(module.__name__)
    for path in changed:
        # Python holds a compiled file for fresh if its source has the same size and second.
        with contextlib.suppress(OSError, NotImplementedError):
            Path(importlib.util.cache_from_source(path)).unlink()
    importlib.invalidate_caches()
    linecache.checkcache()
    try:
        yield
    finally:
        for name, module in dropped.items():
            sys.modules.setdefault(name, module)
