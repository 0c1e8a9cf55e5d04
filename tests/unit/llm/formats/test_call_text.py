"""Which part of an answer's text is a call of a tool?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.llm.formats.call_text import CallText
from wherry.llm.formats.calls import ToolCall
from wherry.llm.formats.families import TOOL_FAMILIES

FUNCTIONS: dict[str, dict[str, object]] = {"add": {}, "weather": {}}
ADD = ToolCall("add", '{"a": 1}')
ESCAPED = ToolCall("add", '{"a":1}')
ADD_JSON = '{"name": "add", "arguments": {"a": 1}}'
ADD_TEXT = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def hermes() -> CallText:
    format_ = TOOL_FAMILIES["hermes"].format
    assert format_ is not None
    return CallText(format_, FUNCTIONS)


def split(text: str, *, size: int = 0) -> tuple[str, list[ToolCall]]:
    """The whole text fed in pieces."""
    return whole("hermes", text, size or max(1, len(text)))


@pytest.mark.parametrize("size", [0, 1, 3, 7])
@pytest.mark.parametrize(
    ("text", "shown", "calls"),
    [
        ("just text", "just text", []),
        (ADD_TEXT, "", [ADD]),
        (f"\n{ADD_TEXT}\n", "", [ADD]),
        # Blanks are part of the answer where text is on both sides.
        (f"Let me see. {ADD_TEXT}", "Let me see.", [ADD]),
        (f"a \n\n{ADD_TEXT}\n b \n{ADD_TEXT}\n", "a \n\n\n b", [ADD, ADD]),
        (" " * 200_000 + ADD_TEXT, "", [ADD]),
        (" \n" * 3 + "a", " \n \n \na", []),
        (f"a\n{ADD_TEXT} b\n", "a\n b\n", [ADD]),
        (f"a{' ' * 9000}<tool", f"a{' ' * 9000}<tool", []),
        (f"{ADD_TEXT}\n{ADD_TEXT}", "", [ADD, ADD]),
        (
            '<tool_call>[{"name": "add", "arguments": {"a": 1}}, {"name": "weather"}]</tool_call>',
            "",
            [ADD, ToolCall("weather", "{}")],
        ),
        ('{"name": "add", "parameters": {"a": 1}}', "", [ADD]),
        ('{"name": "add", "arguments": "{\\"a\\":1}"}', "", [ESCAPED]),
        # An end within a string is none, whatever the string has beside it.
        (
            '<tool_call>{"name": "add", "arguments": {"a": "</tool_call>\\""}}</tool_call>!',
            "!",
            [ToolCall("add", '{"a": "</tool_call>\\""}')],
        ),
        # A mark that is only mentioned, and a quote without its counterpart, hide no call.
        (f"Use <tool_call> so: {ADD_TEXT}", "Use <tool_call> so:", [ADD]),
        (f"Use <tool_call> so: {ADD_TEXT[:-12]}", "Use <tool_call> so:", [ADD]),
        (f'<tool_call>{{"a</tool_call>{ADD_TEXT}!', '<tool_call>{"a</tool_call>!', [ADD]),
        (f"<tool_call></tool_call>{ADD_TEXT}", "<tool_call></tool_call>", [ADD]),
        ('{"a": 1} and ' + ADD_TEXT, '{"a": 1} and', [ADD]),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', None, []),
        # Arguments that have begun are handed on as they are.
        (
            '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
            "",
            [ToolCall("add", '{"a": NaN}')],
        ),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", None, []),
        # No calls: the caller is shown what the model wrote.
        ('{"city": "Paris"}', '{"city": "Paris"}', []),
        ("<tool_call>nonsense</tool_call>", "<tool_call>nonsense</tool_call>", []),
        (
            '<tool_call>{"name": "rm"}</tool_call>',
            '<tool_call>{"name": "rm"}</tool_call>',
            [],
        ),
        ("a <tool", "a <tool", []),
        ("<tool_call>{", "<tool_call>{", []),
        # The end of the text stands for the end of the call.
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}', "", [ADD]),
    ],
)
def test_calls_are_taken_out_however_the_text_is_cut(
    text: str, shown: str | None, calls: list[ToolCall], size: int
) -> None:
    assert split(text, size=size) == (text if shown is None else shown, calls)


def test_text_before_a_call_is_shown_as_it_comes() -> None:
    splitter = hermes()
    assert splitter.feed("Let me ") == ["Let me"]
    assert splitter.feed("see <to") == [" see"]
    assert splitter.feed("day>") == [" <today>"]


@given(st.text(alphabet="ab<>/_tolcal{}\n", min_size=1), st.integers(1, 5))
def test_text_without_calls_arrives_whole(text: str, size: int) -> None:
    shown, calls = split(text, size=size)
    assert not calls
    assert shown == text.lstrip("\n") or not text.strip() or shown.strip() == text.strip()


def reader(family: str) -> CallText:
    format_ = TOOL_FAMILIES[family].format
    assert format_ is not None
    return CallText(format_, FUNCTIONS)


@pytest.mark.parametrize("family", ["hermes", "llama3", "llama4", "pythonic", "xlam", "json"])
@pytest.mark.parametrize(
    "text",
    [
        '{"city": "Par',
        '{"nam": 1, "arguments": {',
        "{1: 2",
        "{}",
        "[1] says",
        '["a", "b',
        "[subtract(",
        '[{"x": [',
        "[ ]",
        "[Note] that",
        "[" + " " * 2000,
    ],
)
def test_an_answer_in_brackets_that_is_no_call_is_not_held(family: str, text: str) -> None:
    shown = "".join(map(str, reader(family).feed(text)))
    assert text.startswith(shown or "?")
    assert len(text.rstrip()) - len(shown) <= 2  # what may begin a mark


@pytest.mark.parametrize("family", ["hermes", "llama3", "xlam", "json"])
def test_an_object_that_turns_out_to_be_no_call_is_shown_with_what_follows(family: str) -> None:
    """Its first member may be a call's."""
    text = '{"name": "Ann", "says": "}", "list": [1]} Is it?'
    assert whole(family, text, 5) == (text, [])


