"""Models that the dashboard's tests show, some of them with words that must never be executed."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

import wherry

MARKUP = "<img src=x onerror=\"document.title='pwned'\"><script>document.title='pwned'</script>"


class Turn(TypedDict):
    text: str


@wherry.model(max_batch_size=16, isolation="process", examples=[{"text": "a lovely day"}])
def sentiment(text: list[str]) -> list[str]:
    """Says whether a sentence is friendly."""
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10_000 + 2_500 * len(text))  # some milliseconds
    if "boom" in text:
        raise ValueError(f"{MARKUP} \u202edesrever " + "x" * 5000)
    return ["friendly" if "love" in one else "neutral" for one in text]


@wherry.model(description=MARKUP, examples=[{"text": MARKUP}])
def hostile(text: str) -> str:
    return text + MARKUP


@wherry.model
def story(topic: str, words: int = 3) -> Iterator[str]:
    """Tells a story, word by word."""
    for number in range(words):
        if number > 3:
            time.sleep(0.05)
        yield f"{topic}{number} "


@wherry.model
def measure(picture: bytes, name: str = "", scale: float = 1.0, exact: bool = False) -> str:
    """Tells what it was given."""
    return f"{len(picture)} bytes, {name!r}, {scale}, {exact}"


@wherry.model
def mirror(picture: bytes) -> bytes:
    return picture


@wherry.model
def parrot(messages: Sequence[dict[str, Any]]) -> Iterator[Turn]:
    """Says the last message again."""
    for word in messages[-1]["content"].split():
        yield {"text": word + " "}
