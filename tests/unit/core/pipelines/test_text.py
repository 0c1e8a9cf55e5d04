"""How is a long text cut without tearing sentences or words?"""

# ruff: noqa: RUF001 - full-width signs are what these texts are about

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wherry.core.pipelines.pipeline import split_text

borders = st.text(alphabet="ab .,!?;:\n\t。，！中文“”é\u3000\u00a0", max_size=400)
texts = borders | st.text(max_size=200)


@given(texts, st.integers(1, 60))
@example("", 1)
@example(" ", 1)
@example("a" * 100, 7)
@example("\n\n\n\n\n", 2)
def test_the_pieces_join_to_the_text_and_none_is_too_long(text: str, most: int) -> None:
    pieces = split_text(text, most)
    assert "".join(pieces) == text
    assert all(1 <= len(piece) <= most for piece in pieces) or pieces == [""]


@given(st.lists(st.text(alphabet="abcdefgh", min_size=1, max_size=9), min_size=1, max_size=60))
def test_words_are_never_torn_if_they_fit(words: list[str]) -> None:
    pieces = split_text(" ".join(words), 20)
    assert [word for piece in pieces for word in piece.split()] == words


@given(st.lists(st.integers(1, 8), min_size=1, max_size=30))
def test_pieces_are_not_needlessly_short(lengths: list[int]) -> None:
    """Neighbours together would not have fitted, give or take half a piece."""
    text = "".join("x" * (n - 1) + " " for n in lengths)
    pieces = split_text(text, 20)
    assert all(len(a) + len(b) > 10 for a, b in pairwise(pieces))


@pytest.mark.parametrize(
    ("text", "most", "pieces"),
    [
        ("short", 300, ["short"]),
        ("", 300, [""]),
        ("One. Two three four.", 15, ["One. Two three ", "four."]),
        ("A sentence. Another one.", 14, ["A sentence. ", "Another one."]),
        ("Really?! Yes, really.", 12, ["Really?! ", "Yes, really."]),
        ('He said "no." Then left.', 15, ['He said "no." ', "Then left."]),
        ("first part, second part", 14, ["first part, ", "second part"]),
        ("para one\n\npara two", 12, ["para one\n\n", "para two"]),
        ("line one\nline two", 12, ["line one\n", "line two"]),
        ("no borders here", 8, ["no ", "borders ", "here"]),
        ("aaaaaaaaaa", 4, ["aaaa", "aaaa", "aa"]),
        ("今天很好。明天也好。", 6, ["今天很好。", "明天也好。"]),
        ("今天很好，明天也好", 7, ["今天很好，", "明天也好"]),
        ("没有标点的一行字", 3, ["没有标", "点的一", "行字"]),
        ("pi is 3.14159 today", 10, ["pi is ", "3.14159 ", "today"]),
    ],
)
def test_the_best_border_is_taken(text: str, most: int, pieces: list[str]) -> None:
    assert split_text(text, most) == pieces


def test_a_piece_holds_at_least_one_character() -> None:
    with pytest.raises(ValueError, match="max_chars must be at least 1, not 0"):
        split_text("abc", 0)
