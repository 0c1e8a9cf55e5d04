"""How is a large request read, or a large answer written, while the event loop goes on?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wherry.frontends.v2.entry import Entry


class Beside:
    """Work of one request in another thread. `done` is told, in the loop, its result or error.

    Counts as a request in flight meanwhile. ServerBusy if too much is being read already; work
    without bytes of its own, which writes an answer, is never refused.
    """

    __slots__ = ("_admission", "_done", "_job")

    def __init__(
        self,
        entry: Entry,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        nbytes: int = 0,
    ) -> None:
        self._admission = entry.admission
        self._done = done
        self._job = entry.common.offload.submit(work, nbytes, entry.port(), self._ended)
        self._admission.enter_body()

    def _ended(self, outcome: Any) -> None:
        self._admission.leave()
        self._done(outcome)

    def cancel(self) -> None:
        """End the work: the client has left."""
        self._job.cancel()
        self._admission.leave()
