"""A language model of a text file: the words that follow each other in it. `markov:FILE.txt`"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import wherry


class Piece(TypedDict):
    """A part of an answer, under the names that the routes of language models read."""

    text: str
    finish_reason: str
    usage: dict[str, int]


class Markov(wherry.Model):
    """Each next word is one that follows the last two in the text; without one the answer ends."""

    #: What it does with a request. Another wish is refused: the client would not get it.
    knows = frozenset(("max_tokens", "temperature", "seed"))

    def __init__(self, checkpoint: str, name: str = "markov") -> None:
        self.checkpoint = Path(checkpoint)
        self.called = name

    def config(self, **overrides: Any) -> wherry.ModelConfig:
        return super().config(**{"name": self.called, **overrides})

    def load(self, device: wherry.Device) -> None:
        try:
            words = self.checkpoint.read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise wherry.ConfigError(f"markov:{self.checkpoint.name}: {error}") from None
        self.follows: dict[tuple[str, ...], list[str]] = {}
        for first, second, third in zip(words, words[1:], words[2:], strict=False):
            self.follows.setdefault((first, second), []).append(third)

    def execute(
        self,
        prompt: str = "",
        messages: Sequence[Mapping[str, Any]] = (),
        parameters: Mapping[str, Any] | None = None,
    ) -> Iterator[Piece]:
        wishes = parameters or {}
        if unknown := wishes.keys() - self.knows:
            raise wherry.InvalidRequest(f"{', '.join(sorted(unknown))}: not supported")
        words = (prompt or str(messages[-1]["content"])).split()
        most, choice = wishes.get("max_tokens", 64), random.Random(wishes.get("seed"))
        start, reason = len(words), "stop"
        while following := self.follows.get(tuple(words[-2:])):
            if len(words) - start == most:
                reason = "length"
                break
            greedy = wishes.get("temperature") == 0
            word = max(following, key=following.count) if greedy else choice.choice(following)
            words.append(word)
            yield {"text": f" {word}", "finish_reason": "", "usage": {}}
        usage = {"prompt_tokens": start, "completion_tokens": len(words) - start}
        yield {"text": "", "finish_reason": reason, "usage": usage}
