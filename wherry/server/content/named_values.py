"""Which values by name does a body with its query string have, if it is no JSON?"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl

from wherry.core.api import Buffer, InvalidRequest, RequestTooLarge, UnsupportedMediaType
from wherry.server.content.form_value import NamedValue
from wherry.server.content.media_types import (
    FORM,
    JSON,
    OCTET_STREAM,
    URLENCODED,
    MediaType,
    quoted,
)
from wherry.server.http.exchange import RequestHead

#: Values in one body, with those in its query string.
MAX_VALUES: Final = 1024
#: Bytes of an urlencoded form: it grows several times while it is read. Files go another way.
MAX_URLENCODED: Final = 2**20

_OBJECTS: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\[\s*)?\{")
#: Bytes that are looked at to tell a file from text: the headers of most formats have a zero.
_BEGINNING: Final = 512
_SEND_FILES: Final = (
    f"send a file with its own Content-Type (audio/wav, {OCTET_STREAM}), or as {FORM}"
)


def named_values(head: RequestHead, body: Buffer) -> list[NamedValue] | None:
    """The values of a body by their names, and those of the query string that it has not itself;
    None: the body is JSON. InvalidRequest, UnsupportedMediaType."""
    content_type = head.headers.get("content-type") or None
    if content_type is None or content_type == JSON:
        if content_type is None and b"\0" in bytes(body[:_BEGINNING]):
            raise InvalidRequest(
                f"without a Content-Type the body is JSON, but it is none; {_SEND_FILES}"
            )
        if len(body) or not head.query or content_type:
            return None
        return urlencoded(head.query, "the query string")
    media = MediaType.parse(content_type)
    if media is None:
        raise UnsupportedMediaType(f"Content-Type {quoted(content_type)} is no media type")
    if media.is_json or (media.name == URLENCODED and begins_json(body)):
        return None  # curl -d says that everything is a form
    values = _in_body(media, body)
    if not head.query:
        return values
    names = {value.name for value in values}
    beside = urlencoded(head.query, "the query string")
    return values + [value for value in beside if value.name not in names]


def _in_body(media: MediaType, body: Buffer) -> list[NamedValue]:
    if media.name == FORM:
        from wherry.server.content.multipart import parts  # the parser is for those that need it

        return parts(body, media.parameters.get("boundary", ""), MAX_VALUES)
    if media.name == URLENCODED:
        if len(body) > MAX_URLENCODED:
            raise RequestTooLarge(
                f"the urlencoded form has {len(body)} bytes, and such a form at most"
                f" {MAX_URLENCODED}; send long texts as {FORM}; {_SEND_FILES}"
            )
        if b"\0" in bytes(body[:_BEGINNING]).partition(b"=")[0]:
            raise InvalidRequest(
                f"the body is no form, though its Content-Type is {URLENCODED}, as curl says of"
                f" everything; {_SEND_FILES}"
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
    """Whether it begins with a JSON object, or with a list of them."""
    return _OBJECTS.match(bytes(body[:64])) is not None
