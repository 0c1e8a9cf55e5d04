"""Which part of an answer's text is a call of a tool?

The models that wherry runs write calls as JSON between `<tool_call>` and `</tool_call>` (Qwen,
SmolLM, Hermes): an object with name and arguments, or a list of them. An answer that is nothing but
such an object, as Llama's are, counts as well.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import msgspec

BEGIN, END = "<tool_call>", "</tool_call>"

#: Where a bare object has its arguments.
ARGUMENTS: Final = ("arguments", "parameters")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model wants made. `arguments` is JSON, as clients get it."""

    name: str
    arguments: str


class ToolText:
    """Splits one answer, as it comes, into what is shown and what is called."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""
        self._inside = False
        self._shown = False

    def feed(self, text: str) -> tuple[str, list[ToolCall]]:
        """Take more text; return what may be shown now, and the calls that are complete."""
        self._held += text
        shown: list[str] = []
        calls: list[ToolCall] = []
        while True:
            mark = END if self._inside else BEGIN
            before, found, after = self._held.partition(mark)
            if not found:
                break
            if self._inside:
                made = self._calls(before)
                calls += made
                if not made:  # no call that we know: the caller is shown what the model wrote
                    shown.append(BEGIN + before + END)
            else:
                shown.append(before)
            self._held, self._inside = after, not self._inside
        if not self._inside and not self._may_be_bare():
            keep = _partial(self._held, BEGIN)
            shown.append(self._held[: len(self._held) - keep])
            self._held = self._held[len(self._held) - keep :]
        return self._visible("".join(shown)), calls

    def end(self) -> tuple[str, list[ToolCall]]:
        """End the answer; return the rest of the text and of the calls."""
        held, self._held = self._held, ""
        calls = self._calls(held) if self._inside or self._bare(held) else []
        if calls:
            return "", calls
        return self._visible(BEGIN + held if self._inside else held), []

    def _visible(self, text: str) -> str:
        """Leave out the line breaks around calls: they are not part of the answer."""
        if not self._shown:
            text = text.lstrip("\n") if text.strip() else ""
        self._shown = self._shown or bool(text)
        return text

    def _may_be_bare(self) -> bool:
        return not self._shown and self._bare(self._held)

    def _bare(self, text: str) -> bool:
        return not self._shown and text.lstrip().startswith("{")

    def _calls(self, text: str) -> list[ToolCall]:
        try:
            value: Any = msgspec.json.decode(text.strip())
        except msgspec.DecodeError:
            return []
        calls = []
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, dict) or item.get("name") not in self._names:
                return []
            given: Any = next((item[name] for name in ARGUMENTS if name in item), {})
            arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode()
            calls.append(ToolCall(item["name"], arguments))
        return calls


def _partial(text: str, mark: str) -> int:
    """Return the length of the text's end that may begin `mark`."""
    return next(
        (n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0
    )


def call_id(answer: str, number: int) -> str:
    """One for each call of an answer; unique as the answer's own id is."""
    return f"call_{answer.rpartition('-')[2]}_{number}"
