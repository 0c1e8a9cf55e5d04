"""What of the server's numbers does `wherry top` show? See `GET /dashboard/numbers`.

What is not there has a default, and what is not known is None, so that other versions can be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from wherry.core.api import Client, ModelNotFound, Unsupported, WherryError

#: Owners of a pool that are asked for their own numbers, at most.
MOST_OWNERS: Final = 32


class TimeTotals(msgspec.Struct, frozen=True):
    """Of the window, in seconds; None if there was nothing in it."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class RequestTotals(msgspec.Struct, frozen=True):
    """Since the load."""

    requests: float = 0
    failures: dict[str, float] = {}
    worker_restarts: float = 0


class InstanceNumbers(msgspec.Struct, frozen=True):
    name: str = ""
    state: str = ""
    reason: str = ""
    device: str = ""
    resident_bytes: float | None = None


class LastError(msgspec.Struct, frozen=True):
    """The last of its kind; how many of them since the load."""

    at: float = 0.0
    kind: str = ""
    message: str = ""
    count: float = 0


class GenerationNumbers(msgspec.Struct, frozen=True):
    running: float | None = None
    waiting: float | None = None
    tokens_per_second: float | None = None
    prompt_tokens_per_second: float | None = None
    first_response_seconds: TimeTotals = TimeTotals()
    next_response_seconds: TimeTotals = TimeTotals()
    kv_cache_usage: float | None = None
    prefix_hit_share: float | None = None
    preemptions: float | None = None


class ModelRow(msgspec.Struct, frozen=True):
    name: str = ""
    version: str = ""
    state: str = ""
    reason: str = ""
    kind: str = ""
    requests_per_second: float | None = None
    rows_per_second: float | None = None
    batches_per_second: float | None = None
    failures_per_second: float | None = None
    request_seconds: TimeTotals = TimeTotals()
    queue_seconds: TimeTotals = TimeTotals()
    queued_requests: float | None = None
    totals: RequestTotals = RequestTotals()
    #: Executions by their rows, and batches by why they left, since the load.
    batch_sizes: list[tuple[float, float]] = []
    cut_reasons: dict[str, float] = {}
    instances: list[InstanceNumbers] = []
    errors: list[LastError] = []
    generation: GenerationNumbers | None = None
    window_seconds: float | None = None

    @property
    def label(self) -> tuple[str, str]:
        return self.name, self.version


class LoopStalls(msgspec.Struct, frozen=True):
    longest_seconds: float | None = None
    p99_seconds: float | None = None


class MachineUse(msgspec.Struct, frozen=True):
    """Of the server's process, the machine, or a device."""

    device: str = ""
    cpu_share: float | None = None
    resident_bytes: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None


class FrontNumbers(msgspec.Struct, frozen=True):
    connections: float = 0
    calls: float = 0


class ServerRow(msgspec.Struct, frozen=True):
    name: str = ""
    version: str = ""
    started_at: float | None = None
    draining: bool = False
    requests_in_flight: float = 0
    refused: float = 0
    loop_stall: LoopStalls = LoopStalls()
    process: MachineUse | None = None
    machine: MachineUse | None = None
    devices: list[MachineUse] = []
    fronts: list[FrontNumbers] = []


class PolledNumbers(msgspec.Struct, frozen=True):
    at: float
    server: ServerRow
    models: list[ModelRow]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A server's numbers, and those that were read before (for what happened since)."""

    polled: PolledNumbers
    before: PolledNumbers | None = None

    def model_before(self, model: ModelRow) -> ModelRow | None:
        """The same model at the look before, unless it or the server was loaded anew since."""
        if self.before is None or self.before.server.started_at != self.polled.server.started_at:
            return None
        found = [one for one in self.before.models if one.label == model.label]
        if not found or found[0].totals.requests > model.totals.requests:
            return None
        return found[0]


def numbers_of(client: Client) -> dict[str, Any]:
    """The server's own words. WherryError if it has no numbers."""
    try:
        return client.numbers()
    except (ModelNotFound, Unsupported):
        raise WherryError(
            f"{client.url} has no /dashboard/numbers, which `wherry top` reads: it is an older"
            " wherry, or another server"
        ) from None


def look(client: Client, before: Snapshot | None = None) -> Snapshot:
    """Read the server's numbers. Blocks."""
    polled = _read(client, numbers_of(client))
    return Snapshot(polled, None if before is None else before.polled)


def _read(client: Client, numbers: dict[str, Any]) -> PolledNumbers:
    try:
        return msgspec.convert(numbers, PolledNumbers)
    except msgspec.ValidationError as error:
        raise WherryError(
            f"{client.url} tells its numbers in a way that this wherry does not know ({error});"
            " use the `wherry top` of the server's version"
        ) from None
