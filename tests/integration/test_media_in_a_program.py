"""Images go from a model to its caller without a codec, if the caller is in the same program."""

from __future__ import annotations

from typing import Annotated, Any

import httpx
import numpy as np
import pytest
from PIL import Image

import wherry
from wherry.core.models.settings import Isolation
from wherry.core.values import image_bytes

#: Pixels that no JPEG keeps.
PICTURE = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3) * 5, "RGB")
PNG = image_bytes.encoded(PICTURE, wherry.ImageSpec())
JPEG = b"\xff\xd8", "image/jpeg"
Jpeg = Annotated[wherry.Image, wherry.ImageSpec(format="jpeg")]


@wherry.model(max_batch_size=4)
def turned(image: list[wherry.Image]) -> list[Jpeg]:
    return [one.transpose(Image.Transpose.ROTATE_180) for one in image]


@wherry.model(route="/once")
def once(image: wherry.Image) -> Jpeg:
    return image.transpose(Image.Transpose.ROTATE_180)


@wherry.model(response_cache=True)
def cached(image: wherry.Image) -> Jpeg:
    return image


@wherry.pipeline(route="/back")
async def back(image: wherry.Image) -> wherry.Image:
    again: wherry.Image = await turned.ainfer(await once.ainfer(image))
    return again


def same(image: Image.Image) -> bool:
    return np.array_equal(np.asarray(image), np.asarray(PICTURE))


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_in_a_program_pixels_come_as_they_are_and_others_get_files(isolation: Isolation) -> None:
    models = turned, once, cached, back
    runtime = wherry.Runtime(*models, isolation=isolation, cache_bytes=1 << 20)
    with wherry.Server(runtime, port=0) as server, httpx.Client(base_url=server.url) as client:
        for _ in range(2):
            there = runtime.infer("turned", PICTURE)
            assert same(there.transpose(Image.Transpose.ROTATE_180))
            rows = runtime.infer_batch("turned", image=[PICTURE] * 9)["output"]  # in parts
            assert {np.asarray(row).tobytes() for row in rows} == {np.asarray(there).tobytes()}
            assert same(runtime.infer("back", PICTURE))
            assert same(runtime.infer("once", PICTURE).transpose(Image.Transpose.ROTATE_180))

            sent: dict[str, Any] = {"content": PNG, "headers": {"Content-Type": "image/png"}}
            answer = client.post("/once", **sent)
            assert (answer.content[:2], answer.headers["content-type"]) == JPEG
            assert client.post("/back", **sent).content == PNG
        # What is remembered is a file, for whoever asks next.
        first, again = (runtime.infer("cached", PICTURE) for _ in range(2))
        assert np.array_equal(np.asarray(first), np.asarray(again))
        assert not same(first)
