"""How do rows that hold images, audio or files become what the model's code takes, and back?"""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

import wherry
from wherry.core.instances import media_rows
from wherry.core.instances.executable import Executable
from wherry.core.models.config import ModelConfig
from wherry.core.values import image_bytes
from wherry.core.values.execution import Failure
from wherry.core.values.media import FileBytes
from wherry.core.workers.encoding import Garbage, MessageDecoder, MessageEncoder, with_blobs
from wherry.core.workers.shared_memory import Slab, memory_file


def png(width: int = 4, height: int = 4) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height)).save(out, "png")
    return out.getvalue()


class Sizes(wherry.Model):
    """Remembers the sizes of the images of each call."""

    max_batch_size = 32

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def execute(self, image: list[wherry.Image], tag: list[str]) -> list[str]:
        self.calls.append([one.width for one in image])
        return [f"{name}{one.width}" for one, name in zip(image, tag, strict=True)]


def run(model: wherry.Model, counts: list[int], **columns: list[Any]) -> list[Any]:
    executable = Executable(model, ModelConfig(name="m", max_batch_size=32))
    execution = executable.run(dict(columns), counts, lambda: dict(columns))
    return [one if isinstance(one, Failure) else one["output"] for one in execution.outcomes]


def test_rows_that_are_no_image_fail_alone_and_the_others_run_once() -> None:
    model = Sizes()

    outcomes = run(model, [1, 1, 2, 1], image=[png(1), b"?", png(3), png(), b""], tag=list("abcde"))

    assert model.calls == [[1, 3, 4]]
    assert outcomes[0] == ["a1"]
    assert outcomes[2] == ["c3", "d4"]
    for bad in (outcomes[1], outcomes[3]):
        assert (bad.error, bad.field, bad.is_the_models) == ("InvalidRequest", "image", False)
        assert bad.message.startswith("model 'm': input 'image' is ")


def test_a_bad_row_fails_all_rows_of_its_request_and_is_named() -> None:
    model = Sizes()

    (outcome,) = run(model, [3], image=[png(), png(), b"GIF89a"], tag=list("abc"))

    assert model.calls == []
    assert "input 'image' (row 2) is not a valid GIF image" in outcome.message


def test_a_batch_without_a_good_row_does_not_call_the_model() -> None:
    model = Sizes()

    outcomes = run(model, [1, 1], image=[b"", png()[:45]], tag=["a", "b"])

    assert model.calls == []
    assert all(isinstance(one, Failure) for one in outcomes)


def test_what_is_too_large_together_runs_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_rows, "CALL_BYTES", 2 * 4 * 100)
    model = Sizes()
    images = [png(10, 10), png(10, 10), b"?", png(10, 10), png(50, 10)]

    outcomes = run(model, [1] * 5, image=images, tag=list("abcde"))

    assert model.calls == [[10, 10], [10], [50]]
    assert [outcomes[i] for i in (0, 1, 3, 4)] == [["a10"], ["b10"], ["d10"], ["e50"]]
    assert isinstance(outcomes[2], Failure)


def test_a_request_whose_rows_are_too_large_together_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(media_rows, "CALL_BYTES", 3 << 20)
    model = Sizes()

    (outcome,) = run(model, [2], image=[png(1000, 500), png(1000, 500)], tag=["a", "b"])

    assert model.calls == []
    assert "take 3 MiB when they are decoded; at most 3 MiB are" in outcome.message


def test_pixels_are_decoded_only_for_images_within_the_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Small(wherry.Model):
        def execute(
            self, image: list[Annotated[wherry.Image, wherry.ImageSpec(max_pixels=16)]]
        ) -> list[str]:
            return [str(one.size) for one in image]

    loaded: list[tuple[int, int]] = []
    load = PngImageFile.load

    def seen(self: PngImageFile) -> Any:
        loaded.append(self.size)
        return load(self)

    monkeypatch.setattr(PngImageFile, "load", seen)

    outcomes = run(Small(), [1, 1], image=[png(4, 4), png(4, 5)])

    assert set(loaded) == {(4, 4)}
    assert "has 4 x 5 = 20 pixels; at most 16" in outcomes[1].message


def test_bytes_over_their_limit_are_refused_unread() -> None:
    class Small(wherry.Model):
        def execute(self, file: list[Annotated[bytes, wherry.FileSpec(max_bytes=3)]]) -> list[str]:
            return [str(len(one)) for one in file]

    outcomes = run(Small(), [1, 1], file=[b"abc", b"abcd"])

    assert outcomes[0] == ["3"]
    assert (outcomes[1].error, "has 4 bytes; at most 3" in outcomes[1].message) == (
        "RequestTooLarge",
        True,
    )


