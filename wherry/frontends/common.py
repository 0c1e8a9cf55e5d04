"""What do all frontends of one server share, whatever protocol they speak?"""

from __future__ import annotations

from wherry.frontends.settings import LogSettings, TraceSettings
from wherry.frontends.shared_memory import SharedMemory


class Common:
    """What a client says over one protocol holds for the others, too."""

    def __init__(self, *, allow_shared_memory: bool = False) -> None:
        self.shared_memory = SharedMemory(allowed=allow_shared_memory)
        self.log_settings = LogSettings()
        self.trace_settings = TraceSettings()
