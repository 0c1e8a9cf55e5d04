"""Which files does the package bring: Grafana's board and alert rules? `wherry grafana`."""

from __future__ import annotations

import argparse
import sys
from importlib import resources


def grafana(args: argparse.Namespace) -> int:
    """Print the board as JSON, or the rules as YAML, and nothing else. No server is called."""
    sys.stdout.write(packaged("rules.yml" if args.alerts else "board.json"))
    return 0


def packaged(name: str) -> str:
    return (resources.files("wherry.core.observability.grafana") / name).read_text(encoding="utf-8")
