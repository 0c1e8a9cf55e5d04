"""How do the bytes of an image become pixels, and pixels bytes?"""

import contextlib
import io
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.costs import assert_linear
from wherry.core.values import image_bytes
from wherry.core.values.errors import ConfigError, InvalidRequest
from wherry.core.values.media import ImageSpec


def saved(image: Image.Image, format: str = "png", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def decoded(data: bytes, **settings: Any) -> Any:
    return image_bytes.prepared(data, ImageSpec(**settings))[1]()


def picture(mode: str = "RGB", size: tuple[int, int] = (5, 3)) -> Image.Image:
    """Red on the left, blue on the right."""
    image = Image.new("RGB", size, "blue")
    image.paste("red", (0, 0, 2, size[1]))
    return image.convert(mode)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(width: int, height: int, *more: bytes) -> bytes:
    """A PNG with this header, and no pixels to speak of."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 100))
    return b"".join([b"\x89PNG\r\n\x1a\n", header, *more, pixels, chunk(b"IEND", b"")])


@pytest.mark.parametrize("format", ["png", "jpeg", "webp", "gif", "bmp", "tiff"])
def test_each_format_becomes_colours(format: str) -> None:
    image = decoded(saved(picture(), format))

    assert (image.size, image.mode) == ((5, 3), "RGB")
    if format not in ("jpeg", "webp"):  # these blur so small a picture
        assert [image.getpixel((x, 0)) for x in (0, 4)] == [(255, 0, 0), (0, 0, 255)]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "RGB", "I;16"])
@pytest.mark.parametrize("wanted", ["RGB", "RGBA", "L"])
def test_each_way_to_keep_pixels_becomes_the_one_that_is_wanted(mode: str, wanted: str) -> None:
    if mode == "I;16":
        image = Image.fromarray(np.full((3, 5), 0x8080, np.uint16))
    else:
        image = Image.new("RGB", (5, 3), (128, 128, 128))
        image = image.quantize() if mode == "P" else image.convert(mode)

    found = decoded(saved(image), mode=wanted)

    assert (found.mode, found.size) == (wanted, (5, 3))
    if mode != "1":
        first = found.getpixel((0, 0))
        assert (first if wanted == "L" else first[0]) == 128


def test_cmyk_and_transparent_palettes_become_colours() -> None:
    assert decoded(saved(picture("CMYK"), "jpeg")).mode == "RGB"
    palette = picture().convert("P")
    assert decoded(saved(palette, transparency=b"\0\x80")).mode == "RGB"
    assert decoded(saved(palette, transparency=b"\0\x80"), mode="RGBA").mode == "RGBA"


def test_pixels_without_a_known_range_are_refused() -> None:
    floats = saved(Image.fromarray(np.ones((2, 2), np.float32)), "tiff")

    with pytest.raises(InvalidRequest, match=r"^has samples of 32 bits"):
        decoded(floats)
    assert decoded(floats, mode=None).mode == "F"


@pytest.mark.parametrize("format", ["jpeg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_upright_and_is_not_turned_twice(format: str, orientation: int) -> None:
    from PIL import ImageOps

    image = picture(size=(40, 24))
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(image, format, exif=exif)

    found = decoded(data)

    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert found.size == expected.size == ((24, 40) if orientation > 4 else (40, 24))
    assert np.array_equal(np.asarray(found), np.asarray(expected.convert("RGB")))
    assert ImageOps.exif_transpose(found).size == found.size


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_exif_that_is_nonsense_costs_no_image() -> None:
    assert decoded(saved(picture(), "jpeg", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f")).size == (5, 3)


@pytest.mark.parametrize("format", ["gif", "webp", "png", "tiff"])
def test_the_first_frame_of_many_is_the_image(format: str) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "lime", "blue")]
    data = saved(frames[0], format, save_all=True, append_images=frames[1:], lossless=True)

    red, green, _ = decoded(data).getpixel((1, 1))

    assert red > 250 > 5 > green


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_arrays_have_height_width_and_channels(mode: str) -> None:
    media = ImageSpec(mode=mode, python="array")

    array = image_bytes.prepared(saved(picture()), media)[1]()

    assert (array.dtype, array.shape) == (np.uint8, (3, 5, len(mode)))
    array[0, 0] = 7  # the code may write to it


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 'begins with b"<svg'),
        (b"<!DOCTYPE html><title>404</title>", "begins with b'<!DOCTYPE"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n", "begins with b'%!PS"),
        (b"%PDF-1.7", "begins with b'%PDF"),
        (b"\x89PNG\r\n\x1a\n", "is not a valid PNG"),
        (b"\xff\xd8\xff\xe0", "is not a valid JPEG"),
        (b"GIF89a", "is not a valid GIF"),
        (b"BM" + b"\0" * 60, "is not a valid BMP"),
        (b"II*\0" + b"\xff" * 60, "is not a valid TIFF"),
        (b"RIFF\0\0\0\0WEBP", "is not a valid WEBP"),
    ],
)
def test_what_is_no_image_is_refused_before_decoding(data: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        image_bytes.prepared(data, ImageSpec())

    assert said in str(refused.value)
    assert "0x" not in str(refused.value)


def test_a_format_that_is_not_taken_is_named() -> None:
    with pytest.raises(InvalidRequest, match="is GIF, which is not taken here; send PNG"):
        image_bytes.prepared(saved(picture(), "gif"), ImageSpec(formats=("png",)))


@pytest.mark.parametrize("format", ["png", "jpeg", "webp", "gif", "tiff"])
@pytest.mark.parametrize("part", [0.6, 0.9])
def test_a_truncated_image_is_refused(format: str, part: float) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    data = saved(Image.fromarray(noise), format)

    with pytest.raises(InvalidRequest):
        decoded(data[: int(len(data) * part)])


def test_fifty_thousand_pixels_square_are_refused_by_their_header() -> None:
    data = png_of(50_000, 50_000)

    with pytest.raises(InvalidRequest, match=r"50000 x 50000 = 2500000000 pixels.*max_pixels"):
        image_bytes.prepared(data, ImageSpec())


def test_more_pixels_than_pillow_warns_of_are_the_owners_choice() -> None:
    size, _ = image_bytes.prepared(png_of(20_000, 10_000), ImageSpec(max_pixels=200_000_000))

    assert size == 800_000_000


def test_a_gif_whose_frame_is_larger_than_its_screen_is_measured_by_the_frame() -> None:
    frame = b"," + struct.pack("<HHHHB", 0, 0, 60_000, 60_000, 0) + b"\x08\x01\0\0;"
    data = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0) + frame

    with pytest.raises(InvalidRequest, match="pixels"):
        image_bytes.prepared(data, ImageSpec())


def test_texts_that_unpack_to_much_are_refused() -> None:
    bomb = chunk(b"zTXt", b"a\0\0" + zlib.compress(b"\0" * (8 << 20)))

    with pytest.raises(InvalidRequest):
        decoded(png_of(4, 4, bomb))


def test_a_jpeg_of_many_scans_is_refused() -> None:
    data = saved(picture(size=(64, 64)), "jpeg", progressive=True)
    scan = data.rindex(b"\xff\xda")
    many = data[:-2] + data[scan:-2] * 200 + data[-2:]

    with pytest.raises(InvalidRequest, match="scans"):
        image_bytes.prepared(many, ImageSpec())
    assert decoded(data).size == (64, 64)
    assert decoded(data + b"\xff\xda" * 200).size == (64, 64)  # the film of a phone's photo


@pytest.mark.parametrize(
    "before",
    [b"\xff\x01\xff\xff", b"\xff\x02\xff\xff", b"\xff\xd3\xff\xff", b"\xff\xff\xff"],
    ids=["without length", "reserved", "restart", "fill"],
)
def test_scans_are_counted_behind_markers_that_have_no_length(before: bytes) -> None:
    data = saved(picture(size=(64, 64)), "jpeg", progressive=True)
    scan = data.rindex(b"\xff\xda")
    many = data[:-2] + (before + data[scan:-2]) * 200 + data[-2:]

    with pytest.raises(InvalidRequest, match="scans"):
        image_bytes.prepared(many, ImageSpec())


def tiff_of(*tags: tuple[int, int, int, int]) -> bytes:
    """The header of a TIFF and its directory: (tag, type, count, value or offset)."""
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4)


@pytest.mark.parametrize("tag", [273, 279, 324, 325])
def test_a_tiff_of_a_million_strips_is_refused(tag: int) -> None:
    data = tiff_of((256, 4, 1, 50), (257, 4, 1, 1_000_000), (tag, 4, 1_000_000, 38))

    with pytest.raises(InvalidRequest, match="1000000 strips; at most 65536"):
        image_bytes.prepared(data + bytes(4_000_000), ImageSpec())


def test_a_tiff_whose_tags_share_their_bytes_is_refused() -> None:
    data = tiff_of(*[(1000 + tag, 7, 60_000, 8) for tag in range(5000)])

    with pytest.raises(InvalidRequest, match="tags name 300000000"):
        image_bytes.prepared(data, ImageSpec())


def test_a_tiff_of_64_bit_offsets_is_no_image() -> None:
    with pytest.raises(InvalidRequest, match="is not an image"):
        image_bytes.prepared(saved(picture(), "tiff", big_tiff=True), ImageSpec())


def test_a_pillow_that_does_not_hold_the_limits_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("PIL.__version__", "12.3.0")

    with pytest.raises(ConfigError, match=r"images need Pillow 13 or newer, not 12\.3\.0"):
        image_bytes.require()


def test_the_lowest_pillow_that_the_package_takes_is_the_lowest_that_is_not_refused() -> None:
    project = Path(__file__).parents[4] / "pyproject.toml"
    taken = set(re.findall(r'"pillow>=([^"]*)"', project.read_text()))

    assert taken == {f"{image_bytes.LOWEST_PILLOW}.0"}


@given(st.binary(max_size=200), st.sampled_from(["png", "jpeg", "webp", "gif", "bmp", "tiff"]))
def test_damaged_bytes_are_decoded_or_refused(noise: bytes, format: str) -> None:
    data = bytearray(saved(picture(size=(16, 16)), format))
    at = sum(noise) % len(data)
    data[at : at + len(noise)] = noise

    with contextlib.suppress(InvalidRequest):
        assert decoded(bytes(data), max_pixels=1_000_000).mode == "RGB"


@pytest.mark.parametrize("format", ["png", "jpeg", "webp"])
@pytest.mark.parametrize(
    "value",
    [
        picture(),
        picture("RGBA"),
        picture("LA"),
        picture("P"),
        picture("1"),
        picture("CMYK"),
        np.zeros((3, 5), np.uint8),
        np.zeros((3, 5, 1), np.uint8),
        np.zeros((3, 5, 3), np.uint8),
        np.zeros((3, 5, 4), np.uint8),
        np.zeros((6, 10, 3), np.uint8)[::2, ::2],
    ],
    ids=lambda value: value.mode if isinstance(value, Image.Image) else str(value.shape),
)
def test_images_and_arrays_are_written_in_the_format_that_is_asked_for(
    value: Any, format: str
) -> None:
    data = image_bytes.encoded(value, ImageSpec(format=format, quality=80))

    image = Image.open(io.BytesIO(data))
    assert (image.format, image.size) == (format.upper(), (5, 3))


@pytest.mark.parametrize(
    "value",
    [
        b"bytes",
        np.zeros((3, 5, 3), np.float32),
        np.zeros((3, 5, 2), np.uint8),
        np.zeros((0, 5, 3), np.uint8),
        np.zeros(5, np.uint8),
        None,
    ],
    ids=str,
)
def test_what_is_no_image_is_not_written(value: Any) -> None:
    with pytest.raises(TypeError):
        image_bytes.encoded(value, ImageSpec())


def test_an_image_too_large_for_its_format_is_not_written() -> None:
    with pytest.raises(ValueError, match="70000 x 1"):
        image_bytes.encoded(Image.new("L", (70_000, 1)), ImageSpec(format="jpeg"))


@pytest.mark.parametrize(
    "make",
    [
        lambda n: png_of(50_000, 50_000, *[chunk(b"tEXt", b"k\0v")] * n),
        lambda n: saved(picture(), "jpeg")[:-2] + b"\xff\xda" * n,
        lambda n: b"GIF89a" + bytes(7) + b"!\xfe\x01a\0" * n,
        lambda n: saved(picture(), "jpeg")[:2] + b"\xff\xe1\0\x10Exif\0\0II*\0\x08\0\0\0" * n,
        lambda n: b"II*\0\x08\0\0\0" + struct.pack("<H", min(n, 65_535)) + bytes(12 * n),
    ],
    ids=["png", "jpeg", "gif", "exif", "tiff"],
)
def test_the_header_is_read_at_a_cost_that_is_linear_in_the_bytes(
    make: Callable[[int], bytes],
) -> None:
    def read(data: bytes) -> None:
        with contextlib.suppress(InvalidRequest):
            image_bytes.prepared(data, ImageSpec())

    assert_linear(read, make, largest=2**18)


# Handed on in this process


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr", "HSV", "I", "F"]
)
def test_an_image_that_is_handed_on_keeps_its_mode_and_pixels(mode: str) -> None:
    image = picture("LA").convert(mode) if mode == "PA" else picture(mode)
    row = image_bytes.pixels_of(image)

    again = image_bytes.prepared_pixels(row, ImageSpec(mode=None))[1]()

    assert (again.mode, again.size) == (image.mode, image.size)
    assert again.tobytes() == image.tobytes()
    assert again.getpalette() == image.getpalette()


def test_an_image_of_16_bits_that_is_handed_on_keeps_them() -> None:
    image = Image.fromarray(np.array([[0, 1, 65_535]], np.uint16))

    again = image_bytes.prepared_pixels(image_bytes.pixels_of(image), ImageSpec(mode=None))[1]()

    assert (again.mode, again.tobytes()) == ("I;16", image.tobytes())


def test_a_transparent_colour_of_a_palette_is_handed_on() -> None:
    image = picture("P")
    image.info["transparency"] = 3

    again = image_bytes.prepared_pixels(image_bytes.pixels_of(image), ImageSpec(mode="RGBA"))[1]()

    assert again.tobytes() == image.convert("RGBA").tobytes()


def test_an_image_that_is_handed_on_is_as_the_next_model_declares_it() -> None:
    row = image_bytes.pixels_of(picture("RGB", (40, 20)))

    grey = image_bytes.prepared_pixels(row, ImageSpec(mode="L", python="array"))[1]()
    assert grey.shape == (20, 40, 1)
    with pytest.raises(InvalidRequest, match="at most 100 are allowed"):
        image_bytes.prepared_pixels(row, ImageSpec(max_pixels=100))


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff\xff", b"\x01\x00\x00\x00\xc1"])
def test_pixels_without_a_sound_head_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="no sound pixels"):
        image_bytes.prepared_pixels(data, ImageSpec())


def test_too_few_pixels_are_refused() -> None:
    row = image_bytes.pixels_of(picture())

    with pytest.raises(InvalidRequest, match="cannot be decoded"):
        image_bytes.prepared_pixels(row[:-1], ImageSpec())[1]()
