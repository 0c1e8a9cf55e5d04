"""Which thoughts, text and calls does an answer have, as it comes, by its model's style?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from wherry.core.api import ConfigError
from wherry.llm.formats.call_text import CallText, Parts
from wherry.llm.formats.calls import Functions, MessagePart, ToolCall
from wherry.llm.formats.chat_messages import MessagesText
from wherry.llm.formats.families import (
    DEFAULT,
    THOUGHT_FAMILIES,
    TOOL_FAMILIES,
    thought_family_of,
    tool_family_of,
)
from wherry.llm.formats.thoughts import ThoughtText

#: Characters that are read at a time: the cost of a call grows with what is behind it.
STRETCH: Final = 4096


@dataclass(frozen=True, slots=True)
class AnswerStyle:
    """The families whose marks an answer has: names of TOOL_FAMILIES and THOUGHT_FAMILIES."""

    tools: str = DEFAULT
    thoughts: str = "none"
    #: The prompt ends within the thoughts.
    opened: bool = False

    @property
    def plain(self) -> bool:
        """Whether an answer without functions is all text, as it stands."""
        family = TOOL_FAMILIES.get(self.tools)
        marked = family is not None and (family.format is None or family.format.dropped)
        return self.thoughts == "none" and not marked


class AnswerText:
    """Splits one answer. The same text gives the same parts, however it is divided into pieces.

    Without `functions` there are no calls.
    """

    def __init__(self, style: AnswerStyle, functions: Functions) -> None:
        self._messages: MessagesText | None = None
        self._calls: CallText | None = None
        self._thoughts: ThoughtText | None = None
        family = TOOL_FAMILIES.get(style.tools)
        if family is not None and family.messages is not None:
            self._messages = MessagesText(family.messages, functions)
            return
        if family is not None and family.format is not None:
            if functions:
                self._calls = CallText(family.format, functions)
            elif family.format.dropped:
                none = replace(family.format, marks=(), inline=(), named=(), bare=())
                self._calls = CallText(none, functions)
        if thoughts := THOUGHT_FAMILIES.get(style.thoughts):
            calls = family if functions else None
            self._thoughts = ThoughtText(
                thoughts.format,
                opened=style.opened,
                calls=calls.ends_thoughts if calls else (),
                opens=calls.format.opens if calls and calls.format else (),
            )

    def feed(self, text: str) -> list[MessagePart]:
        """Take more text; return what is certain now, in its order. Halves of characters, which
        JSON cannot have, are read as "?"."""
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode()
        parts = [self._feed(stretch) for stretch in _stretches(text)]
        return [part_of_message for part in parts for part_of_message in part]

    def end(self, *, cut: bool = False) -> list[MessagePart]:
        """End the answer; return the rest. `cut`: it was not at its end, so an incomplete call is
        not completed."""
        if self._messages is not None:
            return self._messages.end(cut=cut)
        if self._thoughts is None:
            return _message_parts("", self._calls.end(cut=cut) if self._calls is not None else [])
        thoughts, text = self._thoughts.end()
        parts = self._last(text, cut=cut)
        # A call's mark in thoughts that `max_tokens` cut off: most likely it was only mentioned.
        if cut and self._thoughts.thinking and not any(isinstance(p, ToolCall) for p in parts):
            return _message_parts(thoughts + text, [])
        return _message_parts(thoughts, parts)

    def _last(self, text: str, *, cut: bool) -> Parts:
        if self._calls is None:
            return [text]
        parts = [part for stretch in _stretches(text) for part in self._calls.feed(stretch)]
        return [*parts, *self._calls.end(cut=cut)]

    def _feed(self, text: str) -> list[MessagePart]:
        if self._messages is not None:
            return self._messages.feed(text)
        thoughts = ""
        if self._thoughts is not None:
            thoughts, text = self._thoughts.feed(text)
        return _message_parts(
            thoughts, self._calls.feed(text) if self._calls is not None else [text]
        )


def _stretches(text: str) -> list[str]:
    return [text[at : at + STRETCH] for at in range(0, len(text), STRETCH)]


def _message_parts(thoughts: str, parts: Parts) -> list[MessagePart]:
    made = [MessagePart(thoughts=thoughts)] if thoughts else []
    further = [
        MessagePart(text=p) if isinstance(p, str) else MessagePart(calls=[p]) for p in parts if p
    ]
    return made + further


#: A setting's value for "by the chat template".
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

    def has_stopped_thinking(self, prompt_end: str) -> bool:
        """Whether a prompt that ends like this has ended the thoughts: thinking is off."""
        family = THOUGHT_FAMILIES.get(self.thoughts)
        ends = [end for _, end in family.format.marks] if family is not None else []
        return prompt_end.rstrip().endswith(tuple(ends))

    def thoughts_of(self, prompt_end: str) -> tuple[str, str] | None:
        """The marks of the thoughts that may come before an answer to a prompt that ends like this:
        what begins them, "" if the prompt has begun them, and what ends them. None: no thoughts."""
        family = THOUGHT_FAMILIES.get(self.thoughts)
        if family is None or self.has_stopped_thinking(prompt_end):
            return None
        opened = family.format.opened_by(prompt_end)
        return (family.format.begin, family.format.end) if opened is None else ("", opened[1])

    def hidden(self, *, calls: bool) -> frozenset[int] | None:
        """The special tokens that a chat's answer leaves out; None: all. With `calls`, those of
        calls are not left out."""
        marks: tuple[str, ...] = ()
        family = TOOL_FAMILIES.get(self.tools)
        if family is not None and (calls or family.format is None or family.format.dropped):
            marks = family.marks
        if thoughts := THOUGHT_FAMILIES.get(self.thoughts):
            around = (mark for pair in thoughts.format.marks for mark in pair)
            marks = (*marks, *around, *thoughts.inner)
        kept = {self._special[mark] for mark in marks if mark in self._special}
        return frozenset(self._special.values()) - kept if kept else None
