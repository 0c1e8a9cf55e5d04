"""Which media type does a Content-Type name, and which of ours does an Accept prefer?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

JSON: Final = "application/json"
OCTET_STREAM: Final = "application/octet-stream"
FORM: Final = "multipart/form-data"
URLENCODED: Final = "application/x-www-form-urlencoded"
EVENT_STREAM: Final = "text/event-stream"
JSON_LINES: Final = "application/x-ndjson"

#: Characters of a client's header that an error quotes.
_QUOTED_CHARS: Final = 100
#: Ranges of an Accept header that are looked at; browsers send ten.
_MOST_RANGES: Final = 64

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_TYPE: Final = re.compile(rf"[ \t]*({_TOKEN}/{_TOKEN})[ \t]*(?=;|$)")
#: Each alternative begins with another character, so that nothing is tried twice.
_PARAMETER: Final = re.compile(
    rf';[ \t]*+({_TOKEN}+)[ \t]*+=[ \t]*+(?:"((?:[^"\\]|\\.)*+)"|([^";\s]*+))[ \t]*+', re.DOTALL
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class MediaType:
    """A media type: its name in lower case ("image/jpeg") and its parameters."""

    name: str
    parameters: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> MediaType | None:
        match = _TYPE.match(text)
        if match is None:
            return None
        parameters: dict[str, str] = {}
        for name, quoted, plain in _PARAMETER.findall(text, match.end()):
            value = _ESCAPED.sub(r"\1", quoted) if quoted else plain
            parameters.setdefault(name.lower(), value)
        return cls(match[1].lower(), parameters)

    @property
    def is_json(self) -> bool:
        return self.name == JSON or self.name.endswith("+json")


def preferred(accept: str | None, offers: Sequence[str]) -> str | None:
    """Return the media type among `offers` that an Accept header prefers; None: it accepts none.

    Of two that it prefers equally, the earlier. Without a header, or with an empty one, the first.
    """
    if accept is None or not accept.strip():
        return offers[0]
    ranges = _ranges(accept)
    best, best_weight = None, 0.0
    for offer in offers:
        weight = _weight(offer, ranges)
        if weight > best_weight:
            best, best_weight = offer, weight
    return best


def names_type(accept: str | None, offer: str) -> bool:
    """Whether an Accept header takes `offer` by its own name or its kind (image/*), and not only
    because it takes everything."""
    if accept is None:
        return False
    main = offer.partition("/")[0]
    return any(w > 0 and name in (offer, f"{main}/*") for name, w in _ranges(accept).items())


def quoted(text: str) -> str:
    return repr(text if len(text) <= _QUOTED_CHARS else f"{text[:_QUOTED_CHARS]}...")


def _ranges(accept: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in accept.split(",", _MOST_RANGES)[:_MOST_RANGES]:
        name, *parameters = part.split(";")
        weight = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip().lower() == "q":
                weight = _quality(value.strip())
        found.setdefault(name.strip().lower(), weight)
    return found


def _quality(text: str) -> float:
    """A q-value; 0 for text that is not one."""
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 else 0.0


def _weight(offer: str, ranges: Mapping[str, float]) -> float:
    """The weight of the range that fits best: its own name, its kind, anything."""
    for name in (offer, f"{offer.partition('/')[0]}/*", "*/*"):
        if name in ranges:
            return ranges[name]
    return 0.0
