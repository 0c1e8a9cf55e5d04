"""Which files does the package bring: Grafana's board and alert rules? `wherry grafana`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from importlib import resources
from typing import Any

from wherry.core.api import ConfigError
from wherry.server.cli.show import as_json, print_line


def grafana(args: argparse.Namespace) -> int:
    """Print the board as JSON, or the rules as YAML, and nothing else. No server is asked."""
    overrides = {name: getattr(args, name) for name in ("uid", "title", "datasource")}
    overrides = {name: text for name, text in overrides.items() if text is not None}
    if args.alerts:
        if overrides:
            raise ConfigError(f"--alerts prints rules: --{min(overrides)} is for the board")
        sys.stdout.write(rules())
        return 0
    for name, text in overrides.items():
        if not text:
            raise ConfigError(f"--{name} is empty")
    if not re.fullmatch(r"[\w-]{1,40}", overrides.get("uid", "wherry"), re.ASCII):
        raise ConfigError("--uid: at most 40 letters, digits, - and _")
    print_line(as_json(board(**overrides), None))
    return 0


def board(*, uid: str = "wherry", title: str = "wherry", datasource: str = "") -> dict[str, Any]:
    """The board. `datasource` is the uid of the Prometheus that is chosen when it is opened; ""
    leaves that to Grafana, which takes its default one."""
    made: dict[str, Any] = json.loads(_packaged("board.json"))
    made |= {"uid": uid, "title": title}
    if datasource:
        current = {"selected": True, "text": datasource, "value": datasource}
        made["templating"]["list"][0]["current"] = current
    return made


def rules() -> str:
    """The rule file."""
    return _packaged("rules.yml")


def _packaged(name: str) -> str:
    return (resources.files("wherry.core.observability.grafana") / name).read_text(encoding="utf-8")
