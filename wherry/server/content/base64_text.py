"""Which bytes does a text in base64 stand for?"""

from __future__ import annotations

import binascii
from typing import Final

from wherry.server.calls.offload import SLICE_BYTES, give_way

#: Characters of one slice: a multiple of 4, so that each is base64 of its own.
_SLICE: Final = SLICE_BYTES


def decoded(text: str) -> bytes:
    """The bytes. ValueError, with the reason, for anything but the standard alphabet (RFC 4648, 4),
    complete with its padding: no blanks, no newlines, nothing behind the end."""
    if len(text) % 4:
        raise ValueError(f"{len(text)} characters are no multiple of 4; is its padding missing?")
    try:
        if len(text) <= _SLICE:
            return binascii.a2b_base64(text, strict_mode=True)
        parts: list[bytes] = []
        for start in range(0, len(text), _SLICE):
            if start and parts and len(parts[-1]) * 4 != _SLICE * 3:
                raise ValueError("there is data behind its padding")
            parts.append(binascii.a2b_base64(text[start : start + _SLICE], strict_mode=True))
            give_way()
        return b"".join(parts)
    except (binascii.Error, ValueError) as error:
        raise ValueError(_reason(text, str(error))) from None


def _reason(text: str, reason: str) -> str:
    reason = reason[:1].lower() + reason[1:]
    if any(blank in text for blank in "\r\n \t"):
        return f"{reason}: it has blanks or newlines, and must be one piece"
    if "-" in text or "_" in text:
        return f"{reason}: it has the characters of URLs (- and _), and must have + and /"
    return reason
