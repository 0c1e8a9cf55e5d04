"""examples/photos: do many photos get their colours, and does nothing come to the host between?"""

import io
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import wherry
from wherry.core.instances import model_outputs
from wherry.core.instances.source import import_file
from wherry.core.models import rows
from wherry.core.values import tensors

torch = pytest.importorskip("torch")
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


def test_a_gpu_decodes_all_jpegs_of_a_batch_in_one_call_where_torchvision_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a torchvision that notes how it is called: there is no GPU. Its device is "meta"."""
    calls: list[Any] = []

    def decode_jpeg(data: list[Any], mode: str, device: Any) -> list[Any]:
        calls.append(([bytes(one.tolist()) for one in data], mode, str(device)))
        if b"progressive" in calls[-1][0][-1] or len(data[-1]) < 400:
            raise RuntimeError("nvjpegDecodeBatched failed: 2")
        return [torch.zeros(3, 100, 80, dtype=torch.uint8, device=device) for _ in data]

    for name in ("torchvision", "torchvision.io"):
        module: Any = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.decode_jpeg, module.ImageReadMode = decode_jpeg, SimpleNamespace(RGB="RGB")
        monkeypatch.setitem(sys.modules, name, module)
    stage = import_file("photos_app", str(APP)).Decode()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    stage.load(wherry.Device("cuda", 1))
    assert str(stage.device) == "cuda:1"
    stage.device = torch.device("meta")

    photos = [photo("red", 80), photo("blue", 90)]
    assert [found.device.type for found in stage.execute(photos)] == ["meta"] * 2
    assert calls == [(photos, "RGB", "meta")]
    (by_the_processor,) = stage.execute([photos[1] + b"progressive"])
    assert (by_the_processor.shape, by_the_processor.device.type) == ((3, 100, 90), "meta")
    with pytest.raises(wherry.InvalidRequest, match="not a photo"):
        stage.execute([photos[0][:300]])

    stage.load(wherry.Device())
    calls.clear()
    (found,) = stage.execute(photos[:1])
    assert (found.device.type, calls) == ("cpu", [])
