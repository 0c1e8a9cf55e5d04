"""How long does a batch of so many rows take, undisturbed, and which curves are drawn?"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from random import Random

MS = 1e-3
CURVE_KINDS = ("affine", "steps", "flat", "concave", "linear", "text")


@dataclass(frozen=True)
class Curve:
    """Milliseconds of a batch: fixed, for each row, for each token of padded rows."""

    fixed: float
    row: float = 0.0
    token: float = 0.0
    #: Rows are rounded up to a multiple of this.
    tile: int = 1
    #: A batch takes at least this long: flat up to the knee.
    floor: float = 0.0
    #: Of the rows: below 1 the curve is concave.
    power: float = 1.0

    def seconds(self, rows: int, longest: int = 1) -> float:
        """Of a batch of so many rows whose longest has so many tokens."""
        padded: float = -(-rows // self.tile) * self.tile
        if self.power < 1:
            padded **= self.power
        ours = self.fixed + (self.row + self.token * longest) * padded
        return (ours if ours > self.floor else self.floor) * MS

    def __str__(self) -> str:
        parts = f"{self.fixed:.3g}+" + (
            f"{self.token:.3g}b*tokens" if self.token else f"{self.row:.3g}b"
        )
        parts += f"^{self.power:g}" if self.power < 1 else ""
        parts += f" steps of {self.tile}" if self.tile > 1 else ""
        return parts + (f" floor {self.floor:.3g}" if self.floor else "")


CURVES = {
    "gpu": Curve(fixed=5, row=0.2),
    "flat": Curve(fixed=1, row=0.3, floor=6),
    "linear": Curve(fixed=0.1, row=2),
    "tile8": Curve(fixed=5, row=0.2, tile=8),
    "fast": Curve(fixed=0.2, row=0.01),
    "token": Curve(fixed=3, token=0.004),
}


def octaves(rng: Random, low: float, high: float) -> float:
    """A number between these, every octave as likely as any other."""
    return float(f"{low * (high / low) ** rng.random():.3g}")


def drawn_curve(rng: Random, kind: str, mean_tokens: float) -> Curve:
    """A curve of this kind."""
    fixed = octaves(rng, 0.1, 30)
    row = fixed / octaves(rng, 1, 200)  # so many rows cost as much as the fixed part
    if kind == "steps":
        return Curve(fixed, row, tile=round(octaves(rng, 3, 32)))
    if kind == "flat":
        return Curve(fixed, row, floor=fixed + row * round(octaves(rng, 2, 64)))
    if kind == "concave":
        return Curve(fixed, row, power=round(rng.uniform(0.4, 0.9), 2))
    if kind == "linear":
        row = octaves(rng, 0.05, 5)
        return Curve(row * octaves(rng, 0.02, 0.8), row)
    if kind == "text":
        return Curve(fixed, token=row / mean_tokens)
    return Curve(fixed, row)


def drawn_lengths(rng: Random) -> tuple[float, float]:
    """The median tokens of a text, and the sigma of their logarithm."""
    return round(exp(rng.uniform(3.5, 5))), round(rng.uniform(0.4, 1.1), 2)
