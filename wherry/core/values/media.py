"""What do the bytes of a row hold: an image, audio or a file?

On every wire, in queues and between processes such a row is `bytes`. A spec beside its tensor
describes them; the model's own process decodes and encodes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from wherry.core.values.errors import ConfigError, InvalidRequest

#: The formats of images by name, with their media types.
IMAGE_TYPES: Mapping[str, str] = {
    name: f"image/{name}" for name in ("png", "jpeg", "webp", "gif", "bmp", "tiff")
}
#: The same of audio.
AUDIO_TYPES: Mapping[str, str] = {
    "wav": "audio/wav", "flac": "audio/flac", "ogg": "audio/ogg", "mp3": "audio/mpeg"
}  # fmt: skip
#: The media type of a file without one.
ANY_BYTES = "application/octet-stream"

#: How the model's code has a row: as the value of its class, as a numpy array, or as the bytes.
Python = Literal["value", "array", "bytes"]

_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]{1,63}/[\w!#$&^.+-]{1,63}", re.ASCII)
_NAME_CHARACTERS = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """Settings of an image: `Annotated[wherry.Image, wherry.ImageSpec(mode="L")]`.

    With `wherry.Image` the code gets PIL images; with `np.ndarray`, uint8 arrays of shape [height,
    width, channels]; with `bytes`, the encoded bytes, of which only the size is checked.

        @wherry.model(max_batch_size=8)
        def darkness(
            image: Annotated[list[np.ndarray], wherry.ImageSpec(mode="L", max_pixels=1_000_000)],
        ) -> list[float]:
            return [1 - float(one.mean()) / 255 for one in image]
    """

    kind: ClassVar[Literal["image"]] = "image"

    #: Of inputs: what they are converted to, "RGB", "RGBA" or "L" (grey). None: as they are stored.
    mode: str | None = "RGB"
    #: Of inputs: width x height at most, checked before pixels are decoded.
    max_pixels: int = 50_000_000
    #: Of inputs: encoded bytes at most; None: what the server accepts.
    max_bytes: int | None = None
    #: Of inputs: the formats that are decoded.
    formats: tuple[str, ...] = tuple(IMAGE_TYPES)
    #: Of outputs: "png", "jpeg" or "webp".
    format: str = "png"
    #: Of outputs as JPEG or WEBP: 1 (smallest) to 100 (best); None: Pillow's default.
    quality: int | None = None
    #: Set by the annotation.
    python: Python = field(default="value", repr=False)

    def __post_init__(self) -> None:
        where = "wherry.ImageSpec"
        if self.mode not in ("RGB", "RGBA", "L", None):
            raise ConfigError(f'{where}: mode {self.mode!r} is not "RGB", "RGBA", "L" or None')
        _check_formats(where, self.formats, IMAGE_TYPES)
        _check_choice(where, self.format, ("png", "jpeg", "webp"))
        _check_positive(where, "max_pixels", self.max_pixels)
        _check_positive(where, "max_bytes", self.max_bytes)
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise ConfigError(f"{where}: quality {self.quality} is not between 1 and 100")

    @property
    def accepts(self) -> tuple[str, ...]:
        """Media types that an input takes."""
        return tuple(IMAGE_TYPES[name] for name in self.formats)

    @property
    def media_type(self) -> str:
        """The media type of an output."""
        return IMAGE_TYPES[self.format]


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioSpec:
    """Settings of audio: `Annotated[wherry.Audio, wherry.AudioSpec(sample_rate=16000)]`.

    With `wherry.Audio` the code gets its values; with `np.ndarray` (`sample_rate` is required),
    float32 samples of shape [frames], or [frames, channels] with `mono=False`; with `bytes`, the
    encoded bytes, of which only the size is checked.

        @wherry.model(max_batch_size=8)
        def loudness(
            sound: Annotated[list[np.ndarray], wherry.AudioSpec(sample_rate=16000)],
        ) -> list[float]:
            return [float(np.abs(one).max()) for one in sound]
    """

    kind: ClassVar[Literal["audio"]] = "audio"

    #: Of inputs: Hz that they are resampled to; None: as recorded. Of output arrays: their rate.
    sample_rate: int | None = None
    #: Of inputs: whether channels are averaged into one.
    mono: bool = True
    #: Of inputs: length at most, checked before samples are decoded.
    max_seconds: float = 600.0
    #: Of inputs: encoded bytes at most; None: what the server accepts.
    max_bytes: int | None = None
    #: Of inputs: the formats that are decoded.
    formats: tuple[str, ...] = tuple(AUDIO_TYPES)
    #: Of outputs: "wav" or "flac" (16 bits a sample), or "ogg" (Vorbis).
    format: str = "wav"
    #: Set by the annotation.
    python: Python = field(default="value", repr=False)

    def __post_init__(self) -> None:
        where = "wherry.AudioSpec"
        if self.sample_rate is not None and not 1000 <= self.sample_rate <= 192_000:
            raise ConfigError(f"{where}: sample_rate {self.sample_rate} is not 1000 to 192000 Hz")
        _check_formats(where, self.formats, AUDIO_TYPES)
        _check_choice(where, self.format, ("wav", "flac", "ogg"))
        _check_positive(where, "max_seconds", self.max_seconds)
        _check_positive(where, "max_bytes", self.max_bytes)

    @property
    def accepts(self) -> tuple[str, ...]:
        """Media types that an input takes."""
        return tuple(AUDIO_TYPES[name] for name in self.formats)

    @property
    def media_type(self) -> str:
        """The media type of an output."""
        return AUDIO_TYPES[self.format]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSpec:
    """Settings of a file: `Annotated[wherry.File, wherry.FileSpec(max_bytes=1_000_000)]`.

    For example:

        Csv = Annotated[wherry.File, wherry.FileSpec(max_bytes=1_000_000, accepts=("text/csv",))]

        @wherry.model
        def lines(table: Csv) -> int:
            return table.data.count(b"\\n")
    """

    kind: ClassVar[Literal["file"]] = "file"

    #: Of inputs: bytes at most; None: what the server accepts.
    max_bytes: int | None = None
    #: Of inputs: media types that forms and OpenAPI offer; () is any. Bytes are not compared.
    accepts: tuple[str, ...] = ()
    #: Of outputs whose `wherry.File` has none.
    media_type: str = ANY_BYTES
    #: Set by the annotation.
    python: Python = field(default="value", repr=False)

    def __post_init__(self) -> None:
        where = "wherry.FileSpec"
        _check_positive(where, "max_bytes", self.max_bytes)
        for one in (*self.accepts, self.media_type):
            if not _MEDIA_TYPE.fullmatch(one):
                raise ConfigError(f'{where}: {one!r} is not a media type such as "text/csv"')


MediaSpec = ImageSpec | AudioSpec | FileSpec


@dataclass(frozen=True, slots=True, eq=False)
class Audio:
    """Recorded sound: float32 samples between -1 and 1.

    For example:

        sound = wherry.Audio(np.zeros(8000, np.float32), sample_rate=16000)
        sound.seconds, sound.channels  # -> (0.5, 1)
    """

    #: Of shape [frames], or [frames, channels]. What a model returns may be float64 too.
    samples: npt.NDArray[np.floating[Any]]
    #: Frames a second (Hz).
    sample_rate: int

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return len(self.samples) / self.sample_rate

    @property
    def channels(self) -> int:
        """Number of channels."""
        return 1 if self.samples.ndim == 1 else int(self.samples.shape[1])

    def __repr__(self) -> str:
        return f"<Audio: {self.seconds:.2f} s, {self.sample_rate} Hz, {self.channels} channels>"


@dataclass(frozen=True, slots=True)
class File:
    """A file's bytes, with the name and media type that the sender declared.

    For example:

        wherry.File(b"a,b", name="table.csv", media_type="text/csv").name  # -> 'table.csv'
    """

    #: Its content.
    data: bytes = field(repr=False)
    #: Its last path component; None: unknown.
    name: str | None = None
    #: Such as "text/csv"; None: unknown. The sender's claim: the bytes may be anything.
    media_type: str | None = None


class FileBytes(bytes):
    """The bytes of a row that is a file, with its name and media type, cleaned of what could harm:
    paths, control characters, parameters."""

    name: str | None
    media_type: str | None

    def __new__(
        cls,
        data: bytes | bytearray | memoryview = b"",
        name: str | None = None,
        media_type: str | None = None,
    ) -> FileBytes:
        self = super().__new__(cls, data)
        self.name = clean_name(name)
        self.media_type = clean_media_type(media_type)
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return bytes(self), self.name, self.media_type


def clean_name(name: str | None) -> str | None:
    """The last component of a path without control characters; None if nothing is left."""
    if name is None:
        return None
    name = name.replace("\\", "/").rpartition("/")[2]
    name = "".join(c for c in name[-4 * _NAME_CHARACTERS :] if c.isprintable()).strip()
    return None if name in ("", ".", "..") else name[-_NAME_CHARACTERS:]


def clean_media_type(media_type: str | None) -> str | None:
    """A media type without parameters, in lower case; None if it is not valid."""
    bare = (media_type or "").partition(";")[0].strip().lower()
    return bare if _MEDIA_TYPE.fullmatch(bare) else None


def media_type_of(media: MediaSpec | None, row: Any) -> str:
    """The media type of one row of an output, whose spec has this `media`."""
    if isinstance(row, FileBytes) and row.media_type is not None:
        return row.media_type
    return ANY_BYTES if media is None else media.media_type


def wrong_format(
    data: bytes, name: str | None, what: str, formats: tuple[str, ...]
) -> InvalidRequest:
    """Why these bytes, in the format `name` (None: an unknown one), are not taken."""
    if name is not None:
        why = f"is {name.upper()}, which is not taken here"
    elif not data:
        why = f"is empty, not {what}"
    else:
        why = f"is not {what}: it begins with {data[:16]!r}"
    return InvalidRequest(f"{why}; send {', '.join(formats).upper()}")


def _check_formats(where: str, formats: tuple[str, ...], known: Mapping[str, str]) -> None:
    if not formats:
        raise ConfigError(f"{where}: formats is empty")
    for name in formats:
        _check_choice(where, name, tuple(known))


def _check_choice(where: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise ConfigError(f"{where}: format {name!r} is not one of {', '.join(known)}")


def _check_positive(where: str, name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise ConfigError(f"{where}: {name} must be positive, not {value}")
