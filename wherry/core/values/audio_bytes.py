"""How do the bytes of an audio file become samples, and samples bytes?

With libsndfile (soundfile), for four formats, recognized by their first bytes. The length is
checked before samples are decoded.
"""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wherry.core.values.errors import ConfigError, InvalidRequest
from wherry.core.values.media import Audio, AudioSpec, wrong_format

#: Zero crossings of the sinc on each side, and the window's shape: about 90 dB.
_CROSSINGS: Final = 32
_BETA: Final = 8.96
#: The middle of the transition, as a part of the lower Nyquist frequency.
_CUTOFF: Final = 0.915
#: This number of consecutive outputs have weights of their own, made together.
_PHASES: Final = 256


def resampled(
    samples: npt.NDArray[np.float32], old_rate: int, new_rate: int
) -> npt.NDArray[np.float32]:
    """`samples` [frames] or [frames, channels] at another rate; ceil(frames x new / old) frames."""
    common = math.gcd(old_rate, new_rate)
    up, down = new_rate // common, old_rate // common
    count = -(-len(samples) * up // down)
    margin = math.ceil(_CROSSINGS * max(1.0, down / up) / _CUTOFF)
    padded = np.pad(samples, [(margin, margin)] + [(0, 0)] * (samples.ndim - 1))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * margin + 1, axis=0)
    found = np.empty((count, *samples.shape[1:]), np.float32)
    for first in range(0, min(up, count), _PHASES):
        phases = np.arange(first, min(up, count, first + _PHASES))
        for phase, weights in zip(phases.tolist(), _weights(phases, up, down, margin), strict=True):
            place = found[phase::up]  # each up-th output lies alike between old samples
            start = phase * down // up
            np.matmul(windows[start : start + len(place) * down : down], weights, out=place)
    return found


def _weights(
    phases: npt.NDArray[np.int64], up: int, down: int, margin: int
) -> npt.NDArray[np.float32]:
    """For each phase what the old samples around an output weigh, [phases, 2 * margin + 1]."""
    between = (phases * down % up / up)[:, np.newaxis]
    away = np.arange(-margin, margin + 1) - between
    window = np.i0(_BETA * np.sqrt(np.clip(1 - (away / margin) ** 2, 0, None)))
    weights = window * np.sinc(away * _CUTOFF * min(1.0, up / down))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights.astype(np.float32)


#: Samples of one file in memory, at most: 512 MiB.
MAX_SAMPLES: Final = 2**27
MIN_RATE, MAX_RATE = 1000, 192_000
_BLOCK_SAMPLES = 2**18

_SNDFILE: Final[Mapping[str, tuple[str, ...]]] = {
    "wav": ("WAV", "WAVEX", "RF64"),
    "flac": ("FLAC",),
    "ogg": ("OGG",),
    "mp3": ("MP3", "MPEG"),
}
_WRITTEN: Final = {"wav": ("WAV", "PCM_16"), "flac": ("FLAC", "PCM_16"), "ogg": ("OGG", "VORBIS")}


def require() -> None:
    try:
        importlib.import_module("soundfile")
    except (ImportError, OSError):  # OSError: without its library
        raise ConfigError("audio needs soundfile: pip install 'wherry[audio]'") from None


def prepared(data: bytes, spec: AudioSpec) -> tuple[int, Callable[[], Any]]:
    """The bytes of memory that the samples will take, and a function that decodes them.

    Both raise InvalidRequest: the first without having decoded a sample.
    """
    file = _opened(data, spec)
    samples = file.frames * (1 if spec.mono else file.channels)
    if samples > MAX_SAMPLES:
        raise InvalidRequest(
            f"has {samples} samples; at most {MAX_SAMPLES} are allowed: send fewer channels, or a"
            " lower sample rate"
        )

    def decode() -> Any:
        recorded = _samples(file, spec.mono)
        rate = file.samplerate
        if spec.sample_rate is not None and spec.sample_rate != rate:
            recorded = resampled(recorded, rate, spec.sample_rate)
            rate = spec.sample_rate
        return recorded if spec.python == "array" else Audio(recorded, rate)

    return 4 * samples, decode


