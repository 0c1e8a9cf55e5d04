"""OpenAI's own client sends recordings to plain models."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from typing import TypedDict

import openai
import pytest

import wherry
from tests.ways import WAYS, served


class Segment(TypedDict):
    start: float
    end: float
    text: str


class Heard(TypedDict):
    text: str
    language: str
    duration: float
    segments: list[Segment]


@wherry.model
def hear(audio: wherry.Audio, language: str = "en", task: str = "") -> Heard:
    said = [Segment(start=0.0, end=audio.seconds, text=task)]
    return Heard(text="all", language=language, duration=audio.seconds, segments=said)


@wherry.model
def piecewise(audio: wherry.Audio) -> Iterator[str]:
    yield "one "
    yield "two"


# OpenAI's client calls its translations deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")


@pytest.fixture(scope="module", params=WAYS)
def server(request: pytest.FixtureRequest) -> Iterator[wherry.Server]:
    with served(request.param, lambda: (hear, piecewise)) as server:
        yield server


@pytest.fixture
def client(server: wherry.Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def recording() -> tuple[str, bytes]:
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setnchannels(1)
        made.setsampwidth(2)
        made.setframerate(8000)
        made.writeframes(b"\1\2" * 12000)
    return "said.wav", file.getvalue()


def test_a_recording_becomes_text(client: openai.OpenAI, recording: tuple[str, bytes]) -> None:
    create = client.audio.transcriptions.create
    assert create(model="hear", file=recording).text == "all"
    told = create(
        model="hear", file=recording, language="nl", response_format="verbose_json",
        timestamp_granularities=["segment"], temperature=0,
    )  # fmt: skip
    assert (told.language, told.duration) == ("nl", 1.5)
    assert told.segments is not None
    assert (told.segments[0].end, told.segments[0].text) == (1.5, "transcribe")
    srt = create(model="hear", file=recording, response_format="srt")
    assert srt == "1\n00:00:00,000 --> 00:00:01,500\ntranscribe\n\n"
    translated = client.audio.translations.create(
        model="hear", file=recording, response_format="verbose_json"
    )
    assert translated.segments is not None
    assert translated.segments[0].text == "translate"


def test_a_transcription_comes_piece_by_piece(
    client: openai.OpenAI, recording: tuple[str, bytes]
) -> None:
    for model, pieces in (("piecewise", ["one ", "two"]), ("hear", ["all"])):
        events = list(client.audio.transcriptions.create(model=model, file=recording, stream=True))
        deltas = [e.delta for e in events if e.type == "transcript.text.delta"]
        assert deltas == pieces
        done = events[-1]
        assert done.type == "transcript.text.done"
        assert done.text == "".join(pieces)


def test_what_is_refused_names_its_field(
    client: openai.OpenAI, recording: tuple[str, bytes]
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.audio.transcriptions.create(model="piecewise", file=recording, language="nl")
    assert refused.value.param == "language"
    with pytest.raises(openai.NotFoundError, match="or has no 'task'"):
        client.audio.translations.create(model="piecewise", file=recording)
    with pytest.raises(openai.BadRequestError) as refused:
        client.audio.transcriptions.create(model="hear", file=("x.wav", b"nothing of the kind"))
    assert refused.value.param == "file"
