"""Are images, audio and files decoded where the model runs, and does a bad one fail alone?"""

import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import PIL.Image
import pytest

import wherry
from tests.fakes import until
from wherry.core.values.media import FileBytes

pytestmark = pytest.mark.slow

CALLS: list[int] = []


@wherry.model(isolation="thread", max_batch_size=8)
def look(image: list[wherry.Image]) -> list[str]:
    CALLS.append(len(image))
    return [f"{one.size} {one.mode} {os.getpid()}" for one in image]


@wherry.model(isolation="process", max_batch_size=8)
def look_there(image: list[wherry.Image]) -> list[str]:
    return [f"{one.size} {one.mode} {os.getpid()}" for one in image]


@wherry.model(isolation="process")
def half(image: wherry.Image) -> Annotated[wherry.Image, wherry.ImageSpec(format="jpeg")]:
    return image.resize((image.width // 2, image.height // 2))


@wherry.model(isolation="process")
def softer(
    audio: Annotated[wherry.Audio, wherry.AudioSpec(sample_rate=16_000)],
) -> wherry.Audio:
    return wherry.Audio(audio.samples / 2, audio.sample_rate)


@wherry.model(isolation="process")
def backwards(file: wherry.File) -> wherry.File:
    return wherry.File(file.data[::-1], f"of {file.name}", file.media_type)


@wherry.model(isolation="process")
def frames(image: wherry.Image) -> Iterator[wherry.Image]:
    for quarter in range(1, 4):
        yield image.rotate(90 * quarter, expand=True)


@wherry.pipeline
async def smaller(image: wherry.Image) -> wherry.Image:
    found: wherry.Image = await half.ainfer(image=image)
    return found


@pytest.fixture(scope="module")
def runtime() -> Iterator[wherry.Runtime]:
    models = (look, look_there, half, softer, backwards, frames)
    with wherry.Runtime(*models) as runtime:
        yield runtime


def png(width: int = 6, height: int = 4, mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    PIL.Image.new(mode, (width, height)).save(out, "png")
    return out.getvalue()


def test_bytes_are_decoded_in_the_process_of_the_model(runtime: wherry.Runtime) -> None:
    size, mode, pid = look_there.infer(image=png(mode="LA")).rsplit(" ", 2)

    assert (size, mode) == ("(6, 4)", "RGB")
    assert int(pid) != os.getpid()


@pytest.mark.parametrize("model", [look, look_there], ids=["thread", "process"])
def test_a_caller_may_send_an_image_a_path_a_file_or_an_array(
    runtime: wherry.Runtime, model: Any, tmp_path: Path
) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(png())
    image = PIL.Image.open(path)
    array = np.zeros((4, 6, 3), np.uint8)

    for one in (image, path, io.BytesIO(png()), array, bytearray(png())):
        assert model.infer(image=one).startswith("(6, 4) RGB")
    assert [row[:6] for row in model.map([image, path])] == ["(6, 4)", "(6, 4)"]


def test_a_file_name_as_text_is_told_from_a_path(runtime: wherry.Runtime) -> None:
    with pytest.raises(wherry.InvalidRequest, match=r"must be image, not str.*pathlib"):
        look.infer(image="cat.png")  # type: ignore[arg-type]


def test_answers_are_what_the_code_has_returned(runtime: wherry.Runtime) -> None:
    image = half.infer(image=png(64, 32))

    assert isinstance(image, PIL.Image.Image)
    assert (image.size, image.format) == ((32, 16), None)  # in a program there is no codec


def test_a_pipeline_takes_and_gives_images() -> None:
    with wherry.Runtime(half, smaller):
        assert smaller.infer(image=png(64, 32)).size == (32, 16)


def test_a_stream_yields_images(runtime: wherry.Runtime) -> None:
    assert [one.size for one in frames.stream(image=png())] == [(4, 6), (6, 4), (4, 6)]
    with pytest.raises(wherry.InvalidRequest, match="is not an image"):
        list(frames.stream(image=b"?"))


def test_audio_is_resampled_and_comes_back(runtime: wherry.Runtime) -> None:
    sound = softer.infer(audio=wherry.Audio(np.full(8000, 0.5, np.float32), 8000))

    assert (sound.sample_rate, sound.samples.shape, sound.channels) == (16_000, (16_000,), 1)
    assert abs(sound.samples[8000] - 0.25) < 1e-3


def test_a_file_keeps_its_name_and_media_type_on_its_way(runtime: wherry.Runtime) -> None:
    sent = FileBytes(b"abc", "../../etc/passwd", "text/csv; charset=utf-8")

    assert backwards.infer(file=sent) == wherry.File(b"cba", "of passwd", "text/csv")
    long = FileBytes(os.urandom(600_000), "a.bin", "a/b")
    assert backwards.infer(file=long) == wherry.File(long[::-1], "of a.bin", "a/b")
    assert backwards.infer(file=b"abc") == wherry.File(b"cba", "of None", None)


def test_a_bad_image_fails_alone_and_its_neighbours_run_once(runtime: wherry.Runtime) -> None:
    outcomes: dict[int, Any] = {}

    def call(index: int, data: bytes) -> None:
        try:
            outcomes[index] = look.infer(image=data)
        except wherry.WherryError as error:
            outcomes[index] = error

    CALLS.clear()
    rows = [png(), b"<svg>", png(7, 7), png()[:40]]
    threads = [threading.Thread(target=call, args=(i, data)) for i, data in enumerate(rows)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: len(outcomes) == len(rows))

    assert outcomes[0].startswith("(6, 4)")
    assert outcomes[2].startswith("(7, 7)")
    assert isinstance(outcomes[1], wherry.InvalidRequest)
    assert isinstance(outcomes[3], wherry.InvalidRequest)
    assert outcomes[1].field == outcomes[3].field == "image"
    assert sum(CALLS) == 2