@pytest.mark.parametrize("family", ["pythonic", "llama4"])
@pytest.mark.parametrize("before", ["", "I add:"])
def test_text_may_follow_a_list_of_calls(family: str, before: str) -> None:
    shown, calls = whole(family, f"{before}[add(a=1), weather(city='a ] \\' b')] Then", 7)
    assert shown.split() == [*before.split(), "Then"]
    assert calls == [ADD, ToolCall("weather", '{"city": "a ] \' b"}')]


@given(
    st.sampled_from(["hermes", "llama3", "llama4", "pythonic", "xlam", "json", "ernie45"]),
    st.lists(
        st.sampled_from(
            ["[", "]", "{", "}", "(", ")", "'", '"', "\\", " ", "add(a=1)", "weather()", ", ",
             ADD_JSON, '{"name": ', '"add", ', '"arguments": {}',
             '{"arguments": {}, "name": "add"}', "x"]
        ),
        max_size=10,
    ),
    st.integers(1, 30),
)  # fmt: skip
def test_calls_in_brackets_are_read_however_they_are_cut(
    family: str, parts: list[str], size: int
) -> None:
    text = "".join(parts)
    assert whole(family, text, size) == whole(family, text, len(text) or 1)


def whole(family: str, text: str, size: int) -> tuple[str, list[ToolCall]]:
    """What is shown and called of a text that comes in pieces."""
    splitter = reader(family)
    parts = [
        part for at in range(0, len(text), size) for part in splitter.feed(text[at : at + size])
    ]
    shown, calls = "", list[ToolCall]()
    for part in [*parts, *splitter.end()]:
        if isinstance(part, str):
            shown += part
        elif part.name:
            calls.append(part)
        else:
            calls[-1] = ToolCall(calls[-1].name, calls[-1].arguments + part.arguments)
    return shown, calls
