"""How does a folder get its first model? `wherry init`."""

from __future__ import annotations

import argparse
import shlex
from importlib import resources
from pathlib import Path
from typing import Final

from wherry import __version__
from wherry.core.api import ConfigError
from wherry.server.cli.show import print_line

#: The files, in the order in which they are told, and what they are.
FILES: Final = {
    "app.py": "the model",
    "test_app.py": "its tests: python -m pytest",
    "wherry.toml": "settings of the server and of each model",
    "requirements.txt": "what it needs",
    "Dockerfile": "its image: docker build .",
    ".dockerignore": "what is no part of the image",
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
