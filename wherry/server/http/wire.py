"""What do the lines of an HTTP/1.1 message look like? (Pure text, no connection.)"""

import re
from collections.abc import Callable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, Generic, TypeVar
from urllib.parse import unquote

from wherry.core.api import Buffer

BODILESS: Final = frozenset({204, 304})
"""Statuses whose answer has neither a body nor a Content-Length."""

T = TypeVar("T")


class Memo(dict[bytes, T], Generic[T]):
    """Remembers what `make` gives for short keys. Bounded, since clients choose the keys."""

    MAX_KEYS: Final = 512
    MAX_KEY_BYTES: Final = 256

    def __init__(self, make: Callable[[bytes], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: bytes) -> T:
        value = self._make(key)
        if len(key) <= self.MAX_KEY_BYTES:
            if len(self) >= self.MAX_KEYS:
                self.clear()
            self[key] = value
        return value


def text_of(raw: bytes) -> str:
    return raw.decode("latin-1")


def header_name(raw: bytes) -> str:
    return raw.decode("latin-1").lower()


def split_target(target: bytes) -> tuple[str, str, str]:
    """Path (decoded) and query (raw) of a request target, in origin or absolute form; then the path
    as it was sent, "" if that is the same."""
    text = target.decode("latin-1").partition("#")[0]
    if not text.startswith("/"):
        scheme, absolute, rest = text.partition("://")
        text = "/" + rest.partition("/")[2] if absolute else scheme
    path, _, query = text.partition("?")
    decoded = unquote(path)
    return decoded, query, path if path != decoded else ""


def target_authority(target: bytes) -> str | None:
    """Host and port of a request target in absolute form; None in any other."""
    _, absolute, rest = target.decode("latin-1").partition("://")
    return re.split("[/?#]", rest, maxsplit=1)[0] if absolute else None


def first_lines(status: int, content_type: str, persistence: str) -> bytes:
    """Return the part of an answer's head that does not change within a second."""
    try:
        reason = HTTPStatus(status).phrase
    except ValueError:
        reason = ""
    fields = [("Server", "wherry"), ("Date", formatdate(usegmt=True))]
    if status not in BODILESS:
        # A browser shall not take an answer for a page or a script that it is not.
        fields += [("Content-Type", content_type), ("X-Content-Type-Options", "nosniff")]
    if persistence:
        fields.append(("Connection", persistence))
    return f"HTTP/1.1 {status} {reason}\r\n".encode("latin-1") + header_lines(fields)


class FirstLines(dict[tuple[int, str, str], bytes]):
    """Remembers `first_lines`, by its arguments. To be cleared before their Date is old."""

    def __missing__(self, key: tuple[int, str, str]) -> bytes:
        lines = self[key] = first_lines(*key)
        return lines


def header_lines(headers: Sequence[tuple[str, str]]) -> bytes:
    """ValueError for a value with a line break: it could add a header."""
    lines = []
    for name, value in headers:
        line = f"{name}: {value}"
        if "\r" in line or "\n" in line or "\0" in line:
            raise ValueError(f"header {name!r} holds a line break or NUL; it cannot be sent")
        lines.append(line + "\r\n")
    return "".join(lines).encode("latin-1")


def total_bytes(buffers: Sequence[Buffer]) -> int:
    return sum([b.nbytes if isinstance(b, memoryview) else len(b) for b in buffers])
