"""What did models take of their devices when they were loaded before, by earlier servers?"""

from __future__ import annotations

import inspect
import json
import logging
import os
import threading
from pathlib import Path

from wherry.core.models.config import ModelConfig
from wherry.core.models.model import FunctionModel, Model

log = logging.getLogger("wherry")


class MemoryUse:
    """What one model takes of its device, in bytes; 0: not known."""

    def __init__(self, identity: str, declared: int, before: int) -> None:
        """`before`: what it took in an earlier server, which knew it by its `identity`."""
        self.identity = identity
        self.declared = declared
        self._before, self._seen = before, 0

    @property
    def known(self) -> int:
        return max(self.declared, self._seen or self._before)

    @property
    def is_measured(self) -> bool:
        return self._seen > 0 and not self.declared

    def see(self, size: int) -> None:
        self._seen = max(self._seen, size)


class Footprints:
    """Those measured, in a file that servers share. Safe from any thread; all methods block.
    Without a file that can be read or written nothing is remembered."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._kept: dict[str, int] = {}

    def of(self, model: Model, config: ModelConfig, device: str, instances: int) -> MemoryUse:
        if config.memory:
            return MemoryUse("", config.memory * instances, 0)
        code = model.function if isinstance(model, FunctionModel) else type(model)
        try:
            where = getattr(model, "folder", None) or inspect.getfile(code)
        except (TypeError, OSError):  # of an interactive session
            where = ""
        place = f"{config.name}:{config.version} {instances} on {device}"
        identity = f"{where}:{code.__qualname__} {place}"
        return MemoryUse(identity, 0, self._read().get(identity, 0))

    def keep(self, one: MemoryUse) -> None:
        with self._lock:
            if not one.is_measured or self._kept.get(one.identity) == one.known:
                return
            self._kept[one.identity] = one.known
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                # Others may write meanwhile: of two at once one is lost, and measured again.
                beside = self._file.with_suffix(f".{os.getpid()}")
                beside.write_text(json.dumps(self._read() | self._kept, indent=0, sort_keys=True))
                beside.replace(self._file)
            except OSError as error:
                log.debug("footprints are not remembered", extra={"why": str(error)})

    def _read(self) -> dict[str, int]:
        try:
            read = json.loads(self._file.read_text())
            return {str(key): int(value) for key, value in read.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}
