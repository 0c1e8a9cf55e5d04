"""What do all frontends of one server share, whatever protocol they speak?"""

from __future__ import annotations

from collections.abc import Sequence

from wherry.frontends.offload import Offload
from wherry.frontends.v2.settings import LogSettings, TraceSettings
from wherry.frontends.v2.shared_memory import SharedMemory
from wherry.frontends.v2.traces import Traces
from wherry.observability.loop_stall import LoopStall


class Common:
    """What a client says over one protocol holds for the others, too."""

    def __init__(
        self,
        *,
        allow_shared_memory: bool = False,
        allow_model_upload: bool = True,
        trace_config: Sequence[str] = (),
        offload: Offload | None = None,
    ) -> None:
        #: Whether a load request may bring the model's files; a server decides when it listens.
        self.allow_model_upload = allow_model_upload
        self.offload = offload or Offload()
        #: A server starts it with its loop.
        self.loop_stall = LoopStall()
        self.shared_memory = SharedMemory(allowed=allow_shared_memory)
        self.log_settings = LogSettings()
        self.trace_settings = TraceSettings(trace_config)
        self.traces = Traces(self.trace_settings)
