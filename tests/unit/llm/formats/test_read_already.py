"""llm/engine/llama_cpp.py: what an engine has told apart is told apart again from one text."""

from __future__ import annotations

from typing import Any

import pytest

from wherry.llm.engine.llama_cpp import STYLE, OneText
from wherry.llm.formats.answer_text import AnswerStyle, AnswerText


def call(index: int, name: str | None, arguments: str | None) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("deltas", "thoughts", "text", "calls"),
    [
        ([{"content": "He"}, {"content": "llo"}], "", "Hello", []),
        ([{"role": "assistant", "content": None}, {"content": "Hi"}], "", "Hi", []),
        (
            [{"reasoning_content": "Hm"}, {"reasoning_content": "."}, {"content": "Yes"}],
            "Hm.", "Yes", [],
        ),
        ([{"reasoning_content": "Hm"}], "Hm", "", []),
        (
            [{"reasoning_content": "Hm"}, call(0, "f", ""), call(0, None, '{"a":'),
             call(0, "", " 1}"), call(1, "g", None)],
            "Hm", "", [("f", '{"a": 1}'), ("g", "{}")],
        ),
        ([{"content": "See: "}, call(0, "f", "{}")], "", "See:", [("f", "{}")]),
    ],
)  # fmt: skip
def test_what_was_told_apart_is_told_apart_again(
    deltas: list[dict[str, Any]], thoughts: str, text: str, calls: list[tuple[str, str]]
) -> None:
    written, reader = OneText(), AnswerText(AnswerStyle(**STYLE), {"f": {}, "g": {}})
    pieces = [*map(written.feed, deltas), written.end()]
    said = [one for parts in [*map(reader.feed, pieces), reader.end()] for one in parts]
    assert "".join(one.thoughts for one in said) == thoughts
    assert "".join(one.text for one in said) == text
    made: list[tuple[str, str]] = []
    for piece in (piece for one in said for piece in one.calls):
        name, arguments = ("", "") if piece.name else made.pop()
        made.append((name or piece.name, arguments + piece.arguments))
    assert made == calls
