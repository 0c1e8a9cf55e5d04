"""How did the last requests end, and when? They are recorded while a client reads them, or always
if the server is to keep them."""

from __future__ import annotations

import time
from typing import Final

from wherry.core.api import LoadedModel, Records, Runtime
from wherry.server.calls.client_text import encode_json

#: Seconds for which requests are recorded after a client has read them.
WATCHED: Final = 5.0
LISTED: Final = 50


class RecentRequests:
    """The records of one server's models. In its event loop.

    With `keeps` requests are recorded always and their ids are shown; else only for WATCHED seconds
    after each question, without ids, which are their clients' words.
    """

    def __init__(self, runtime: Runtime, *, keeps: bool = False) -> None:
        self.keeps = keeps
        self._registry = runtime.registry
        self._records = Records(runtime.clock)
        self._until = float("inf") if keeps else float("-inf")
        self._registry.listeners += (self._record,)
        self._record()

    def _record(self) -> None:
        """Have all models recorded, from the first request of those that load. In any thread."""
        if self._records.clock() >= self._until:
            return
        for loaded in self._models():
            statistics = loaded.runner.statistics
            if statistics.records is None:
                statistics.records = self._records.of(loaded.name, loaded.version)

    def tick(self) -> None:
        """Stop when no client reads them any more."""
        if float("-inf") < self._until <= self._records.clock():
            self._until = float("-inf")
            for loaded in self._models():
                loaded.runner.statistics.records = None
            self._records.clear()

    def _models(self) -> list[LoadedModel]:
        with self._registry.quietly() as life:
            return [*life.being_loaded(), *life.all_ready()]

    def since(self, number: int) -> bytes:
        """As JSON: what was recorded after the batch with this number; with 0 the last requests.
        Those that come from now on are recorded, too."""
        if not self.keeps:
            self._until = self._records.clock() + WATCHED
            self._record()
        found = self._records.since(number)
        if not number:
            found = found[-4 * LISTED :]
        unix = time.time() - self._records.clock()
        batches = [
            {
                "number": one.number,
                "model": one.model,
                "version": one.version,
                "instance": one.instance,
                "reason": one.reason,
                "started": round(unix + one.started, 6),
                "input_seconds": round(one.input_seconds, 7),
                "infer_seconds": round(one.infer_seconds, 7),
                "output_seconds": round(one.output_seconds, 7),
                "ended": round(unix + one.ended, 6),
                "rows": one.rows,
                "error": one.error,
                "requests": [
                    (each.id if self.keeps else "", round(unix + each.enqueued_at, 6), each.rows)
                    for each in one.requests
                ],
            }
            for one in found
        ]
        known = {"at": time.time(), "keeps": self.keeps, "left_out": self._records.left_out}
        return encode_json({**known, "batches": batches})
