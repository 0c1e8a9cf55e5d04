"""How do the bytes of an image become pixels, and pixels bytes?

With Pillow, but not with its `Image.open`: the first bytes choose one of six formats, so that no
other decoder ever runs, and the size is checked before a pixel is decoded.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import re
import struct
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np

from wherry.core.values.errors import ConfigError, InvalidRequest
from wherry.core.values.media import FileBytes, ImageSpec, wrong_format

if TYPE_CHECKING:
    from PIL.Image import Image
else:
    try:
        from PIL.Image import Image
    except ImportError:

        class Image:
            """Stands for PIL.Image.Image in annotations where Pillow is missing."""


#: The first version that reads comments and tags at a cost linear in their bytes: 12.3 takes
#: 5 s for a GIF of 5 MB, and 270 MiB for a JPEG of 60 KB whose tags share their bytes.
LOWEST_PILLOW: Final = 13
#: Passes of a progressive JPEG over all of its pixels. Encoders make about 10; each costs its
#: sender 12 bytes, and the decoder a look at every pixel.
MAX_SCANS: Final = 32
#: Strips and tiles of a TIFF: each costs its sender 8 bytes, and the decoder a start. An image of
#: 50 million pixels in tiles of 32 x 32 has fewer.
MAX_STRIPS: Final = 65_536
#: A marker of a JPEG that a length follows. Restarts have none, nor have those below the frames',
#: which libjpeg skips where it looks for a restart.
_MARKER: Final = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")

# A TIFF of 800 KB can have Pillow warn of 65,535 tags, each a line in the log.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.\w+ImagePlugin")

_PLUGINS: Final[Mapping[str, tuple[str, str]]] = {
    "png": ("PIL.PngImagePlugin", "PngImageFile"),
    "jpeg": ("PIL.JpegImagePlugin", "JpegImageFile"),
    "webp": ("PIL.WebPImagePlugin", "WebPImageFile"),
    "gif": ("PIL.GifImagePlugin", "GifImageFile"),
    "bmp": ("PIL.BmpImagePlugin", "BmpImageFile"),
    "tiff": ("PIL.TiffImagePlugin", "TiffImageFile"),
}
_BEGINNINGS: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"BM", "bmp"),
)
#: The media type of a row of pixels, which only callers in this process make.
PIXELS: Final = "image/x-wherry-pixels"
_LENGTH: Final = struct.Struct("<I")
#: Mode, size, palette with its mode, and the transparent colour, before the pixels.
_PIXELS_HEAD: Final = msgspec.msgpack.Decoder(
    tuple[str, tuple[int, int], tuple[str, bytes] | None, int | bytes | tuple[int, ...] | None]
)
#: Tags of a TIFF with a number for each strip or tile: where it begins, how long it is.
_STRIPS: Final = frozenset((273, 279, 324, 325))
#: Bytes of a value, by its type in a TIFF's tag.
_TIFF_SIZES: Final[Mapping[int, int]] = {
    **dict.fromkeys((1, 2, 6, 7), 1),
    **dict.fromkeys((3, 8), 2),
    **dict.fromkeys((4, 9, 11, 13), 4),
    **dict.fromkeys((5, 10, 12, 16), 8),
}
#: Modes that each format can keep; others are converted.
_KEPT: Final[Mapping[str, frozenset[str]]] = {
    "png": frozenset(("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
    "jpeg": frozenset(("L", "RGB", "CMYK")),
    "webp": frozenset(("RGB", "RGBA")),
}


def require() -> None:
    """Raise ConfigError if Pillow is not installed, or is one that reads some files without end."""
    try:
        version = importlib.import_module("PIL").__version__
        importlib.import_module("PIL.Image")
    except ImportError:
        raise ConfigError("images need Pillow: pip install 'wherry[image]'") from None
    if int(version.partition(".")[0]) < LOWEST_PILLOW:
        raise ConfigError(
            f"images need Pillow {LOWEST_PILLOW} or newer, not {version}: pip install --upgrade"
            " 'wherry[image]'"
        )


def prepared(data: bytes, spec: ImageSpec) -> tuple[int, Callable[[], Any]]:
    """The bytes of memory that the pixels will take, and a function that decodes them.

    Both raise InvalidRequest: the first without having decoded a pixel.
    """
    image = _opened(data, spec)
    pixels = image.size[0] * image.size[1]
    size = pixels * (1 if spec.mode == "L" else 4)  # Pillow has no pixels of 3 bytes

    def decode() -> Any:
        with _refused("cannot be decoded"):
            image.load()
            upright = _upright(image)
            done = upright if spec.mode is None else _converted(upright, spec.mode)
            return _as_array(done) if spec.python == "array" else done

    return size, decode


def encoded(value: Any, spec: ImageSpec) -> bytes:
    """A PIL image or a uint8 array [height, width(, channels)] in the format of `spec`. TypeError
    or ValueError."""
    image = _image_of(value)
    kept = _KEPT[spec.format]
    if image.mode not in kept:
        alpha = image.mode in ("LA", "La", "PA", "RGBa") or "transparency" in image.info
        image = image.convert("RGBA" if alpha and "RGBA" in kept else "RGB")
    options: dict[str, Any] = {}
    if spec.quality is not None and spec.format != "png":
        options["quality"] = spec.quality
    out = io.BytesIO()
    try:
        image.save(out, spec.format, **options)
    except (OSError, SystemError, OverflowError) as error:
        raise ValueError(f"{_size(image.size)} pixels: {error}") from error
    return out.getvalue()


def pixels_of(value: Any) -> FileBytes:
    """An image of a caller in this process as its pixels, which cost no codec. TypeError."""
    image = _image_of(value)
    image.load()
    palette = None
    if image.mode in ("P", "PA"):
        palette = image.palette.mode, bytes(image.getpalette(image.palette.mode))
    transparency = image.info.get("transparency")
    head = msgspec.msgpack.encode((image.mode, image.size, palette, transparency))
    parts = [_LENGTH.pack(len(head)), head, image.tobytes()]
    return FileBytes(b"".join(parts), media_type=PIXELS)


def is_pixels(row: bytes) -> bool:
    return isinstance(row, FileBytes) and row.media_type == PIXELS


def prepared_pixels(row: bytes, spec: ImageSpec) -> tuple[int, Callable[[], Any]]:
    with _refused("has no sound pixels"):
        (length,) = _LENGTH.unpack_from(row)
        start = _LENGTH.size + length
        mode, size, palette, transparency = _PIXELS_HEAD.decode(row[_LENGTH.size : start])
    if math.prod(size) > spec.max_pixels:
        raise _too_large(size, spec)

    def decode() -> Any:
        from PIL.Image import frombytes

        with _refused("cannot be decoded"):
            image = frombytes(mode, size, memoryview(row)[start:])
            if palette is not None:
                image.putpalette(palette[1], palette[0])
            if transparency is not None:
                image.info["transparency"] = transparency
            done = image if spec.mode is None else _converted(image, spec.mode)
            return _as_array(done) if spec.python == "array" else done

    return 4 * math.prod(size), decode


def _opened(data: bytes, spec: ImageSpec) -> Any:
    name = _format(data)
    if name is None or name not in spec.formats:
        raise wrong_format(data, name, "an image", spec.formats)
    if name == "tiff":
        _check_directory(data)
    module, plugin = _PLUGINS[name]
    with _refused(f"is not a valid {name.upper()} image"):
        image = getattr(importlib.import_module(module), plugin)(io.BytesIO(data))
    pixels = math.prod(image.size)
    if pixels > spec.max_pixels:
        raise _too_large(image.size, spec)
    if name == "jpeg" and _has_many_scans(data, image.fp.tell()):
        raise InvalidRequest(f"is a JPEG of more than {MAX_SCANS} scans: save it anew")
    return image


def _too_large(size: tuple[int, int], spec: ImageSpec) -> InvalidRequest:
    return InvalidRequest(
        f"has {_size(size)} = {math.prod(size)} pixels; at most {spec.max_pixels} are allowed"
        " (max_pixels): send a smaller image"
    )


def _has_many_scans(data: bytes, at: int) -> bool:
    """Whether a JPEG, whose first scan begins at `at`, has more than MAX_SCANS. What follows its
    end, such as the film of a phone's photo, does not count."""
    scans = 1
    while scans <= MAX_SCANS and (marker := _MARKER.search(data, at)):
        at = marker.end()
        if data[at - 1] == 0xD9:
            return False
        scans += data[at - 1] == 0xDA
        at += max(2, int.from_bytes(data[at : at + 2], "big"))
    return scans > MAX_SCANS


