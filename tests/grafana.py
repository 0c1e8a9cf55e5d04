"""The board and the alert rules of the package, as tests read them."""

import json
from typing import Any

from wherry.server.cli.packaged import packaged


def board() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(packaged("board.json"))
    return made


def rules() -> str:
    return packaged("rules.yml")
