"""How does a row of media become a value of the code, or of a caller, and back?

Pillow and soundfile are imported when the first such row comes, or by `require` before.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeGuard

from wherry.core.values.errors import RequestTooLarge
from wherry.core.values.media import (
    AUDIO_TYPES,
    IMAGE_TYPES,
    AudioSpec,
    File,
    FileBytes,
    FileSpec,
    ImageSpec,
    MediaSpec,
    clean_name,
)


def is_converted(media: MediaSpec | None) -> TypeGuard[MediaSpec]:
    """Whether the code has such rows as something else than bytes."""
    return media is not None and media.python != "bytes"


def require(media: MediaSpec | None) -> None:
    """Import what such rows are decoded with. ConfigError names the package that is missing."""
    if not is_converted(media):
        return
    if isinstance(media, ImageSpec):
        from wherry.core.values import image_bytes

        image_bytes.require()
    elif isinstance(media, AudioSpec):
        from wherry.core.values import audio_bytes

        audio_bytes.require()


def prepared(row: bytes, media: MediaSpec) -> tuple[int, Callable[[], Any]]:
    """The bytes of memory that the decoded row will take, and a function that decodes it.

    Both raise InvalidRequest, whose text begins with a verb; the first before it has decoded.
    """
    if isinstance(row, FileBytes) and isinstance(media, ImageSpec):
        from wherry.core.values import image_bytes

        if image_bytes.is_pixels(row) and media.python != "bytes":
            return image_bytes.prepared_pixels(row, media)
    if media.max_bytes is not None and len(row) > media.max_bytes:
        raise RequestTooLarge(
            f"has {len(row)} bytes; at most {media.max_bytes} are allowed (max_bytes)"
        )
    if media.python == "bytes":
        return 0, lambda: row
    if isinstance(media, FileSpec):
        if isinstance(row, FileBytes):
            return 0, lambda: File(row, row.name, row.media_type)
        return 0, lambda: File(row)
    if isinstance(media, ImageSpec):
        from wherry.core.values import image_bytes

        return image_bytes.prepared(row, media)
    from wherry.core.values import audio_bytes

    return audio_bytes.prepared(row, media)


def encoded(value: Any, media: MediaSpec, *, lossless: bool = False) -> bytes:
    """What the code has returned, or a caller sends, as the bytes of a row; `lossless`: for this
    program alone. TypeError or ValueError with what is wrong."""
    if media.python == "bytes":
        if not isinstance(value, bytes):
            raise TypeError(f"{type(value).__name__}, not bytes")
        return value
    if isinstance(media, FileSpec):
        if not isinstance(value, File) or not isinstance(value.data, bytes):
            raise TypeError(f"{type(value).__name__}, not wherry.File of bytes")
        return FileBytes(value.data, value.name, value.media_type)
    if isinstance(media, ImageSpec):
        from wherry.core.values import image_bytes

        return image_bytes.pixels_of(value) if lossless else image_bytes.encoded(value, media)
    from wherry.core.values import audio_bytes

    return audio_bytes.encoded(value, media, exact=lossless)


def from_caller(value: Any, media: MediaSpec) -> bytes:
    """The bytes of a row from what a caller has: bytes, a path, an open file, or a value such as
    the code takes, which is encoded without loss. Reads files: for callers of this process only.
    TypeError, ValueError or OSError."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, File):
        return FileBytes(value.data, value.name, value.media_type)
    name = None
    if isinstance(value, os.PathLike):
        name = os.fspath(value)
        with open(value, "rb") as file:
            data = file.read()
    elif callable(getattr(value, "read", None)):
        name, data = getattr(value, "name", None), value.read()
        if not isinstance(data, bytes):
            raise TypeError("a file opened as text: open it with mode 'rb'")
    elif isinstance(value, str):
        raise TypeError("str; for a file's name write pathlib.Path(name)")
    else:
        if isinstance(media, FileSpec) or media.python == "bytes":
            raise TypeError(f"{type(value).__name__}, not bytes, a path or an open file")
        return encoded(value, media, lossless=True)
    if isinstance(media, FileSpec) and isinstance(name, str):
        return FileBytes(data, clean_name(name))
    return data


def to_caller(row: bytes, media: MediaSpec) -> Any:
    """The value that a row of an output stands for, in its caller's process. InvalidRequest if the
    bytes are not as specified."""
    if isinstance(media, ImageSpec):
        media = replace(media, mode=None, max_pixels=sys.maxsize, formats=tuple(IMAGE_TYPES))
    elif isinstance(media, AudioSpec):
        media = replace(media, mono=False, max_seconds=math.inf, formats=tuple(AUDIO_TYPES))
    return prepared(row, replace(media, max_bytes=None))[1]()
