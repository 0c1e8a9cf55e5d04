"""What may clients cost, whatever protocol they speak: in bytes, seconds and file descriptors?

docs/explanation/limits.md states the formula of a full server's memory ("Memory of a full server");
`tests/integration/test_memory.py` runs a server at it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Final

if sys.platform != "win32":
    import resource


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may cost. Times are in seconds; the transport looks at them twice a second.

    `body_timeout` and `write_timeout` run while nothing moves at all, not over the whole transfer.
    """

    max_body_bytes: int = 64 * 2**20
    max_header_bytes: int = 64 * 2**10  # the request line and all headers together
    max_pipelined: int = 16  # answers owed to one connection before it is read no further
    max_connections: int = 4096
    header_timeout: float = 30.0
    body_timeout: float = 30.0
    idle_timeout: float = 75.0
    write_timeout: float = 30.0
    # Answers that clients have not taken, of all connections and of one.
    max_unsent_bytes: int = 2**30
    max_connection_unsent_bytes: int = 64 * 2**20
    # Requests that have not come in full, of all connections and of one.
    max_received_bytes: int = 2**30
    max_connection_received_bytes: int = 256 * 2**20


MIB: Final = 2**20
ASSUMED_MEMORY: Final = 4 * 2**30
#: Share of the memory that a full server takes at most. The rest is for models.
SHARE: Final = 1 / 2
CONNECTIONS_SHARE: Final = 1 / 8
READERS_SHARE: Final = 1 / 6
OFFLOAD_SHARE: Final = 1 / 64

#: Twice the 64 KiB that no ledger counts, what the kernel has refused to take, a block of headers.
CONNECTION_BYTES: Final = 4 * MIB // 10
#: Memory for a text while it is read, in multiples of its bytes: strings of two characters take it.
UNFOLDS: Final = 16
#: Values of other kinds take twice that, but are counted first: at most this much more.
VALUES_BYTES: Final = 40 * MIB
#: Copies of a request that waits or runs: as it came, joined to a batch, shared with a worker.
COPIES: Final = 3

MOST_CONNECTIONS: Final = 4096
LEAST_CONNECTIONS: Final = 256
CONNECTION_RECEIVED_BYTES: Final = 256 * MIB
MOST_BODY_BYTES: Final = 64 * MIB
LEAST_BODY_BYTES: Final = MIB
MOST_OFFLOADED_BYTES: Final = 256 * MIB
#: From this much memory on, two threads read large bodies beside the loop.
TWO_THREADS_FROM: Final = 32 * 2**30
#: Least share of the memory for queued requests, received and unsent bytes together.
LEAST_REST: Final = 1 / 16


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Limits that go together, in bytes if the name has no other unit."""

    limits: Limits
    max_queue_bytes: int
    max_offloaded_bytes: int
    offload_threads: int

    @property
    def full_bytes(self) -> int:
        """What a server takes beside its models if clients use all limits at once."""
        limits = self.limits
        return (
            limits.max_connections * CONNECTION_BYTES
            + limits.max_received_bytes
            + limits.max_unsent_bytes
            + COPIES * self.max_queue_bytes
            + min(self.max_offloaded_bytes, limits.max_connections * limits.max_body_bytes)
            + (self.offload_threads + 1) * _read_bytes(limits.max_body_bytes)
        )


def memory_plan(
    memory: int | None,
    *,
    connections: int | None = None,
    body_bytes: int | None = None,
    queue_bytes: int | None = None,
    received_bytes: int | None = None,
    unsent_bytes: int | None = None,
    limits: Limits | None = None,
) -> MemoryPlan:
    """Limits for a machine, or a control group, of `memory` bytes (None: not known).

    Limits that are set stay as they are, and the others share what these leave of half the memory.
    `limits` has those that are not of memory; its max_connection_received_bytes may be 0: not set.
    """
    limits = limits or Limits()
    memory = ASSUMED_MEMORY if memory is None else memory
    threads = 2 if memory >= TWO_THREADS_FROM else 1
    if connections is None:
        fit = int(memory * CONNECTIONS_SHARE) // CONNECTION_BYTES
        connections = min(MOST_CONNECTIONS, max(LEAST_CONNECTIONS, fit))
    if body_bytes is None:
        body_bytes = _body_bytes(int(memory * READERS_SHARE) // (threads + 1))
    offloaded = min(MOST_OFFLOADED_BYTES, int(memory * OFFLOAD_SHARE))
    fixed = (
        connections * CONNECTION_BYTES
        + min(offloaded, connections * body_bytes)
        + (threads + 1) * _read_bytes(body_bytes)
    )
    rest = max(int(memory * SHARE) - fixed, int(memory * LEAST_REST))
    one = body_bytes + MIB  # a body that is allowed can come in, wait, and leave again
    return MemoryPlan(
        replace(
            limits,
            max_connections=connections,
            max_body_bytes=body_bytes,
            max_received_bytes=received_bytes or max(one, rest // 6),
            max_unsent_bytes=unsent_bytes or max(one, rest // 6),
            max_connection_received_bytes=limits.max_connection_received_bytes
            or max(one, CONNECTION_RECEIVED_BYTES),
        ),
        max_queue_bytes=queue_bytes or max(one, rest * 2 // 3 // COPIES),
        max_offloaded_bytes=offloaded,
        offload_threads=threads,
    )


def _read_bytes(body_bytes: int) -> int:
    return min(2 * UNFOLDS * body_bytes, UNFOLDS * body_bytes + VALUES_BYTES)


def _body_bytes(reader_bytes: int) -> int:
    """The largest body, in whole MiB, for which that is enough."""
    fits = max(reader_bytes // (2 * UNFOLDS), (reader_bytes - VALUES_BYTES) // UNFOLDS)
    return min(MOST_BODY_BYTES, max(LEAST_BODY_BYTES, fits // MIB * MIB))


# File descriptors: the system gives each new connection the lowest free number. One that gets one
# of the highest is refused: those are for workers that start again, files that models open, and
# answers of refusal.

#: Kept free: a quarter of the descriptors, and at most this many.
MOST_RESERVED = 128


def for_connections() -> int:
    """The lowest number that no connection may have unless another one makes room for it."""
    limit = _limits()[0]
    return limit - min(MOST_RESERVED, limit // 4)


def never_for_connections() -> int:
    """The lowest number that no connection may have, even if another one makes room for it: the
    newest keeps its own number, which is higher."""
    limit = _limits()[0]
    return limit - min(MOST_RESERVED, limit // 4) // 2


def raise_limit(connections: int) -> bool:
    """Raise the soft limit of open files as far as `connections` need it and the system allows.

    False if `connections` do not fit even then."""
    soft, hard = _limits()
    # Each of several listeners may have `connections`.
    target = min(hard, max(soft, 4 * connections + 4 * MOST_RESERVED))
    if sys.platform != "win32" and target > soft:
        _, unchanged = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, unchanged))
    return for_connections() > connections


def _limits() -> tuple[int, int]:
    if sys.platform == "win32":
        return sys.maxsize, sys.maxsize
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = [sys.maxsize if one == resource.RLIM_INFINITY else one for one in (soft, hard)]
    return most[0], most[1]
