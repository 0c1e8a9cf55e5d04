"""How does the site of one version stand beside those of the others?

    python -m tools.site.versions --site build/site --published FOLDER

FOLDER is what a web server shows: a folder for each minor version, which replaces the one of the
patch before; `latest`, which is the newest once more, so that links to it do not grow old; an
`index.html` that leads there; `versions.json`. Pages of older versions say so, at their top, and
lead to the same page of the newest, where that still has it.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from wherry import __version__

ROOT = Path(__file__).parents[2]
LATEST = "latest"

_FOLDER = re.compile(r"\d+\.\d+")
_BODY = re.compile(r"<body[^>]*>")
_OLD = re.compile(r"<!-- old -->.*?<!-- /old -->", re.DOTALL)
_STYLE = "margin:0;padding:.5rem 1rem;background:#8a5a00;color:#fff;text-align:center"
_LEADS = """<!doctype html>
<meta charset="utf-8"><title>wherry</title>
<meta http-equiv="refresh" content="0; url={to}/index.html">
<a href="{to}/index.html">The documentation of wherry</a>
"""


def publish(site: Path, published: Path, version: str) -> None:
    """Put the site of `version` beside those that are published already."""
    minor = ".".join(version.split(".")[:2])
    _replace(published / minor, site)
    minors = sorted(
        (path.name for path in published.iterdir() if _FOLDER.fullmatch(path.name)),
        key=lambda name: [int(part) for part in name.split(".")],
        reverse=True,
    )
    newest, *older = minors
    _replace(published / LATEST, published / newest)
    for name in older:
        _mark(published, name, newest)
    (published / "versions.json").write_text(json.dumps(minors) + "\n")
    (published / "index.html").write_text(_LEADS.format(to=LATEST))
    (published / ".nojekyll").touch()  # names with an underscore are files like any other


def _replace(folder: Path, by: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(by, folder)


def _mark(published: Path, name: str, newest: str) -> None:
    """Say at the top of each page of an older version that there is a newer one."""
    folder = published / name
    for page in folder.rglob("*.html"):
        place = page.relative_to(folder)
        same = place if (published / LATEST / place).exists() else Path("index.html")
        up = "../" * len(place.parts)
        said = (
            f'<!-- old --><p style="{_STYLE}">This is wherry {name}. '
            f'<a style="color:inherit" href="{up}{LATEST}/{same.as_posix()}">'
            f"The newest is {newest}.</a></p><!-- /old -->"
        )
        text = _OLD.sub("", page.read_text(encoding="utf-8"))
        page.write_text(_BODY.sub(rf"\g<0>{said}", text, count=1), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.site.versions")
    parser.add_argument("--site", type=Path, default=ROOT / "build/site")
    parser.add_argument("--published", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args(arguments)
    publish(options.site, options.published, __version__)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