def _check_directory(data: bytes) -> None:
    """Refuse a TIFF whose first directory names more bytes than there are, as it does if its tags
    share them, or too many strips. Pillow copies what each tag names, before it knows the size."""
    order: Literal["little", "big"] = "little" if data[:2] == b"II" else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], order)

    start = number(4, 4) + 2
    claimed = 0
    for at in range(start, min(start + 12 * number(start - 2, 2), len(data)), 12):
        tag, kind, count = number(at, 2), number(at + 2, 2), number(at + 4, 4)
        if tag in _STRIPS and count > MAX_STRIPS:
            raise InvalidRequest(f"is a TIFF of {count} strips; at most {MAX_STRIPS} are allowed")
        size = count * _TIFF_SIZES.get(kind, 0)
        claimed += size if size > 4 else 0
    if claimed > len(data):
        raise InvalidRequest(
            f"is a TIFF of {len(data)} bytes whose tags name {claimed}: save it anew"
        )


def _format(data: bytes) -> str | None:
    for beginning, name in _BEGINNINGS:
        if data.startswith(beginning):
            return name
    return "webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


class _refused(contextlib.AbstractContextManager[None]):
    """Makes what a decoder raises an InvalidRequest. Foreign bytes make it raise anything."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, MemoryError | InvalidRequest):
            text = " ".join(str(error).split())[:120]
            raise InvalidRequest(f"{self._what}" + (f": {text}" if text else "")) from None


def _upright(image: Any) -> Any:
    """The image, turned as its EXIF orientation requires."""
    from PIL.ImageOps import exif_transpose

    try:
        exif_transpose(image, in_place=True)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001, S110 - EXIF of any kind of nonsense: the pixels are sound
        pass
    return image


def _converted(image: Any, mode: str) -> Any:
    """The image in this mode. Samples of 16 bits lose the lower 8, as Pillow does with colours."""
    if image.mode == mode:
        return image
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        from PIL.Image import fromarray

        image = fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise InvalidRequest("has samples of 32 bits, whose range is unknown: send 8 or 16 bits")
    if image.mode == "P" and mode != "RGBA":
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    return image if image.mode == mode else image.convert(mode)


def _as_array(image: Any) -> Any:
    array = np.array(image)
    return array if array.ndim == 3 else array[:, :, np.newaxis]


def _image_of(value: Any) -> Any:
    """A PIL image of an image or array. TypeError with what is wrong."""
    if isinstance(value, Image):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8:
            raise TypeError(f"an array of {value.dtype}, not uint8 (0 to 255)")
        if value.ndim == 3 and value.shape[2] == 1:
            value = value[:, :, 0]
        if 0 not in value.shape and (
            value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (3, 4))
        ):
            from PIL.Image import fromarray

            return fromarray(np.ascontiguousarray(value))
        raise TypeError(
            f"an array of shape {list(value.shape)}, not [height, width] or [height, width, 1, 3"
            " or 4 channels]"
        )
    raise TypeError(f"{type(value).__name__}, not a PIL image or a uint8 array")


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
