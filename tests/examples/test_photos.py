"""examples/photos: do many photos get their colours, and does nothing come to the host between?"""

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import wherry
from wherry.instances import model_outputs
from wherry.instances.source import import_file
from wherry.models import rows
from wherry.values import tensors

pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

APP = Path(__file__).parents[2] / "examples/photos/app.py"
COLOURS = {"red": (200, 30, 20), "green": (10, 180, 60), "blue": (20, 30, 220)}


def photo(colour: str, width: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, 100), COLOURS[colour]).save(out, "jpeg")
    return out.getvalue()


def test_photos_of_all_sizes_get_their_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Any] = []
    for module in (tensors, model_outputs, rows):
        monkeypatch.setattr(module, "on_host", left.append)
    app = import_file("photos_app", str(APP))
    names = list(COLOURS) * 8
    photos = [photo(name, 80 + 7 * n) for n, name in enumerate(names)]
    photos.insert(5, photos[5][:300])
    names.insert(5, "")

    with wherry.Runtime(app.decode, app.resize, app.network, app.colour) as runtime:

        def ask(data: bytes) -> str:
            try:
                return str(runtime.infer("colour", photo=data))
            except wherry.InvalidRequest:
                return ""

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(ask, photos)) == names
    assert left == []
