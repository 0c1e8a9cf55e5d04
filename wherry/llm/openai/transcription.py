"""What may stand in a form to /v1/audio/transcriptions, and how does a transcription become text,
subtitles, or events?"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import msgspec

from wherry.core.api import Buffer, InferResponse, LoadedModel
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.generation import ChoiceDelta, OpenAIAnswer, piece_of
from wherry.llm.openai.reading import NotDone, decoded
from wherry.server.api import NamedValue

#: Fields that are not texts; a form has texts only.
BARE: Final = ("temperature", "stream")
_BARE_VALUE: Final = re.compile(r"true|false|-?(0|[1-9][0-9]{0,9})(\.[0-9]{1,20})?")
#: Characters of a field that is not a file.
MOST_CHARS: Final = 2**16


class TranscriptionRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/audio/transcriptions, but for the file."""

    not_done: ClassVar[Mapping[str, NotDone]] = {
        "include": NotDone(([],)),
        "chunking_strategy": NotDone(("auto",)),
        "known_speaker_names": NotDone(),
        "known_speaker_references": NotDone(),
    }

    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    temperature: float | None = None
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] = "json"
    timestamp_granularities: list[Literal["segment", "word"]] | None = None
    stream: bool | None = None

    n: ClassVar[None] = None
    priority: ClassVar[None] = None

    def inputs(self) -> dict[str, Any]:
        """The inputs beside the recording; a plain model may have some of them."""
        if self.stream and self.response_format not in ("json", "text"):
            raise BadField("response_format", "a stream has texts only: json or text")
        if self.timestamp_granularities and self.response_format != "verbose_json":
            raise BadField("timestamp_granularities", "only verbose_json has them")
        hints = {name: getattr(self, name) for name in ("language", "prompt", "temperature")}
        return {name: value for name, value in hints.items() if value is not None}

    def named(self, blamed: str) -> str:
        return blamed if blamed in self.__struct_fields__ else "file"


def read_form(
    values: Sequence[NamedValue] | None, ignored: list[str] | None
) -> tuple[TranscriptionRequest, bytes]:
    """The fields of a form, and its file. BadField."""
    if values is None:
        raise BadField("file", "is missing: send multipart/form-data with the recording in it")
    fields: dict[str, Any] = {}
    files: list[Buffer] = []
    for value in values:
        name = value.name.removesuffix("[]")
        if name in ("", "file"):
            files.append(value.data.encode() if isinstance(value.data, str) else value.data)
        elif value.name != name:
            fields.setdefault(name, []).append(_text(value))
        elif name in fields:
            raise BadField(name, "is there twice")
        else:
            fields[name] = _text(value)
    if len(files) != 1 or not len(files[0]):
        raise BadField("file", "must be one recording" if files else "is missing")
    for name in BARE:
        if (text := fields.get(name)) is not None and _BARE_VALUE.fullmatch(text):
            fields[name] = msgspec.Raw(text.encode())
    return decoded(msgspec.json.encode(fields), TranscriptionRequest, ignored), bytes(files[0])


def _text(value: NamedValue) -> str:
    if len(value.data) > MOST_CHARS:
        raise BadField(value.name, f"has more than {MOST_CHARS} characters")
    try:
        return value.data if isinstance(value.data, str) else bytes(value.data).decode()
    except UnicodeDecodeError:
        raise BadField(value.name, "is not UTF-8 text") from None


#: Outputs beside the text, of models that have them.
BESIDE: Final = ("language", "duration", "segments", "words")
#: The forms that are made of segments.
SUBTITLES: Final = ("srt", "vtt")
_TEXT: Final = "text/plain; charset=utf-8"
TYPES: Final = {"text": _TEXT, "srt": _TEXT, "vtt": "text/vtt; charset=utf-8"}


class AudioDuration(msgspec.Struct):
    """How long a recording is, as OpenAI charges for it."""

    type: Literal["duration"]
    seconds: int


class Transcription(msgspec.Struct, kw_only=True):
    """The text of a recording; with `verbose_json` also the model's other outputs."""

    task: str | msgspec.UnsetType = msgspec.UNSET
    language: str | msgspec.UnsetType | None = msgspec.UNSET
    duration: float | msgspec.UnsetType | None = msgspec.UNSET
    segments: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET
    words: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET
    text: str
    usage: AudioDuration | msgspec.UnsetType = msgspec.UNSET


