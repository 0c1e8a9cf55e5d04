"""examples/image_classifier: lines of text in image files, of which it is known how they lie."""

import io
from pathlib import Path

import httpx
import pytest
from PIL import Image, ImageDraw, ImageFont

from wherry.testing import running_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

APP = Path(__file__).parents[2] / "examples/image_classifier/app.py"
TEXTS = ("Tower Bridge Bakery", "See you tomorrow", "RECEIPT 4711")


def line(text: str, *, turned: bool, format: str, orientation: int = 1) -> bytes:
    font = ImageFont.load_default(30)
    image = Image.new("RGB", (round(font.getlength(text)) + 20, 48), (243, 240, 232))
    ImageDraw.Draw(image).text((10, 6), text, font=font, fill=(40, 38, 48))
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = io.BytesIO()
    (image.rotate(180) if turned else image).save(out, format, exif=exif)
    return out.getvalue()


def test_image_files_of_any_format_are_classified() -> None:
    with running_server(str(APP)) as url, httpx.Client(base_url=url, timeout=60) as client:
        for text in TEXTS:
            for turned, label in ((False, "upright"), (True, "upside down")):
                for format in ("jpeg", "png", "webp"):
                    body = line(text, turned=turned, format=format)
                    answer = client.post(
                        "/direction", content=body, headers={"content-type": f"image/{format}"}
                    )
                    assert answer.status_code == 200, answer.text
                    assert answer.json()["label"] == label
                    assert answer.json()["score"] > 0.5

        # A photo of a camera that was held upside down says so, and is turned.
        body = line(TEXTS[0], turned=True, format="jpeg", orientation=3)
        answer = client.post("/direction", files={"image": ("photo.jpg", body)})
        assert answer.json()["label"] == "upright"

        several = [("image", line(text, turned=False, format="png")) for text in TEXTS]
        assert len(client.post("/direction", files=several).json()) == 3

        broken = client.post("/direction", files={"image": ("a.jpg", body[:600])})
        assert broken.status_code == 400
        assert "model 'direction': input 'image'" in broken.text
