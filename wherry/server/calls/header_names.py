"""How does a header keep the capitals that its name was sent with?"""

from __future__ import annotations


class SentName(str):
    """The name of a header in lower case, which knows how it was sent."""

    __slots__ = ("sent",)

    #: With its capitals.
    sent: str


def name_with_capitals(raw: bytes | str) -> str:
    """A header's name in lower case: a SentName if it was sent with capitals."""
    sent = raw if isinstance(raw, str) else raw.decode("latin-1")
    lower = sent.lower()
    if lower == sent:
        return lower
    name = SentName(lower)
    name.sent = sent
    return name


def as_sent(name: str) -> str:
    """A header's name as it was sent, as far as that is known."""
    return name.sent if isinstance(name, SentName) else name