class TranscriptionEvent(msgspec.Struct, kw_only=True):
    """More of a transcription, or its end with all of it."""

    type: Literal["transcript.text.delta", "transcript.text.done"]
    delta: str | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    usage: AudioDuration | msgspec.UnsetType = msgspec.UNSET


class TranscriptionAnswer(OpenAIAnswer):
    """One recording's text, and the model's other outputs."""

    kind = prefix = "transcription"
    last = None

    def __init__(
        self, loaded: LoadedModel, request_id: str, request: TranscriptionRequest, task: str
    ) -> None:
        super().__init__(request.model or loaded.reported_name(), request_id)
        self._request = request
        self._task = task
        self._form = request.response_format
        self._text = ""
        self._details: dict[str, Any] = {}
        outputs = {spec.name for spec in loaded.signature.outputs}
        if self._form in SUBTITLES and "segments" not in outputs:
            raise BadField("response_format", f"the model '{loaded.name}' has no output segments")
        for granularity in request.timestamp_granularities or ():
            if f"{granularity}s" not in outputs:
                problem = f"the model '{loaded.name}' has no output {granularity}s"
                raise BadField("timestamp_granularities", problem)

    @property
    def media_type(self) -> str:
        return TYPES.get(self._form, super().media_type)

    def piece(self, loaded: LoadedModel, response: InferResponse) -> ChoiceDelta:
        row = {name: column[0] for name, column in response.outputs.items()}
        for name in BESIDE:
            if (value := row.get(name)) is None:
                continue
            if isinstance(value, list):
                value = [*self._details.get(name, ()), *value]
            elif isinstance(value, bytes):
                value = value.decode(errors="replace")
            elif not isinstance(value, str):
                value = float(value)
            self._details[name] = value
        return piece_of(loaded, response)

    def add(self, piece: ChoiceDelta) -> list[TranscriptionEvent]:
        self._text += piece.text
        if not piece.text:
            return []
        return [TranscriptionEvent(type="transcript.text.delta", delta=piece.text)]

    def end(self) -> list[TranscriptionEvent]:
        usage = self._usage()
        return [TranscriptionEvent(type="transcript.text.done", text=self._text, usage=usage)]

    def whole(self) -> Transcription:
        if self._form == "json":
            return Transcription(text=self._text, usage=self._usage())
        details: dict[str, Any] = dict.fromkeys(("language", "duration")) | self._details
        return Transcription(task=self._task, **details, text=self._text, usage=self._usage())

    def body(self) -> bytes:
        if self._form == "text":
            return self._text.encode(errors="replace")
        if self._form in SUBTITLES:
            return _subtitles(self._form, self._details.get("segments", ())).encode(
                errors="replace"
            )
        return msgspec.json.encode(self.whole())

    def _usage(self) -> AudioDuration | msgspec.UnsetType:
        """OpenAI's, of models that are paid by the second."""
        seconds = self._details.get("duration")
        if seconds is None or not math.isfinite(seconds):
            return msgspec.UNSET
        return AudioDuration("duration", math.ceil(seconds))


def _subtitles(form: str, segments: Any) -> str:
    """SubRip, which numbers its entries, or WebVTT. An empty line ends an entry in both."""
    mark = "," if form == "srt" else "."
    parts = ["WEBVTT\n\n"] if form == "vtt" else []
    for number, segment in enumerate(segments, 1):
        start, end = (_moment(float(segment[name]), mark) for name in ("start", "end"))
        if form == "srt":
            parts.append(f"{number}\n")
        parts.append(f"{start} --> {end}\n{_line(segment)}\n\n")
    return "".join(parts)


def _line(segment: Mapping[str, Any]) -> str:
    """A segment's text without empty lines, and without what would be a time."""
    lines = [line.strip() for line in str(segment["text"]).splitlines()]
    return "\n".join(line for line in lines if line).replace("-->", "->")


def _moment(seconds: float, mark: str) -> str:
    milliseconds = round(max(seconds, 0.0) * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{milliseconds // 1000:02}{mark}{milliseconds % 1000:03}"
