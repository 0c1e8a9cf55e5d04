"""llm/engine/prompt.py: thoughts that end after so many tokens, by marks of several tokens."""

from __future__ import annotations

import numpy as np
import pytest

from wherry.llm.engine.prompt import ThoughtMarks, ThoughtsFirst


def letters(most: int | None, begin: int | None = None) -> ThoughtsFirst:
    """Each letter is a token."""
    marks = ThoughtMarks(begin, "END")
    return ThoughtsFirst(
        None, marks, lambda t: "".join(map(chr, t)), lambda s: [*map(ord, s)], 0, most
    )


def written(thoughts: ThoughtsFirst, wishes: str) -> str:
    """What is written by a model that wants these letters, one at a time."""
    made = ""
    for wish in wishes:
        bits = np.full(16, 0xFF, np.uint8)
        thoughts.mask(bits)
        allowed = np.unpackbits(bits, bitorder="little")
        token = ord(wish) if allowed[ord(wish)] else int(allowed.argmax())
        assert allowed[token]
        thoughts.accept(token)
        made += chr(token)
    return made


@pytest.mark.parametrize(
    ("most", "wishes", "made"),
    [
        (2, "abcdefgh", "abENDfgh"),
        (0, "abcdef", "ENDdef"),
        (None, "abcdef", "abcdef"),
        (9, "abENDcdefghijklm", "abENDcdefghijklm"),  # it ended them itself
        (4, "aENxbcdefg", "aENxENDefg"),
        (3, "abEcdefg", "abEENDfg"),  # the mark was begun, and is written whole
    ],
)
def test_the_mark_follows_when_there_have_been_enough(
    most: int | None, wishes: str, made: str
) -> None:
    assert written(letters(most), wishes) == made
    assert written(letters(most).copy(), wishes) == made


def test_an_answer_without_thoughts_is_not_touched() -> None:
    assert written(letters(1, ord("<")), "abcdef") == "abcdef"
    assert written(letters(1, ord("<")), "<abcdef") == "<aENDef"
    assert written(letters(1, ord("<")), "a<bcdef") == "a<bcdef"  # too late for thoughts
