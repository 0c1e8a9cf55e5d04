"""What may stand in a form to /v1/audio/transcriptions, and which inputs has the model then?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import msgspec

from wherry.core.api import Buffer
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.fields.decoding import decoded
from wherry.llm.openai.fields.not_done import NotDone
from wherry.server.api import NamedValue

#: Fields that are no texts; a form has texts only.
BARE: Final = ("temperature", "stream")
_BARE_VALUE: Final = re.compile(r"true|false|-?(0|[1-9][0-9]{0,9})(\.[0-9]{1,20})?")
#: Characters of a field that is no file.
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
    include_usage: ClassVar[bool] = False

    def inputs(self) -> dict[str, Any]:
        """The inputs that say how; a plain model may have some of them."""
        if self.stream and self.response_format not in ("json", "text"):
            raise BadField("response_format", "a stream has texts only: json or text")
        if self.timestamp_granularities and self.response_format != "verbose_json":
            raise BadField("timestamp_granularities", "only verbose_json has them")
        hints = {name: getattr(self, name) for name in ("language", "prompt", "temperature")}
        return {name: value for name, value in hints.items() if value is not None}

    def named(self, blamed: str) -> str:
        """Return the name that an input which the model blames has in this request."""
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
