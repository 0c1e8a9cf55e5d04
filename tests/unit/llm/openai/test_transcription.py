"""llm/openai/transcription.py: recordings become text, over any model that hears."""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import pytest

import wherry
from tests.http_exchange import Client, MemoryExchange, served
from wherry.llm.openai.models import abilities
from wherry.server.v2.common import Common, OpenAISettings

PATH = "/v1/audio/transcriptions"
EDGE = "edge-of-the-form"


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
def plain(audio: wherry.Audio) -> str:
    return f"{len(audio.samples)} samples"


@wherry.model
def whole(
    audio: Annotated[wherry.Audio, wherry.AudioSpec(sample_rate=16000)],
    language: str = "en",
    prompt: str = "",
    temperature: float = 0.0,
    task: str = "",
) -> Heard:
    said = [
        Segment(start=0.0, end=1.5, text=f" {task} {language}"),
        Segment(start=3661.25, end=3662.0, text=f"{prompt}\n\n-->{temperature}"),
    ]
    return Heard(text="all", language=language, duration=audio.seconds, segments=said)


@wherry.model
def piecewise(audio: wherry.Audio) -> Iterator[str]:
    yield "one "
    yield "two"
    if len(audio.samples) > 200:
        raise ValueError("broke")


@wherry.model
def browsers(file: Annotated[wherry.File, wherry.FileSpec(accepts=("audio/webm",))]) -> str:
    return f"{len(file.data)} bytes"


@wherry.model
def about(file: wherry.File) -> str:
    return "a file"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(plain, whole, piecewise, browsers, about) as client:
        yield client


def recording(samples: int = 160) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setnchannels(1)
        made.setsampwidth(2)
        made.setframerate(16000)
        made.writeframes(b"\1\2" * samples)
    return file.getvalue()


def form(file: bytes | None = None, **fields: Any) -> bytes:
    parts = []
    for name, value in fields.items():
        several = value if isinstance(value, list) else [value]
        parts += [(f'name="{name}"', str(one).encode()) for one in several]
    parts.append(('name="file"; filename="a.wav"', recording() if file is None else file))
    body = b"".join(
        f"--{EDGE}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + data + b"\r\n"
        for head, data in parts
    )
    return body + f"--{EDGE}--\r\n".encode()


def sent(client: Client, body: bytes, path: str = PATH) -> MemoryExchange:
    return client.post(path, body, {"content-type": f"multipart/form-data; boundary={EDGE}"})


def refused(exchange: MemoryExchange) -> tuple[str | None, str]:
    assert exchange.status == 400, exchange.body
    error = exchange.json["error"]
    assert error["type"] == "invalid_request_error"
    return error["param"], error["message"]


def test_a_model_that_makes_text_of_audio_transcribes(client: Client) -> None:
    able = {loaded.name: abilities(loaded) for loaded in client.runtime.models()}
    assert able == {
        "plain": {"transcriptions"},
        "whole": {"transcriptions", "translations"},
        "piecewise": {"transcriptions"},
        "browsers": {"transcriptions"},
        "about": set(),
    }
    answer = sent(client, form(model="plain"))
    assert (answer.status, answer.json) == (200, {"text": "160 samples"})
    webm = sent(client, form(b"webm", model="browsers"))
    assert webm.json == {"text": "4 bytes"}


def test_a_large_recording_is_no_json(client: Client) -> None:
    answer = sent(client, form(recording(200_000).replace(b"\1\2", b"[,"), model="plain"))
    assert answer.json == {"text": "200000 samples"}


def test_what_the_model_tells_is_told(client: Client) -> None:
    answer = sent(client, form(model="whole", language="nl", response_format="verbose_json"))
    told = answer.json
    assert (told["task"], told["language"], told["duration"]) == ("transcribe", "nl", 0.01)
    assert told["segments"][0] == {"start": 0.0, "end": 1.5, "text": " transcribe nl"}
    assert told["usage"] == {"type": "duration", "seconds": 1}
    wanted: dict[str, Any] = {"model": "whole", "response_format": "verbose_json"}
    granular: dict[str, Any] = {"timestamp_granularities[]": ["segment"]}
    timed = sent(client, form(**wanted, **granular))
    assert timed.json["segments"]
    translated = sent(client, form(**wanted), "/v1/audio/translations").json
    assert (translated["task"], translated["segments"][0]["text"]) == ("translate", " translate en")


