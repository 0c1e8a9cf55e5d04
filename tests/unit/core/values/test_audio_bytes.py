"""How do the bytes of an audio file become samples, and samples bytes?"""

import contextlib
import io
import struct
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from wherry.core.values import audio_bytes
from wherry.core.values.errors import InvalidRequest
from wherry.core.values.media import Audio, AudioSpec

RATE = 16_000


def tone(seconds: float = 0.5, rate: int = RATE, hz: float = 440.0) -> Any:
    return 0.5 * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)


def saved(samples: Any, rate: int = RATE, format: str = "WAV", subtype: str | None = None) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=format, subtype=subtype)
    return out.getvalue()


def decoded(data: bytes, **settings: Any) -> Any:
    return audio_bytes.prepared(data, AudioSpec(**settings))[1]()


@pytest.mark.parametrize(
    ("format", "subtype", "error"),
    [
        ("WAV", "PCM_16", 1e-4),
        ("WAV", "PCM_24", 1e-6),
        ("WAV", "PCM_U8", 1e-2),
        ("WAV", "FLOAT", 1e-7),
        ("WAV", "DOUBLE", 1e-7),
        ("WAV", "ULAW", 3e-2),
        ("WAVEX", "PCM_16", 1e-4),
        ("RF64", "PCM_16", 1e-4),
        ("FLAC", "PCM_16", 1e-4),
        ("FLAC", "PCM_24", 1e-6),
        ("OGG", "VORBIS", 5e-2),
        ("OGG", "OPUS", 1e-1),
        ("MP3", "MPEG_LAYER_III", 5e-2),
    ],
)
def test_each_format_becomes_samples(format: str, subtype: str, error: float) -> None:
    found = decoded(saved(tone(), format=format, subtype=subtype))

    assert (found.sample_rate, found.samples.dtype) == (RATE, np.float32)
    assert abs(found.seconds - 0.5) < 0.1
    inner = slice(2000, 6000)
    assert np.abs(found.samples[inner] - tone()[inner]).max() < error


@pytest.mark.parametrize("channels", [1, 2, 8])
def test_channels_are_averaged_unless_they_are_wanted(channels: int) -> None:
    each = np.stack([tone() * (k + 1) / channels for k in range(channels)], axis=1)
    data = saved(each, subtype="FLOAT")

    assert np.allclose(decoded(data).samples, each.mean(axis=1), atol=1e-6)
    apart = decoded(data, mono=False)
    assert apart.channels == channels
    assert np.allclose(apart.samples.reshape(each.shape), each, atol=1e-6)


@pytest.mark.parametrize("rate", [1_000, 8_000, 11_025, 22_050, 44_100, 48_000, 96_000, 192_000])
def test_each_rate_becomes_the_one_that_is_wanted(rate: int) -> None:
    found = decoded(saved(tone(rate=rate, hz=200.0), rate), sample_rate=RATE)

    assert found.sample_rate == RATE
    assert len(found.samples) == RATE // 2
    inner = slice(1600, -1600)
    assert np.abs(found.samples[inner] - tone(hz=200.0)[inner]).max() < 2e-3


def test_arrays_are_the_samples_alone() -> None:
    media = AudioSpec(sample_rate=8_000, python="array")

    samples = audio_bytes.prepared(saved(tone()), media)[1]()

    assert (samples.dtype, samples.shape) == (np.float32, (4_000,))
    samples[0] = 1.0  # the code may write to it


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty, not audio"),
        (b"\x89PNG\r\n\x1a\n", "is not audio: it begins with"),
        (b"<html>", "is not audio: it begins with b'<html>'"),
        (b"fLaC", "is not a valid FLAC file"),
        (b"OggS" + b"\0" * 40, "is not a valid OGG file"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "is not a valid WAV file"),
        (b"ID3" + b"\0" * 100, "is not a valid MP3 file"),
        (b"\xff\xfb" + b"\0" * 100, "is not a valid MP3 file"),
        (saved(np.zeros(0)), "has no samples"),
        (saved(np.array([0.0, np.nan]), subtype="FLOAT"), "samples that are not numbers"),
        (saved(np.array([np.inf, 0.0]), subtype="FLOAT"), "samples that are not numbers"),
    ],
    # Names of their own, as a file of floats holds the time at which it was written, and two
    # processes of pytest must collect the same names.
    ids=[
        "empty",
        "png",
        "html",
        "flac",
        "ogg",
        "wav",
        "mp3-tag",
        "mp3-frame",
        "no-samples",
        "not-a-number",
        "infinite",
    ],
)
def test_what_is_no_audio_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decoded(data)

    assert said in str(refused.value)
    assert "0x" not in str(refused.value)


