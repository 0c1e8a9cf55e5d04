"""Which part of an error's text may a client see?

A model's code, and the libraries that open its files, put paths of the server into their errors.
They are for the log. Every answer that reports such an error goes through here.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
import numpy as np

from wherry.core.api import (
    AccessDenied,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    RegionNotFound,
    Unsupported,
    WherryError,
    plain,
)


def _plain(value: Any) -> Any:
    """Convert a numpy value, which models put into their JSON rows, to JSON's own types."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return plain(value)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_plain)
encode_json = _ENCODER.encode


#: Their texts are ours, or the model's words for its callers; they may quote the request and name
#: routes. All others hold texts of other code.
_FOR_CLIENTS: Final = (
    AccessDenied,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    RegionNotFound,
    Unsupported,
)

#: Of an error's text.
MAX_CHARS: Final = 8192

#: An absolute path: in quotes up to their end, else up to what a path rarely has. Not the one in
#: a URL but for file:, nor the end of an HTML element. No part matches in two ways: it is linear.
_PATH: Final = re.compile(
    r"file://(?P<url>/[^\s'\"<>|]*)"
    r"|(?<=')(?P<single>/[^'\n]*)(?=')"
    r'|(?<=")(?P<double>/[^"\n]*)(?=")'
    r"|(?:(?<![\w./])|(?<=-[IL]))(?P<bare>/(?!/|(?<=</)\w+>)[^\s'\"<>|:;,()\[\]{}]+)"
)


def text_of(error: WherryError) -> str:
    return text_for_clients(type(error), str(error))


def text_for_clients(kind: type[WherryError], text: str) -> str:
    """`text_of` an error of this kind with this text."""
    if len(text) > MAX_CHARS:  # a request may hold a name of megabytes
        text = f"{text[:MAX_CHARS]}..."
    return text if issubclass(kind, _FOR_CLIENTS) else without_paths(text)


def without_paths(text: str) -> str:
    """Absolute paths become the names of their files: which file it is, and not where."""
    return _PATH.sub(_name, text) if "/" in text else text


def _name(match: re.Match[str]) -> str:
    path = match[match.lastgroup or 0]
    return path.rstrip("/").rpartition("/")[2]
