"""Which facts of the package stand on README's badges? Those that pyproject.toml says."""

from __future__ import annotations

import re
import tomllib
from html import escape
from pathlib import Path
from typing import Any, Final

#: Of a letter, of the space around a text, and between two badges.
LETTER, PADDING, GAP, HEIGHT = 6.6, 8.0, 6.0, 20.0
STYLE: Final = (
    "text{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}"
    ".a{fill:#51606f}.b{fill:#0b5f6c}text{fill:#fff}"
)


def badges_svg(pyproject: Path) -> str:
    """The badges of a project in one picture."""
    facts = facts_of(tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"])
    x, drawn = 0.0, list[str]()
    for name, value in facts.items():
        for kind, text in (("a", name), ("b", value)):
            width = len(text) * LETTER + 2 * PADDING
            drawn.append(
                f'<rect class="{kind}" x="{x:g}" width="{width:g}" height="{HEIGHT:g}"/>'
                f'<text x="{x + PADDING:g}" y="14" textLength="{len(text) * LETTER:g}">'
                f"{escape(text)}</text>"
            )
            x += width
        x += GAP
    title = "; ".join(f"{name}: {value}" for name, value in facts.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{x - GAP:g}" height="{HEIGHT:g}"'
        f' role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style>{''.join(drawn)}</svg>\n"
    )


def facts_of(project: dict[str, Any]) -> dict[str, str]:
    """Pythons and licence."""
    classifiers = "\n".join(project["classifiers"])
    pythons = re.findall(r"^Programming Language :: Python :: (3\.\d+)$", classifiers, re.M)
    return {"python": " ".join(pythons), "licence": project["license"].replace(" AND ", ", ")}