def test_subtitles(client: Client) -> None:
    wanted: dict[str, Any] = {"model": "whole", "prompt": "so", "temperature": 0.5}
    srt = sent(client, form(**wanted, response_format="srt"))
    assert srt.content_type == "text/plain; charset=utf-8"
    assert srt.body.decode() == (
        "1\n00:00:00,000 --> 00:00:01,500\ntranscribe en\n\n"
        "2\n01:01:01,250 --> 01:01:02,000\nso\n->0.5\n\n"
    )
    vtt = sent(client, form(**wanted, response_format="vtt"))
    assert vtt.content_type == "text/vtt; charset=utf-8"
    assert vtt.body.decode().startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\ntranscribe en\n")
    text = sent(client, form(model="whole", response_format="text"))
    assert (text.content_type, text.body) == ("text/plain; charset=utf-8", b"all")


def events(exchange: MemoryExchange) -> list[dict[str, Any]]:
    lines = exchange.body.decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def test_a_stream_tells_what_was_heard_so_far(client: Client) -> None:
    assert events(sent(client, form(model="piecewise", stream="true"))) == [
        {"type": "transcript.text.delta", "delta": "one "},
        {"type": "transcript.text.delta", "delta": "two"},
        {"type": "transcript.text.done", "text": "one two"},
    ]
    assert sent(client, form(model="piecewise")).json == {"text": "one two"}
    told = events(sent(client, form(model="plain", stream="True")))
    assert told == [] or told[-1]["text"] == "160 samples"
    broken = events(sent(client, form(recording(300), model="piecewise", stream="true")))
    assert broken[-1]["error"]["type"] == "server_error"


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"model": "plain", "language": "en"}, "language", "'plain' does not support it"),
        ({"model": "plain", "response_format": "srt"}, "response_format", "has no output segments"),
        ({"model": "plain", "response_format": "xml"}, "response_format", "'vtt', not 'xml'"),
        ({"model": "plain", "temperature": "warm"}, "temperature", "expected float"),
        ({"model": "plain", "stream": "maybe"}, "stream", "expected bool"),
        ({"model": "whole", "stream": "true", "response_format": "srt"}, "response_format",
         "a stream has texts only"),
        ({"model": "whole", "timestamp_granularities[]": ["word"]}, "timestamp_granularities",
         "only verbose_json"),
        ({"model": "whole", "response_format": "verbose_json",
          "timestamp_granularities[]": ["word"]}, "timestamp_granularities", "has no output words"),
        ({"model": "plain", "chunking_strategy": "server_vad"}, "chunking_strategy",
         "is not supported"),
        ({"model": ["plain", "whole"]}, "model", "is there twice"),
        ({"model": "plain", "prompt": "x" * 65537}, "prompt", "more than 65536 characters"),
        ({"model": "plain", "file": b""}, "file", "must be one recording"),
        ({"model": "plain", "file": b"<svg/>"}, "file", "is not audio"),
    ],
)  # fmt: skip
def test_what_is_refused_names_its_field(
    client: Client, fields: dict[str, Any], param: str, says: str
) -> None:
    field, message = refused(sent(client, form(**fields)))
    assert field == param
    assert says in message


def test_what_asks_for_nothing_is_accepted(client: Client) -> None:
    wanted: dict[str, Any] = {
        "model": "plain",
        "temperature": 0,
        "prompt": "",
        "chunking_strategy": "auto",
    }
    answer = sent(client, form(**wanted, colour="blue"))
    assert answer.status == 200
    assert answer.headers["x-wherry-ignored"] == "colour"
    with served(plain, common=Common(openai=OpenAISettings(strict_fields=True))) as strict:
        assert refused(sent(strict, form(colour="blue")))[0] == "colour"
        assert sent(strict, form()).status == 200


def test_a_body_that_is_no_form_is_refused(client: Client) -> None:
    assert refused(client.post(PATH, {"model": "plain"}))[0] == "file"
    none = client.post(PATH, b"x", {"content-type": "text/csv/"})
    assert (none.status, none.json["error"]["type"]) == (415, "invalid_request_error")
    # One that is the recording itself is taken.
    whole = client.post(f"{PATH}?model=plain", recording(), {"content-type": "audio/wav"})
    assert whole.json == {"text": "160 samples"}
