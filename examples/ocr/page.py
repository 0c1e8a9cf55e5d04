"""What does a page look like of which every letter is known?"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageDraw, ImageFont

LINES = (
    "RECEIPT 4711",
    "Tower Bridge Bakery",
    "3 x Rye loaf   11.40",
    "1 x Apple tart   6.25",
    "2 x Filter coffee   5.80",
    "Sum GBP   23.45",
    "Paid by card",
    "See you tomorrow",
)
PAPER, INK = (243, 240, 232), (40, 38, 48)


def photo(lines: tuple[str, ...] = LINES, *, turned: float = 0, seed: int = 0) -> bytes:
    """A JPEG of the lines on paper: turned by some degrees, noisy, compressed."""
    image = Image.new("RGB", (760, 80 + 66 * len(lines)), PAPER)
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        draw.text((60, 40 + 66 * number), line, font=ImageFont.load_default(30), fill=INK)
    pixels = np.asarray(image.rotate(turned, fillcolor=PAPER), np.int16)
    noisy = pixels + np.random.default_rng(seed).integers(-12, 13, pixels.shape)
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()