class Wrong(wherry.Model):
    def execute(self, text: list[str]) -> list[wherry.Image]:
        return [Image.new("L", (1, 1)), "no image"]  # type: ignore[list-item]


def test_what_cannot_be_encoded_is_the_models_fault() -> None:
    (outcome,) = run(Wrong(), [2], text=["a", "b"])

    assert outcome.error == "BadModelOutput"
    assert "output 'output' cannot be encoded: str, not a PIL image" in outcome.message


def test_a_model_fails_to_load_where_what_decodes_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing() -> None:
        raise wherry.ConfigError("images need Pillow: pip install 'wherry[image]'")

    monkeypatch.setattr(image_bytes, "require", missing)

    with pytest.raises(wherry.LoadFailed, match=r"wherry\[image\]"), wherry.Runtime(Sizes()):
        pass


def test_one_row_in_and_a_list_of_images_out() -> None:
    class Halves(wherry.Model):
        def execute(self, image: wherry.Image) -> list[wherry.Image]:
            return [image.crop((0, 0, 2, 4)), image.crop((2, 0, 4, 4))]

    with wherry.Runtime(Halves()) as runtime:
        assert [one.size for one in runtime.infer("halves", image=png())] == [(2, 4), (2, 4)]


def test_a_name_crosses_to_a_worker_and_is_cleaned_there_again() -> None:
    sent = FileBytes(b"data", "a.csv", "text/csv")
    frame = MessageEncoder().frame([sent, b"data"], slab=False)

    found, plain = MessageDecoder(list[Any], copies=True).decode(memoryview(frame)[12:])

    assert (found, found.name, found.media_type) == (b"data", "a.csv", "text/csv")
    assert type(plain) is bytes


def test_long_rows_go_through_shared_memory_while_there_is_room() -> None:
    with memory_file_of(1 << 20) as slab:
        encoder = MessageEncoder()
        encoder.region = slab.inputs  # half of it
        decoder = MessageDecoder(dict[str, Any], copies=True)
        decoder.memory = slab.memory
        rows = [
            b"a" * 300_000,
            FileBytes(b"b" * 100_000, "b.csv", "text/csv"),
            b"short",
            b"c" * 300_000,
        ]

        frame = encoder.frame(with_blobs({"x": rows}), slab=True)

        assert len(frame) < 310_000  # the last found no room
        found = decoder.decode(memoryview(frame)[12:])["x"]
        assert found == rows
        assert (found[1].name, found[1].media_type) == ("b.csv", "text/csv")


def test_a_row_outside_of_the_slab_is_garbage() -> None:
    with memory_file_of(1 << 20) as slab:
        decoder = MessageDecoder(Any, copies=True)
        decoder.memory = slab.memory
        for place, size in ((1 << 20, 1), (-1, 2), (5, -1), (0, (1 << 20) + 1)):
            head = msgspec.msgpack.encode((place, size, None, None))
            message = msgspec.msgpack.encode(msgspec.msgpack.Ext(3, head))
            with pytest.raises(Garbage):
                decoder.decode(memoryview(message))


@contextmanager
def memory_file_of(size: int) -> Iterator[Slab]:
    file = memory_file("wherry-test", size)
    slab = Slab(file, size)
    try:
        yield slab
    finally:
        slab.close()
        os.close(file)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("a.png", "a.png"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\x\\b.txt", "b.txt"),
        ("..", None),
        ("/", None),
        ("a\r\nSet-Cookie: x", "aSet-Cookie: x"),
        ("\u202egnp.exe", "gnp.exe"),
        ("x" * 5000 + ".png", "x" * 251 + ".png"),
        ("", None),
        (None, None),
    ],
)
def test_a_name_is_the_last_part_of_a_path_without_what_could_harm(
    name: str | None, kept: str | None
) -> None:
    assert FileBytes(b"", name).name == kept


@pytest.mark.parametrize(
    ("media_type", "kept"),
    [
        ("text/csv; charset=utf-8", "text/csv"),
        ("IMAGE/PNG", "image/png"),
        ("text", None),
        ("text/html\r\nX: y", None),
        ("a/" + "b" * 100, None),
        (None, None),
    ],
)
def test_a_media_type_is_kept_without_parameters(media_type: str | None, kept: str | None) -> None:
    assert FileBytes(b"", None, media_type).media_type == kept


def test_arrays_of_different_sizes_are_a_list() -> None:
    class Shapes(wherry.Model):
        max_batch_size = 4

        def execute(self, image: Annotated[list[np.ndarray], wherry.ImageSpec()]) -> list[str]:
            return [str(one.shape) for one in image]

    assert run(Shapes(), [1, 1], image=[png(1, 2), png(3, 4)]) == [["(2, 1, 3)"], ["(4, 3, 3)"]]
