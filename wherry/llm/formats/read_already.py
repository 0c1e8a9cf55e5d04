"""How are thoughts and calls, which an engine has told apart itself, put into one text again?

As Hermes' models would have written them: what serves all engines reads an answer's text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wherry.llm.formats.families import THOUGHT_FAMILIES

#: The fields of the `AnswerStyle` by which such a text is read.
STYLE: Final[Mapping[str, Any]] = {"tools": "hermes", "thoughts": "think", "opened": False}
_THOUGHTS: Final = THOUGHT_FAMILIES["think"].format


@dataclass(slots=True)
class _Call:
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class OneText:
    """Writes one answer that comes as deltas of OpenAI's chats: `reasoning_content`, `content`, and
    `tool_calls` in pieces, each with its `index`."""

    def __init__(self) -> None:
        self._thinking = False
        self._calls: dict[int, _Call] = {}

    def feed(self, delta: Mapping[str, Any]) -> str:
        """Take a delta; return the text that it adds. Calls come at the end."""
        for piece in delta.get("tool_calls") or ():
            call, function = self._calls.setdefault(piece["index"], _Call()), piece["function"]
            call.name += function.get("name") or ""
            call.arguments.append(function.get("arguments") or "")
        text = ""
        if thoughts := delta.get("reasoning_content"):
            text = thoughts if self._thinking else _THOUGHTS.begin + thoughts
            self._thinking = True
        if content := delta.get("content"):
            text += self._answer() + content
        return text

    def end(self) -> str:
        """End the answer; return the rest of its text."""
        calls: Sequence[_Call] = list(self._calls.values())
        written = "".join(
            f'<tool_call>{{"name": {json.dumps(call.name)}, "arguments": '
            f"{''.join(call.arguments) or '{}'}}}</tool_call>"
            for call in calls
        )
        return self._answer() + written if written else ""

    def _answer(self) -> str:
        ends, self._thinking = self._thinking, False
        return _THOUGHTS.end if ends else ""
