"""How many tokens of an answer are thoughts, whatever the marks are made of?"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.llm.engine import tiny
from wherry.llm.engine.request import Detokenizer, StopTexts, ThoughtTokens
from wherry.llm.engine.tokenizer import byte_alphabet

TEXTS = ["plain", "naïve café", "日本語のテキスト", "🐍👩‍👩‍👧‍👦 flags 🇩🇪", "word1 word2", "a\n\tb"]


def pieces(text: str) -> list[str]:
    fast: Any = tiny.tokenizer()
    detokenizer = Detokenizer(lambda tokens: fast.decode(list(tokens)))
    return [detokenizer.push(token) for token in fast.encode(text)] + [detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_the_pieces_are_the_text_and_no_piece_ends_within_a_character(text: str) -> None:
    shown = pieces(text)
    assert "".join(shown) == text
    assert not any("\ufffd" in piece for piece in shown)


def test_bytes_that_are_no_text_are_shown_as_broken_and_hold_nothing_up() -> None:
    fast: Any = tiny.tokenizer()
    byte = {number: fast.convert_ids_to_tokens(number) for number in range(256)}
    number_of = {byte_alphabet()[piece]: number for number, piece in byte.items()}
    detokenizer = Detokenizer(lambda tokens: fast.decode(list(tokens)))
    shown = [detokenizer.push(number_of[0xFF]) for _ in range(4)]
    assert "".join(shown) == "\ufffd" * 4
    assert [detokenizer.push(number_of[b]) for b in b"ok"] == ["o", "k"]
    assert detokenizer.push(number_of[0xF0]) == ""
    assert detokenizer.flush() == "\ufffd"


def test_a_space_at_the_border_to_the_prompt_is_kept() -> None:
    def decode(tokens: object) -> str:
        """As SentencePiece: the first word of a text has no space."""
        return " ".join(str(token) for token in tokens)  # type: ignore[attr-defined]

    detokenizer = Detokenizer(decode, context=[1, 2, 3])
    assert [detokenizer.push(4), detokenizer.push(5)] == [" 4", " 5"]


def test_tokens_without_text_cost_nothing_more_and_change_nothing_behind_them() -> None:
    fast: Any = tiny.tokenizer()
    decoded = []

    def decode(tokens: Sequence[int]) -> str:
        """As a tokenizer that skips special tokens."""
        decoded.append(len(tokens))
        return str(fast.decode([token for token in tokens if token >= 0]))

    detokenizer = Detokenizer(decode, context=fast.encode("before"))
    assert {detokenizer.push(-1) for _ in range(1000)} == {""}
    tail = "".join([detokenizer.push(token) for token in fast.encode(" \U0001f40d!")])
    assert tail + detokenizer.flush() == " \U0001f40d!"
    assert max(decoded) <= 16


def test_a_stop_text_is_found_across_the_borders_of_tokens() -> None:
    stops = StopTexts(["END", "stop"])
    shown = [stops.push(piece) for piece in ["go on E", "N", "o E", "ND not this"]]
    assert shown == ["go on ", "", "ENo ", ""]
    assert stops.found == "END"


def test_what_was_held_back_in_vain_comes_at_the_end() -> None:
    stops = StopTexts(["</s>"])
    assert stops.push("a </") == "a "
    assert stops.flush() == "</"
    assert stops.found is None


def test_a_stop_text_may_begin_but_not_end_where_none_may_stop() -> None:
    stops = StopTexts(["END", "N"])
    shown = [stops.push("an END, E", may_stop=False), stops.push("ND")]
    assert "".join(shown) == "an END, E"
    assert stops.found == "N"
    stops = StopTexts(["END"])
    shown = [stops.push("an END, E", may_stop=False), stops.push("N"), stops.push("D and")]
    assert "".join(shown) == "an END, "
    assert stops.found == "END"


def test_the_text_that_is_complete_first_wins_and_then_the_longest() -> None:
    stops = StopTexts(["abc", "b", "ab"])
    assert stops.push("xxabc") == "xx"
    assert stops.found == "ab"


def test_any_cutting_shows_the_text_before_the_first_stop() -> None:
    dice = random.Random(5)

    def word(most: int) -> str:
        return "".join(dice.choice("ab") for _ in range(dice.randint(1, most)))

    for _ in range(500):
        text, wanted = word(20), [word(4), word(4)]
        stops, shown, rest = StopTexts(wanted), "", text
        while rest and stops.found is None:
            size = dice.randint(1, 4)
            shown, rest = shown + stops.push(rest[:size]), rest[size:]
        if stops.found is None:
            shown += stops.flush()
        ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in wanted if stop in text]
        assert (stops.found is None) == (not ends)
        assert shown == (text[: min(ends)[1]] if ends else text)


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
