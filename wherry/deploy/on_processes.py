"""How are owners kept as processes of this machine?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from wherry.deploy.owner_process import SERVE, OwnerProcess, Settings
from wherry.deploy.replicas import OwnerAddress
from wherry.runtime.threads import in_thread

_HOST: Final = "127.0.0.1"


class ProcessEngine:
    """An OwnerEngine whose owners are child processes: `wherry serve TARGETS` with a settings file
    of these `settings`."""

    def __init__(
        self,
        targets: Sequence[str],
        settings: Settings,
        *,
        drain_timeout: float = 30.0,
        command: Sequence[str] = SERVE,
    ) -> None:
        self._make = partial(
            OwnerProcess,
            targets,
            settings,
            host=_HOST,
            drain_timeout=drain_timeout,
            command=command,
        )
        self._processes: dict[int, OwnerProcess] = {}

    async def start(self, number: int, placed: Callable[[], None]) -> OwnerAddress:
        process = self._make()
        self._processes[number] = process
        placed()
        return await in_thread(process.start, f"wherry-owner-{number}")

    async def ended(self, number: int) -> str:
        return await in_thread(self._processes[number].wait, f"wherry-owner-{number}")

    async def stop(self, number: int, *, at_once: bool) -> None:
        process = self._processes.pop(number, None)
        if process is not None:
            await in_thread(lambda: process.stop(at_once=at_once), f"wherry-owner-{number}")

    async def close(self) -> None:
        """Do nothing: every process has ended."""
