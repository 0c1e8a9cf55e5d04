"""How are thoughts and calls, which an engine has told apart itself, put into one text again?

As Hermes' models would have written them: what serves all engines reads an answer's text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from wherry.llm.formats.families import THOUGHT_FAMILIES

#: The fields of the `AnswerStyle` by which such a text is read.
STYLE: Final[Mapping[str, Any]] = {"tools": "hermes", "thoughts": "think", "opened": False}
_THOUGHTS: Final = THOUGHT_FAMILIES["think"].format


class OneText:
    """Writes one answer that comes as deltas of OpenAI's chats: `reasoning_content`, `content`, and
    `tool_calls` in pieces, each with its `index`."""

    def __init__(self) -> None:
        self._thinking = False
        #: The call that goes on, by its index, and whether its beginning is written.
        self._index: int | None = None
        self._name = ""
        self._written = False

    def feed(self, delta: Mapping[str, Any]) -> str:
        """Take a delta; return the text that it adds. Calls come one after another."""
        text = ""
        if thoughts := delta.get("reasoning_content"):
            text = thoughts if self._thinking else _THOUGHTS.begin + thoughts
            self._thinking = True
        if content := delta.get("content"):
            text += self.end() + self._answer() + content
        for piece in delta.get("tool_calls") or ():
            if piece["index"] != self._index:
                text += self.end() + self._answer()
                self._index = piece["index"]
            text += self._more(piece["function"])
        return text

    def end(self) -> str:
        """End the answer, or the call that goes on; return the rest of its text."""
        if self._index is None:
            return ""
        rest = "}</tool_call>" if self._written else f"{self._begun()}{{}}}}</tool_call>"
        self._index, self._name, self._written = None, "", False
        return rest

    def _more(self, function: Mapping[str, Any]) -> str:
        self._name += function.get("name") or ""
        arguments = function.get("arguments") or ""
        if self._written or not arguments.strip():
            return arguments if self._written else ""
        self._written = True
        return self._begun() + arguments

    def _begun(self) -> str:
        name = json.dumps(self._name, ensure_ascii=False)
        return f'<tool_call>{{"name": {name}, "arguments": '

    def _answer(self) -> str:
        ends, self._thinking = self._thinking, False
        return _THOUGHTS.end if ends else ""
