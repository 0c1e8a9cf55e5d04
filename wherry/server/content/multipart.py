"""Which named values does a request have, in a form, a file or a query string?

python-multipart finds where each part begins and ends. A part's bytes are a view of the body: no
file is copied here. Parts within parts (multipart/mixed) are bytes like any other.
"""

from __future__ import annotations

import logging
import re
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from wherry.core.api import Buffer, InvalidRequest, RequestTooLarge, UnsupportedMediaType
from wherry.server.calls.offload import give_way
from wherry.server.content.media_types import (
    FORM,
    JSON,
    OCTET_STREAM,
    URLENCODED,
    MediaType,
    quoted,
)
from wherry.server.http.exchange import RequestHead

MAX_VALUES: Final = 1024
#: Bytes of an urlencoded form: it grows several times while it is read. Files go another way.
MAX_URLENCODED: Final = 2**20

_OBJECTS: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\[\s*)?\{")
#: Bytes that are searched to distinguish a file from text: most formats have a zero in them.
_BEGINNING: Final = 512
_SEND_FILES: Final = (
    f"send a file with its own Content-Type (audio/wav, {OCTET_STREAM}), or as {FORM}"
)


def named_values(head: RequestHead, body: Buffer) -> list[NamedValue] | None:
    """The values of a body by their names, and those of the query string that it lacks;
    None: the body is JSON. InvalidRequest, UnsupportedMediaType."""
    content_type = head.headers.get("content-type") or None
    if content_type is None or content_type == JSON:
        if content_type is None and b"\0" in bytes(body[:_BEGINNING]):
            raise InvalidRequest(
                f"without a Content-Type the body must be JSON, and it is not; {_SEND_FILES}"
            )
        if len(body) or not head.query or content_type:
            return None
        return urlencoded(head.query, "the query string")
    media = MediaType.parse(content_type)
    if media is None:
        raise UnsupportedMediaType(f"Content-Type {quoted(content_type)} is not a media type")
    if media.is_json or (media.name == URLENCODED and begins_json(body)):
        return None  # curl -d labels everything as a form
    values = _in_body(media, body)
    if not head.query:
        return values
    names = {value.name for value in values}
    beside = urlencoded(head.query, "the query string")
    return values + [value for value in beside if value.name not in names]


def _in_body(media: MediaType, body: Buffer) -> list[NamedValue]:
    if media.name == FORM:
        return parts(body, media.parameters.get("boundary", ""), MAX_VALUES)
    if media.name == URLENCODED:
        if len(body) > MAX_URLENCODED:
            raise RequestTooLarge(
                f"the urlencoded form has {len(body)} bytes, and such a form at most"
                f" {MAX_URLENCODED}; send long texts as {FORM}; {_SEND_FILES}"
            )
        if b"\0" in bytes(body[:_BEGINNING]).partition(b"=")[0]:
            raise InvalidRequest(
                f"the body is not a form, though its Content-Type is {URLENCODED}, curl's"
                f" default; {_SEND_FILES}"
            )
        return urlencoded(bytes(body), "the form")
    if media.name.startswith("multipart/"):
        raise UnsupportedMediaType(f"Content-Type {media.name}: of these only {FORM} is read")
    return [NamedValue("", body, media_type=media.name)]


def urlencoded(text: str | bytes, where: str) -> list[NamedValue]:
    """The values of a query string, or of an urlencoded form. InvalidRequest."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    if text.count("&") >= MAX_VALUES:
        raise InvalidRequest(f"{where} has more than {MAX_VALUES} values; send several requests")
    pairs = parse_qsl(text, keep_blank_values=True, errors="surrogateescape")
    return [NamedValue(_text(name, where), value) for name, value in pairs]


def _text(name: str, where: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"a name in {where} is not UTF-8 text: {quoted(name)}") from None
    return name


def begins_json(body: Buffer) -> bool:
    return _OBJECTS.match(bytes(body[:64])) is not None


class NamedValue(msgspec.Struct):
    """One value of a form or a query string; a body that is one file has the name ""."""

    name: str
    #: Text of a field; the bytes of a file, or of a field of a multipart form.
    data: str | Buffer
    #: A file's name as its sender gave it: data, never a path.
    filename: str | None = None
    media_type: str | None = None

    @property
    def is_file(self) -> bool:
        """Whether its sender labels it as a file, not as a field of a form."""
        return self.filename is not None or self.name == ""


#: Bytes that are searched at once: other threads run meanwhile, but for 0.1 ms.
PIECE_BYTES: Final = 2**19
MAX_BOUNDARY: Final = 70
MAX_HEADERS: Final = 16
MAX_HEADER_BYTES: Final = 4096
#: What browsers write, and those that look like them. Others change the bytes.
_ENCODINGS: Final = (b"", b"7bit", b"8bit", b"binary")
_CHARSETS: Final = (b"", b"utf-8", b"utf8", b"us-ascii")

#: The parser logs what it refuses, which only the client needs to know, from the answer.
_SILENT: Final = logging.Logger("wherry.multipart", logging.CRITICAL + 1)


def parts(body: Buffer, boundary: str, most: int) -> list[NamedValue]:
    """The values of a body, of at most `most` parts. InvalidRequest if it is malformed."""
    if not 0 < len(boundary) <= MAX_BOUNDARY or not (boundary.isascii() and boundary.isprintable()):
        raise InvalidRequest(
            f"Content-Type multipart/form-data needs a boundary of 1 to {MAX_BOUNDARY} ASCII"
            f" characters, not {quoted(boundary)}"
        )
    reader = PartReader(memoryview(body), boundary, most)
    try:
        reader.read()
    except FormParserError as error:
        raise InvalidRequest(f"the multipart/form-data body cannot be read: {error}") from None
    return reader.values


class PartReader:
    """Follows the parser through one body, and notes where each part lies."""

    def __init__(self, body: memoryview, boundary: str, most: int) -> None:
        self.values: list[NamedValue] = []
        self._body = body
        self._boundary = boundary
        self._most = most
        self._parts = 0
        #: Where the current piece of the body begins, and the piece.
        self._offset = 0
        self._piece = b""
        #: Where the current part's data begins, and its length so far.
        self._start = self._length = 0
        self._header: list[bytes] = []
        self._value: list[bytes] = []
        self._headers: dict[bytes, bytes] = {}
        self._ended = False

    def read(self) -> None:
        parser = MultipartParser(
            self._boundary,
            {
                "on_part_begin": self._part_begins,
                "on_part_data": self._part_data,
                "on_part_end": self._part_ends,
                "on_header_field": lambda data, start, end: self._header.append(data[start:end]),
                "on_header_value": lambda data, start, end: self._value.append(data[start:end]),
                "on_header_end": self._header_ends,
                "on_end": self._end,
            },
            max_header_count=MAX_HEADERS,
            max_header_size=MAX_HEADER_BYTES,
        )
        parser.logger = _SILENT
        body = self._body
        while self._offset < len(body) and not self._ended:
            self._piece = bytes(body[self._offset : self._offset + PIECE_BYTES])
            parser.write(self._piece)
            self._offset += len(self._piece)
            if self._offset < len(body):
                give_way()
        if not self._ended:
            raise InvalidRequest(
                f"the multipart/form-data body of {len(body)} bytes has no end: after"
                f" {self._parts} parts the boundary --{self._boundary}-- is missing"
            )

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > self._most:
            raise InvalidRequest(
                f"the multipart/form-data body has more than {self._most} parts; send several"
                " requests"
            )
        self._headers = {}
        self._length = 0

    def _header_ends(self) -> None:
        name, value = b"".join(self._header).lower(), b"".join(self._value)
        self._header, self._value = [], []
        if name in self._headers:
            raise self._wrong(f"it has the header {quoted(name.decode('latin-1'))} twice")
        self._headers[name] = value

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if not self._length:
            # What looked like a boundary at the end of the piece before, but was not, comes from
            # a buffer of the parser's own: it lies right before this piece.
            self._start = self._offset + (start if data is self._piece else start - end)
        self._length += end - start

    def _part_ends(self) -> None:
        kind, options = parse_options_header(
            self._headers.get(b"content-disposition", b"").decode("latin-1")
        )
        if kind != b"form-data" or b"name" not in options:
            raise self._wrong("it needs a header Content-Disposition: form-data; name=...")
        encoding = self._headers.get(b"content-transfer-encoding", b"").strip().lower()
        if encoding not in _ENCODINGS:
            raise self._wrong("its Content-Transfer-Encoding must be binary; send the bytes")
        media_type, parameters = parse_options_header(
            self._headers.get(b"content-type", b"").decode("latin-1")
        )
        filename = options.get(b"filename")
        if filename is None and parameters.get(b"charset", b"").lower() not in _CHARSETS:
            raise self._wrong("its charset must be utf-8")
        try:
            name = options[b"name"].decode()
        except UnicodeDecodeError:
            raise self._wrong("its name is not UTF-8 text") from None
        if not name:  # which a body that is one file has
            raise self._wrong("its name is empty")
        self.values.append(
            NamedValue(
                name,
                self._body[self._start : self._start + self._length] if self._length else b"",
                None if filename is None else base_name(filename.decode(errors="replace")),
                media_type.decode("latin-1") or None,
            )
        )

    def _end(self) -> None:
        self._ended = True

    def _wrong(self, what: str) -> InvalidRequest:
        return InvalidRequest(f"part {self._parts} of the multipart/form-data body: {what}")


def base_name(filename: str) -> str:
    """The last part of a path of any system, without control characters: a name, never a path."""
    name = filename.replace("\\", "/").rpartition("/")[2]
    return "".join(character for character in name if character.isprintable())
