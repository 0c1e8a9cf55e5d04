"""How are times and numbers of rows written for people?"""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Three digits and a unit, from `<0.001 ms` to days."""
    if 0 < seconds < 1e-6:
        return "<0.001 ms"
    if seconds < 0.9995:
        return f"{1e3 * seconds:.3g} ms"
    for unit, length in (("s", 1), ("min", 60), ("h", 3600)):
        if seconds < 100 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds / 86400:.3g} days"


def number(value: float) -> str:
    """Three digits; up to seven if they stand before the point."""
    return f"{value:.0f}" if 99.95 <= abs(value) < 1e7 else f"{value:.3g}"


def rows(count: float) -> str:
    """Rows, of which a mean may be fractional."""
    return "1 row" if count == 1 else f"{number(count)} rows"
