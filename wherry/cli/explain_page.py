"""How does `wherry explain MODEL --html FILE` draw what it prints?

One page with nothing to fetch: each chart is SVG in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

STYLE = """
body { font: 15px system-ui, sans-serif; max-width: 720px; margin: 2em auto; padding: 0 1em;
       color: CanvasText; background: Canvas; color-scheme: light dark; }
h2 { font-size: 1em; margin: 2em 0 .5em; }
svg text { font-size: 12px; fill: currentColor; }
svg rect { fill: #3b7dd8; }
"""

#: Pixels: of a bar's row, of the labels before it, and of the longest bar.
ROW, LABELS, BARS = 20, 90, 360


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars under a heading: label, value, and what there is to say of it."""

    heading: str
    bars: list[tuple[str, float, str]]
    unit: str = ""
    remark: str = ""


def page(facts: Sequence[str], charts: Sequence[Chart]) -> str:
    """The whole page."""
    title = escape(facts[0].partition(":")[0])
    paragraphs = "\n".join(f"<p>{escape(fact)}</p>" for fact in facts)
    drawn = "\n".join(map(section, charts))
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>{STYLE}</style>\n{paragraphs}\n{drawn}\n</html>\n"
    )


def section(chart: Chart) -> str:
    """One chart with its heading."""
    most = max(value for _, value, _ in chart.bars) or 1.0
    rows = []
    for number, (label, value, remark) in enumerate(chart.bars):
        y, width = number * ROW, BARS * value / most
        shown = f"{value:.4g} {chart.unit}".strip()
        rows.append(
            f'<text x="{LABELS - 8}" y="{y + 14}" text-anchor="end">{escape(label)}</text>'
            f'<rect x="{LABELS}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}"/>'
            f'<text x="{LABELS + width + 6:.1f}" y="{y + 14}">{escape(shown)}'
            f"<title>{escape(remark)}</title></text>"
        )
    height = ROW * len(chart.bars)
    remark = f"\n<p>{escape(chart.remark)}</p>" if chart.remark else ""
    return (
        f"<h2>{escape(chart.heading)}</h2>\n"
        f'<svg width="{LABELS + BARS + 120}" height="{height}" role="img"'
        f' aria-label="{escape(chart.heading)}">{"".join(rows)}</svg>{remark}'
    )
