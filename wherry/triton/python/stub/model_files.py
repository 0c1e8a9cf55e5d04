"""How are a model's own files imported as they are now, without stale bytecode?"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from types import CodeType, ModuleType
from typing import Any, Sequence  # noqa: UP035 - for Python 3.8


class _Compiled(SourceFileLoader):
    """Compiles a file each time. Cached bytecode counts as fresh where the size and the second of
    the last change are the same: a model that was changed twice in a second would run as before."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def import_model(name: str, file: str, folders: Sequence[str]) -> ModuleType:
    """Import a model's file as `name`, with these folders of the model at the end of sys.path."""
    find = FileFinder.path_hook(
        (ExtensionFileLoader, EXTENSION_SUFFIXES), (_Compiled, SOURCE_SUFFIXES)
    )

    def in_a_folder(path: str) -> Any:
        for folder in folders:
            if path == folder or path.startswith(folder + os.sep):
                return find(path)
        raise ImportError

    for folder in folders:
        sys.path_importer_cache.pop(folder, None)
    sys.path_hooks.insert(0, in_a_folder)
    sys.path.extend(folders)
    spec = importlib.util.spec_from_file_location(name, file, loader=_Compiled(name, file))
    if spec is None or spec.loader is None or not file.endswith(tuple(SOURCE_SUFFIXES)):
        raise ImportError(f"{os.path.basename(file)} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
