"""How does one model write calls and thoughts, and which special tokens are part of these?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wherry.core.api import ConfigError
from wherry.llm.formats.families import (
    THOUGHT_FAMILIES,
    TOOL_FAMILIES,
    thought_family_of,
    tool_family_of,
)

#: A setting's value for "as the chat template says".
AUTO: Final = "auto"
NONE: Final = "none"
#: Tokens of a prompt's end that may hold the mark which begins thoughts.
END_TOKENS: Final = 32


def checked(setting: str, name: str) -> str:
    """The name of a family, "auto" or "none". ConfigError, with all names, for another."""
    known = (AUTO, NONE, *(TOOL_FAMILIES if setting == "tool_parser" else THOUGHT_FAMILIES))
    if name not in known:
        raise ConfigError(f"{setting} must be one of {', '.join(known)}; it is {name!r}")
    return name


class ModelStyle:
    """The families of one model: those that are set, or those that its chat template shows."""

    def __init__(
        self, template: str, special: Mapping[str, int], *, tools: str = AUTO, thoughts: str = AUTO
    ) -> None:
        self.tools = tool_family_of(template, special) if tools == AUTO else tools
        self.thoughts = thought_family_of(template) if thoughts == AUTO else thoughts
        self._special = special

    def of_answer(self, prompt_end: str) -> dict[str, Any]:
        """The fields of an `AnswerStyle` for an answer to a prompt that ends like this."""
        family = THOUGHT_FAMILIES.get(self.thoughts)
        opened = family is not None and family.format.opened_by(prompt_end) is not None
        return {"tools": self.tools, "thoughts": self.thoughts, "opened": opened}

    def thoughts_of(self, prompt_end: str) -> tuple[str, str] | None:
        """The marks of the thoughts that may come before an answer to a prompt that ends like this:
        what begins them, "" if the prompt has, and what ends them. None: there are none."""
        family = THOUGHT_FAMILIES.get(self.thoughts)
        if family is None:
            return None
        marks = family.format
        if prompt_end.rstrip().endswith(tuple(e for _, e in marks.marks)):  # they are switched off
            return None
        opened = marks.opened_by(prompt_end)
        return (marks.begin, marks.end) if opened is None else ("", opened[1])

    def hidden(self, *, calls: bool) -> frozenset[int] | None:
        """The special tokens that a chat's answer leaves out, where it does not leave out all:
        None. With `calls` those of calls are not left out."""
        marks: tuple[str, ...] = ()
        family = TOOL_FAMILIES.get(self.tools)
        if family is not None and (calls or family.format is None or family.format.dropped):
            marks = family.marks
        if thoughts := THOUGHT_FAMILIES.get(self.thoughts):
            around = (mark for pair in thoughts.format.marks for mark in pair)
            marks = (*marks, *around, *thoughts.inner)
        kept = {self._special[mark] for mark in marks if mark in self._special}
        return frozenset(self._special.values()) - kept if kept else None
