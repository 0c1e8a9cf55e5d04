"""How much may clients have a server hold, on this machine?"""

from __future__ import annotations

import logging

from wherry.frontends.connections.full_memory import MemoryPlan, memory_plan
from wherry.frontends.connections.limits import Limits
from wherry.observability.machine import Machine
from wherry.server.options import Capacity

log = logging.getLogger("wherry")


def plan_for(capacity: Capacity) -> MemoryPlan:
    """The limits that are said, and the others as the memory allows. Warns of limits that need more
    memory than there is. Reads files: not for an event loop."""
    memory = Machine().memory_limit_bytes()
    limits = capacity.limits
    if limits is None:
        plan = memory_plan(
            memory,
            connections=capacity.max_connections,
            body_bytes=capacity.max_body_size,
            queue_bytes=capacity.max_queue_bytes,
            received_bytes=capacity.max_received_bytes,
            unsent_bytes=capacity.max_unsent_bytes,
            limits=Limits(
                idle_timeout=capacity.idle_timeout,
                max_connection_unsent_bytes=capacity.max_connection_unsent_bytes,
                max_connection_received_bytes=capacity.max_connection_received_bytes,
            ),
        )
    else:
        plan = memory_plan(
            memory,
            connections=limits.max_connections,
            body_bytes=limits.max_body_bytes,
            queue_bytes=capacity.max_queue_bytes,
            received_bytes=limits.max_received_bytes,
            unsent_bytes=limits.max_unsent_bytes,
            limits=limits,
        )
    if memory is not None and plan.full_bytes > memory:
        log.warning(
            "a full server would need more memory than there is",
            extra={
                "needed_bytes": plan.full_bytes,
                "memory_bytes": memory,
                "lower": "max_queue_bytes, max_body_size, max_connections",
            },
        )
    return plan
