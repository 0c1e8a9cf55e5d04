"""At which paths are the dashboard's numbers?"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs

NUMBERS: Final = "/dashboard/numbers"
EVENTS: Final = "/dashboard/events"


def replica_of(query: str) -> str:
    """The owner of a pool, HOST:PORT, whose numbers are asked for; "": those of the front."""
    if "replica=" not in query:
        return ""
    return parse_qs(query).get("replica", [""])[-1]
