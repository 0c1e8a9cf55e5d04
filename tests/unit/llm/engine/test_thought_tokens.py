"""How many tokens of an answer are thoughts, whatever the marks are made of?"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from wherry.llm.engine.request import ThoughtTokens


def decode(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def encode(text: str) -> list[int]:
    return list(map(ord, text))


@pytest.mark.parametrize("marks", [("<", ">"), ("<<", ">>"), ("[THINK]", "[/THINK]")])
def test_thoughts_are_counted_with_their_marks(marks: tuple[str, str]) -> None:
    begin, end = marks
    for text, thoughts in {
        f"{begin}ab{end}cd{end}": f"{begin}ab{end}",
        f"{begin}{end}": f"{begin}{end}",
        f"{begin}abc": f"{begin}abc",  # cut off
        f"\n{begin}a{end}b": f"\n{begin}a{end}",
        f"ab{begin}cd{end}": "",  # it talks about them
        "": "",
    }.items():
        assert ThoughtTokens(begin, end, decode, encode).count(encode(text)) == len(thoughts)
    behind = ThoughtTokens("", end, decode, encode)  # which the prompt has begun
    assert behind.count(encode(f"ab{end}cd")) == len(f"ab{end}")
    assert behind.count(encode("abc")) == 3
