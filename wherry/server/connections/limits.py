"""What may one client cost, whatever protocol it speaks?"""

from __future__ import annotations

from dataclasses import dataclass


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
