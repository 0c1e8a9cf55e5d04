"""At which paths are the dashboard's numbers?"""

from __future__ import annotations

from typing import Final

NUMBERS: Final = "/dashboard/numbers"
EVENTS: Final = "/dashboard/events"
