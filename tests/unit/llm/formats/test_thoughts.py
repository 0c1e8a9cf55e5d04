"""llm/formats/thoughts.py: where thoughts end that have no end of their own."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.llm.formats.test_families import EXAMPLES, FUNCTIONS, TIME, called, read, style_of
from wherry.llm.formats.answer_text import AnswerStyle, AnswerText
from wherry.llm.formats.families import TOOL_FAMILIES
from wherry.llm.formats.thoughts import ThoughtFormat, ThoughtText

THINK = ThoughtFormat("<think>", "</think>")
CALL = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
STYLE = AnswerStyle("hermes", "think")


def split(text: ThoughtText, pieces: list[str]) -> tuple[str, str]:
    parts = [*map(text.feed, pieces), text.end()]
    return "".join(one for one, _ in parts), "".join(other for _, other in parts)


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_call_s_mark_ends_thoughts_that_have_no_end(example: str) -> None:
    call, calls = EXAMPLES[example]
    style = style_of(example)
    family = TOOL_FAMILIES[style.tools]
    if not any(begin in call for begin, _ in family.ends_thoughts):
        return  # gpt-oss has channels; and calls without marks are not told from thoughts
    thoughts = AnswerStyle(style.tools, "think", opened=True)
    for pieces in ([f"Hm. {call}"], list(f"Hm. {call}")):
        said = read(thoughts, *pieces)
        assert (said.thoughts.strip(), called(said), said.text.strip()) == ("Hm.", calls, "")


@pytest.mark.parametrize(
    "thoughts",
    [
        CALL,
        f"I could write {CALL}, but",
        "The mark <tool_call> begins one.",
        "<tool_call>",
        "<tool_call> <tool_call>{<tool_call>",
        "<tool_call>" + " " * 200 + "{",
    ],
)
def test_a_call_in_thoughts_that_do_end_is_none(thoughts: str) -> None:
    text = f"<think>{thoughts}</think>Well. {CALL}"
    for pieces in ([text], list(text)):
        said = read(STYLE, *pieces)
        assert (said.thoughts, said.text, called(said)) == (thoughts, "Well.", [TIME])


def test_thoughts_go_on_behind_a_mark_that_no_call_follows() -> None:
    """They are not kept until their end, which may be far."""
    text = ThoughtText(THINK, opened=True, calls=[("<tool_call>", "</tool_call>")], opens=("{",))
    assert text.feed("Its mark is <tool_call>, and") == ("Its mark is <tool_call>, and", "")
    assert text.feed(" so <tool_call>\n") == (" so ", "")
    assert text.feed("{") == ("", "")
    assert text.end() == ("", "<tool_call>\n{")


def test_a_call_that_was_begun_is_given_when_the_answer_is_cut_off_and_a_mention_is_not() -> None:
    begun = '<tool_call>{"name": "get_time", "arguments": {"a": 1'
    said = read(STYLE, f"<think>Hm. {begun}", cut=True)
    assert (said.thoughts, said.text, said.calls[0].arguments) == ("Hm. ", "", '{"a": 1')
    said = read(STYLE, "<think>Hm. <tool_call>{}", cut=True)
    assert (said.thoughts, said.text, said.calls) == ("Hm. <tool_call>{}", "", [])


def test_without_tools_thoughts_are_thoughts_to_the_end() -> None:
    reader = AnswerText(STYLE, {})
    said = [*reader.feed(f"<think>Hm. {CALL}"), *reader.end()]
    assert "".join(one.thoughts for one in said) == f"Hm. {CALL}"


@given(
    st.lists(
        st.sampled_from(
            ["<think>", "</think>", CALL, "<tool_call>", "{", "</tool_call>", " ", "Hm.", "</thi"]
        ),
        max_size=9,
    ),
    st.booleans(),
    st.integers(1, 12),
    st.booleans(),
)
def test_thoughts_end_at_the_same_place_however_they_are_cut(
    parts: list[str], opened: bool, size: int, cut: bool
) -> None:
    text = "".join(parts)
    style = AnswerStyle("hermes", "think", opened=opened)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert read(style, *pieces, cut=cut) == read(style, text, cut=cut)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "unit"),
    [
        ("", " "),
        *(
            ("<think>", unit)
            for unit in ["<tool_call>", "<tool_call>{", "<tool_call", "</think", "<", " ", CALL]
        ),
    ],
)
def test_marks_without_end_in_thoughts_cost_no_more_than_their_length(
    before: str, unit: str
) -> None:
    """Were they searched again with each piece, this would take minutes."""
    text = before + unit * (200_000 // len(unit))
    began = process_time()
    reader = AnswerText(STYLE, FUNCTIONS)
    for one in text:
        reader.feed(one)
    reader.end()
    assert process_time() - began < 8