def encoded(value: Any, spec: AudioSpec, *, exact: bool = False) -> bytes:
    """Audio, or an array of samples at the spec's rate, in the format of `spec`; with `exact` as
    WAV with all bits. TypeError or ValueError."""
    import soundfile

    audio = _audio_of(value, spec)
    written, subtype = ("WAV", "FLOAT") if exact else _WRITTEN[spec.format]
    out = io.BytesIO()
    try:
        soundfile.write(out, audio.samples, audio.sample_rate, format=written, subtype=subtype)
    except (soundfile.LibsndfileError, OverflowError) as error:
        raise ValueError(f"{audio!r}: {error}") from error
    return out.getvalue()


def _opened(data: bytes, spec: AudioSpec) -> Any:
    import soundfile

    name = _format(data)
    if name is None or name not in spec.formats:
        raise wrong_format(data, name, "audio", spec.formats)
    try:
        file = soundfile.SoundFile(io.BytesIO(data))
    except Exception as error:  # noqa: BLE001 - foreign bytes make a decoder raise anything
        raise _unsound(name, error) from None
    if file.format not in _SNDFILE[name]:
        raise InvalidRequest(f"is {file.format}, not {name.upper()}")
    if not MIN_RATE <= file.samplerate <= MAX_RATE:
        raise InvalidRequest(
            f"has {file.samplerate} frames a second; {MIN_RATE} to {MAX_RATE} are allowed"
        )
    if file.frames > spec.max_seconds * file.samplerate:
        raise InvalidRequest(
            f"lasts {file.frames / file.samplerate:.1f} s; at most {spec.max_seconds:g} s are"
            " allowed (max_seconds): send a part"
        )
    if not file.frames:
        raise InvalidRequest("has no samples")
    return file


def _samples(file: Any, mono: bool) -> npt.NDArray[np.float32]:
    """All samples of an open file, as float32 of shape [frames] or [frames, channels]."""
    single = file.channels == 1 or mono
    found = np.empty(file.frames if single else (file.frames, file.channels), np.float32)
    start = 0
    try:
        while start < len(found):
            count = min(len(found) - start, max(1, _BLOCK_SAMPLES // file.channels))
            block = file.read(count, dtype="float32", always_2d=True)
            if not len(block):
                break
            part = block.mean(axis=1, dtype=np.float32) if single else block
            found[start : start + len(block)] = part
            start += len(block)
    except Exception as error:  # noqa: BLE001 - as above
        raise _unsound(file.format, error) from None
    if start < len(found):
        raise InvalidRequest(
            f"ends after {start} of {len(found)} frames: it is truncated or damaged"
        )
    if not np.isfinite(found).all():
        raise InvalidRequest("has samples that are not numbers (NaN or infinite)")
    return found


def _format(data: bytes) -> str | None:
    if data[:4] in (b"RIFF", b"RIFX", b"RF64") and data[8:12] == b"WAVE":
        return "wav"
    if data.startswith(b"fLaC"):
        return "flac"
    if data.startswith(b"OggS"):
        return "ogg"
    if data.startswith(b"ID3") or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2):
        return "mp3"  # an ID3 tag, or the first frame of layer 3
    return None


def _unsound(name: str, error: Exception) -> InvalidRequest:
    text = " ".join(str(getattr(error, "error_string", error)).split())[:120]
    return InvalidRequest(f"is not a valid {name.upper()} file: {text}")


def _audio_of(value: Any, spec: AudioSpec) -> Audio:
    """The samples of a value with their rate. TypeError with what is wrong."""
    if isinstance(value, np.ndarray) and spec.sample_rate is not None:
        value = Audio(value, spec.sample_rate)
    if not isinstance(value, Audio):
        raise TypeError(f"{type(value).__name__}, not wherry.Audio")
    samples = np.asarray(value.samples)
    if samples.dtype.kind != "f" or samples.ndim not in (1, 2):
        raise TypeError(
            f"samples of {samples.dtype} of shape {list(samples.shape)}, not float32 [frames] or"
            " [frames, channels]"
        )
    return Audio(samples.astype(np.float32, copy=False), int(value.sample_rate))
