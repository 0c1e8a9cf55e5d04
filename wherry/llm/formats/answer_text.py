"""What is thought, said and called in the text of one answer, as it comes?"""

from __future__ import annotations

from dataclasses import dataclass, field

from wherry.llm.formats.call_text import CallText
from wherry.llm.formats.calls import Functions, ToolCall
from wherry.llm.formats.families import DEFAULT, THOUGHT_FAMILIES, TOOL_FAMILIES
from wherry.llm.formats.harmony import HarmonyText
from wherry.llm.formats.thoughts import ThoughtText


@dataclass(slots=True)
class Said:
    """A further part of an answer: its thoughts, its text, and the calls that are complete. Where
    there are all three, they come in this order."""

    thoughts: str = ""
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AnswerStyle:
    """By which families' marks an answer is read: names of TOOL_FAMILIES and THOUGHT_FAMILIES."""

    tools: str = DEFAULT
    thoughts: str = "none"
    #: The prompt ends within the thoughts.
    opened: bool = False


class AnswerText:
    """Splits one answer. The same text gives the same parts however it is cut.

    Without `functions` there are no calls.
    """

    def __init__(self, style: AnswerStyle, functions: Functions) -> None:
        self._harmony: HarmonyText | None = None
        self._calls: CallText | None = None
        self._thoughts: ThoughtText | None = None
        family = TOOL_FAMILIES.get(style.tools)
        if family is not None and family.format is None:
            self._harmony = HarmonyText(functions)
            return
        if family is not None and family.format is not None and functions:
            self._calls = CallText(family.format, functions)
        if thoughts := THOUGHT_FAMILIES.get(style.thoughts):
            self._thoughts = ThoughtText(thoughts.format, opened=style.opened)

    def feed(self, text: str) -> Said:
        """Take more text; return what is certain now."""
        if self._harmony is not None:
            return Said(*self._harmony.feed(text))
        thoughts = ""
        if self._thoughts is not None:
            thoughts, text = self._thoughts.feed(text)
        calls = list[ToolCall]()
        if self._calls is not None:
            text, calls = self._calls.feed(text)
        return Said(thoughts, text, calls)

    def end(self) -> Said:
        """End the answer; return the rest."""
        if self._harmony is not None:
            return Said(*self._harmony.end())
        thoughts, text = self._thoughts.end() if self._thoughts is not None else ("", "")
        if self._calls is None:
            return Said(thoughts, text)
        shown, calls = self._calls.feed(text)
        rest, more = self._calls.end()
        return Said(thoughts, shown + rest, calls + more)
