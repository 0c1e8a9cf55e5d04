"""What does `make docs` do?

    python -m tools.site [--into build/site]

It builds the documentation as a folder of HTML that needs no server and no network, search
included. Exits with 1, and says where, if a page has a link that leads nowhere or cannot be read.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.site.sources import write

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    from sphinx.cmd.build import build_main

    parser = argparse.ArgumentParser(prog="python -m tools.site")
    parser.add_argument("--into", type=Path, default=ROOT / "build/site")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        sources, doctrees = Path(folder, "pages"), Path(folder, "doctrees")
        write(ROOT, sources)
        # -W: a warning is an error; -n: of references, too; -E, -a: nothing is left of before.
        strict = ["-q", "-W", "-n", "-E", "-a", "--keep-going"]
        where = ["-c", str(Path(__file__).parent), "-d", str(doctrees)]
        wrong = build_main([*strict, *where, "-b", "html", str(sources), str(options.into)])
    if wrong == 0:
        print(options.into / "index.html")
    return int(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
