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
ADD_TEXT = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def hermes() -> CallText:
    format_ = TOOL_FAMILIES["hermes"].format
    assert format_ is not None
    return CallText(format_, FUNCTIONS)


def split(text: str, *, size: int = 0) -> tuple[str, list[ToolCall]]:
    """The whole text fed in pieces."""
    splitter = hermes()
    size = size or max(1, len(text))
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    parts = [part for piece in pieces for part in splitter.feed(piece)] + splitter.end()
    shown, calls = "", list[ToolCall]()
    for part in parts:
        if isinstance(part, str):
            shown += part
        elif part.name:
            calls.append(part)
        else:
            calls[-1] = ToolCall(calls[-1].name, calls[-1].arguments + part.arguments)
    return shown, calls


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
