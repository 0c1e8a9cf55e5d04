"""Which adapters has vLLM loaded, under which numbers?

vLLM knows an adapter by a number and keeps what it has computed by its name: files that change get
another of both. It reads the files when it is told of them: were it told by a request alone, a
damaged file would end a step, and with it the engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wherry.core.api import ConfigError, InvalidRequest
from wherry.llm.engine.adapters import WEIGHTS, AdapterFolders, adapter_config
from wherry.llm.engine.library_errors import brief

#: The ranks for which vLLM has room; the least by its default.
RANKS: Final = (16, 32, 64, 128, 256, 320, 512)
#: Adapters that run at once where folders may come and go, and the most by default.
MORE: Final = 4
MOST: Final = 8


def engine_arguments(folders: AdapterFolders) -> dict[str, Any]:
    """Arguments of vLLM's engine that give room for these adapters. ConfigError if one cannot be
    read. Reads files."""
    if not folders:
        return {}
    names = folders.names()
    found = [folder for name in names if (folder := folders.find(name)) is not None]
    most = max((adapter_config(folder).r for folder in found), default=RANKS[0])
    return {
        "enable_lora": True,
        "max_lora_rank": next((rank for rank in RANKS if rank >= most), RANKS[-1]),
        "max_loras": min(MOST, max(len(names), MORE if folders.takes_more else 1)),
    }


@dataclass(frozen=True, slots=True)
class _Known:
    """An adapter that vLLM has: what its files were, and vLLM's own words for it."""

    files: tuple[int, ...]
    request: Any


class VllmAdapters:
    """The adapters of one engine. `make` is vLLM's LoRARequest."""

    def __init__(
        self, model: str, folders: AdapterFolders, engine: Any, make: Callable[..., Any]
    ) -> None:
        self._model = model
        self._folders = folders
        self._engine = engine
        self._make = make
        self._numbers: Iterator[int] = itertools.count(1)
        self._known: dict[str, _Known] = {}
        #: Numbers of those that were replaced or removed, which vLLM still has.
        self._left: set[int] = set()

    def request(self, name: str) -> Any:
        """vLLM's words for an adapter, which it has from now on; None without a name.
        AdapterNotFound, or InvalidRequest if vLLM cannot read it. Blocks, when it is new."""
        folder = self._folders.found(self._model, name)
        if folder is None:
            return None
        known = self._known.get(name)
        if known is None or known.files != _files(folder):
            self._forget(name)
            known = self._known[name] = self._loaded(name, folder)
        return known.request

    def sweep(self, in_use: Collection[int]) -> None:
        """Have vLLM forget adapters that are gone or replaced, once no request runs with them."""
        for name in [name for name in self._known if self._folders.find(name) is None]:
            self._forget(name)
        for number in self._left.difference(in_use):
            self._left.remove(number)
            self._engine.remove_lora(number)

    def _forget(self, name: str) -> None:
        if (known := self._known.pop(name, None)) is not None:
            self._left.add(known.request.lora_int_id)

    def _loaded(self, name: str, folder: Path) -> _Known:
        files, number = _files(folder), next(self._numbers)
        request = self._make(f"{name}.{number}", number, str(folder.resolve()))
        try:
            adapter_config(folder)
            self._engine.add_lora(request)
        except Exception as error:  # of any type, by what vLLM finds in the files
            why = str(error) if isinstance(error, ConfigError) else brief(error)
            problem = f"model {self._model!r}: adapter {name}: vLLM does not load it: {why}"
            raise InvalidRequest(problem, field="adapter") from error
        return _Known(files, request)


def _files(folder: Path) -> tuple[int, ...]:
    """What tells an adapter's weights from those of another time; nothing without any."""
    try:
        at = (folder / WEIGHTS).stat()
    except OSError:
        return ()
    return at.st_dev, at.st_ino, at.st_mtime_ns
