"""examples/voice: recorded sentences, noise and silence, in several formats, alone and together."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from tests.examples.pages import opened

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
RATE = 16000
SENTENCES = Path(sys.prefix) / "share/speech/pytest_audioeval/samples/audio"

Samples = np.ndarray[Any, np.dtype[np.float64]]


def sentence(name: str) -> Samples:
    samples, rate = soundfile.read(SENTENCES / name)
    assert rate == RATE
    return samples  # type: ignore[no-any-return]


def encoded(samples: Samples, format: str = "WAV", rate: int = RATE) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=format)
    return out.getvalue()


def noise(seconds: float) -> Samples:
    return np.random.default_rng(0).normal(0, 0.02, round(seconds * RATE))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the server that the example's README starts, once all commands of it have run."""
    folder = tmp_path_factory.mktemp("voice")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "speech.wav").write_bytes((SENTENCES / "en/counting.wav").read_bytes())
    (folder / "silence.flac").write_bytes(encoded(np.zeros(2 * RATE), "FLAC"))
    with opened(ROOT / "examples/voice/README.md", folder) as page:
        page.run()
        assert page.server is not None
        yield page.server.url


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


def answer(client: httpx.Client, *bodies: bytes) -> list[Any]:
    reply = client.post("/speech", files=[("audio", body) for body in bodies])
    assert reply.status_code == 200, reply.text
    return reply.json() if len(bodies) > 1 else [reply.json()]


def edges(found: Any) -> list[float]:
    return [edge for span in found["speech"] for edge in (span["start"], span["end"])]


def test_a_sentence_between_pauses_is_found_where_it_is(client: httpx.Client) -> None:
    for name in ("en/quick_brown_fox.wav", "fr/comptage.wav", "zh/jishu.wav"):
        spoken = sentence(name)
        pauses = np.zeros(2 * RATE), noise(3.0)
        [found] = answer(client, encoded(np.concatenate([pauses[0], spoken, pauses[1]])))
        start, end = edges(found)[0], edges(found)[-1]
        assert 2.0 <= start < 2.3
        assert -0.5 < end - (2 + len(spoken) / RATE) <= 0.1
        assert found["share"] == pytest.approx((end - start) / (5 + len(spoken) / RATE), abs=0.1)


def test_noise_silence_and_a_tone_are_no_speech(client: httpx.Client) -> None:
    tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(3 * RATE) / RATE)
    for sound in (noise(5.0), np.zeros(RATE), np.zeros(1), tone):
        assert answer(client, encoded(sound)) == [{"speech": [], "share": 0.0}]


def test_recordings_of_all_lengths_are_answered_together_as_alone(client: httpx.Client) -> None:
    hello, counted = sentence("en/hello_world.wav"), sentence("es/conteo.wav")
    sounds = [
        hello,
        noise(0.02),
        np.concatenate([counted, noise(1.0), hello]),
        np.zeros(512),
        counted,
    ]
    bodies = [encoded(sound) for sound in sounds]
    together = answer(client, *bodies)
    assert len(edges(together[2])) >= 4
    for found, body in zip(together, bodies, strict=True):
        [alone] = answer(client, body)
        assert edges(found) == pytest.approx(edges(alone), abs=0.033)
        assert found["share"] == pytest.approx(alone["share"], abs=0.02)


def test_the_same_recording_in_other_formats_and_rates_has_its_speech_there(
    client: httpx.Client,
) -> None:
    spoken = np.concatenate([np.zeros(RATE), sentence("en/quick_brown_fox.wav"), np.zeros(RATE)])
    stereo = np.stack([spoken, spoken], axis=1)
    spectrum = np.fft.rfft(spoken)
    half = np.fft.irfft(spectrum[: len(spoken) // 4 + 1], len(spoken) // 2) / 2
    copies = [
        encoded(spoken),
        encoded(spoken, "FLAC"),
        encoded(spoken, "OGG"),
        encoded(spoken, "MP3"),
        encoded(stereo, "FLAC"),
        encoded(half, "WAV", RATE // 2),
    ]
    first, *others = answer(client, *copies)
    assert len(edges(first)) >= 2
    for other in others:
        assert edges(other)[0] == pytest.approx(edges(first)[0], abs=0.13)
        assert edges(other)[-1] == pytest.approx(edges(first)[-1], abs=0.13)
        assert other["share"] == pytest.approx(first["share"], abs=0.05)


def test_a_broken_recording_fails_alone_and_says_which_input_it_was(client: httpx.Client) -> None:
    body = encoded(sentence("en/hello_world.wav"))
    reply = client.post("/speech", files={"audio": ("a.wav", body[:30])})
    assert reply.status_code == 400
    assert "model 'speech': input 'audio'" in reply.text
    assert answer(client, body)[0]["speech"]