def test_a_format_that_is_not_taken_is_named() -> None:
    with pytest.raises(InvalidRequest, match="is FLAC, which is not taken here; send WAV"):
        decoded(saved(tone(), format="FLAC"), formats=("wav",))


def test_an_hour_of_silence_is_refused_by_its_header() -> None:
    data = saved(np.zeros(3600 * 1000, np.int16), 1000, "FLAC")
    assert len(data) < 2**18

    with pytest.raises(InvalidRequest, match=r"lasts 3600.0 s; at most 600 s.*max_seconds"):
        audio_bytes.prepared(data, AudioSpec())


def test_more_samples_than_memory_is_for_are_refused_by_the_header() -> None:
    header = bytearray(saved(np.zeros((1, 8)), 192_000, "FLAC"))
    at = header.index(b"fLaC") + 8 + 10  # of STREAMINFO: rate, channels, bits and samples
    (packed,) = struct.unpack_from(">Q", header, at)
    struct.pack_into(">Q", header, at, packed >> 36 << 36 | 192_000 * 500)

    with pytest.raises(InvalidRequest, match="768000000 samples; at most 134217728"):
        audio_bytes.prepared(bytes(header), AudioSpec(mono=False))


@pytest.mark.parametrize("format", ["FLAC", "OGG", "MP3"])
def test_truncated_audio_is_refused_or_shorter(format: str) -> None:
    data = saved(tone(2.0), format=format)

    with contextlib.suppress(InvalidRequest):
        assert len(decoded(data[: len(data) // 2]).samples) < 1.6 * RATE


@pytest.mark.parametrize("rate", [1, 999, 192_001, 2**31 - 1])
def test_rates_that_nobody_records_at_are_refused(rate: int) -> None:
    data = bytearray(saved(tone()))
    struct.pack_into("<I", data, 24, rate)

    with pytest.raises(InvalidRequest, match="1000 to 192000"):
        decoded(bytes(data))


@given(st.binary(max_size=100), st.sampled_from(["WAV", "FLAC", "OGG", "MP3"]))
def test_damaged_bytes_are_decoded_or_refused(noise: bytes, format: str) -> None:
    data = bytearray(saved(tone(0.1), format=format))
    at = sum(noise) % len(data)
    data[at : at + len(noise)] = noise

    with contextlib.suppress(InvalidRequest):
        assert decoded(bytes(data), sample_rate=RATE).sample_rate == RATE


@pytest.mark.parametrize("format", ["wav", "flac", "ogg"])
@pytest.mark.parametrize("shape", [(800,), (800, 2)])
def test_audio_is_written_in_the_format_that_is_asked_for(
    format: str, shape: tuple[int, ...]
) -> None:
    data = audio_bytes.encoded(Audio(np.zeros(shape, np.float64), 8000), AudioSpec(format=format))

    info = soundfile.info(io.BytesIO(data))
    assert (info.format, info.samplerate, info.frames) == (format.upper(), 8000, 800)


def test_samples_beyond_full_scale_are_clipped() -> None:
    data = audio_bytes.encoded(Audio(np.array([2.0, -2.0]), RATE), AudioSpec())

    assert np.allclose(decoded(data).samples, [1, -1], atol=1e-3)


@pytest.mark.parametrize(
    "value",
    [
        b"bytes",
        np.zeros(8, np.float32),
        Audio(np.zeros(8, np.int16), RATE),
        Audio(np.zeros((2, 2, 2), np.float32), RATE),
    ],
    ids=["bytes", "no rate", "integers", "dimensions"],
)
def test_what_is_no_audio_is_not_written(value: Any) -> None:
    with pytest.raises(TypeError):
        audio_bytes.encoded(value, AudioSpec())
