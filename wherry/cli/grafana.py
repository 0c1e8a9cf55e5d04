"""How does an operator get the Grafana board, and the alerts for Prometheus? `wherry grafana`."""

from __future__ import annotations

import argparse
import re
import sys
from importlib import resources

from wherry.cli.show import as_json, print_line
from wherry.values.errors import ConfigError


def grafana(args: argparse.Namespace) -> int:
    """Print the board as JSON, or the rules as YAML, and nothing else. No server is asked."""
    given = {name: getattr(args, name) for name in ("uid", "title", "datasource")}
    given = {name: text for name, text in given.items() if text is not None}
    if args.alerts:
        if given:
            raise ConfigError(f"--alerts prints rules: --{min(given)} is for the board")
        sys.stdout.write(rules())
        return 0
    for name, text in given.items():
        if not text:
            raise ConfigError(f"--{name} is empty")
    if not re.fullmatch(r"[\w-]{1,40}", given.get("uid", "wherry"), re.ASCII):
        raise ConfigError("--uid: at most 40 letters, digits, - and _")
    from wherry.observability.grafana.board import board

    print_line(as_json(board(**given), None))
    return 0


def rules() -> str:
    """The rule file."""
    package = resources.files("wherry.observability.grafana")
    return (package / "rules.yml").read_text(encoding="utf-8")
