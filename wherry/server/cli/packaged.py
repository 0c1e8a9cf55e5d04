"""Which files does the package bring: a first model, Grafana's board, alerts? `init`, `grafana`."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from importlib import resources
from pathlib import Path
from typing import Any, Final

from wherry import __version__
from wherry.core.api import ConfigError
from wherry.server.cli.show import as_json, print_line

#: The files, in the order in which they are told, and what they are.
FILES: Final = {
    "app.py": "the model",
    "test_app.py": "its tests: python -m pytest",
    "wherry.toml": "settings of the server and of each model",
    "requirements.txt": "what it needs",
    "Dockerfile": "its image: docker build .",
    ".dockerignore": "what is not part of the image",
}


def init(args: argparse.Namespace) -> int:
    """Write the files into a folder that has none of them yet."""
    folder = Path(args.folder)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; name a folder")
    if there := [name for name in FILES if (folder / name).exists()]:
        raise ConfigError(f"{folder / there[0]} is there already; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (folder / name).write_text(content(name), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from None
    width = max(map(len, FILES))
    for name, told in FILES.items():
        print_line(f"{name:<{width}}  {told}")
    where = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    print_line("Now, and the second line in another terminal:")
    print_line(f"{where}wherry serve app.py")
    print_line('wherry call sentiment "a good day"')
    return 0


def content(name: str) -> str:
    """What a file begins with."""
    package = resources.files("wherry.server.cli") / "project"
    text = (package / f"{name.removeprefix('.')}.txt").read_text(encoding="utf-8")
    return text.replace("{version}", __version__)


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
