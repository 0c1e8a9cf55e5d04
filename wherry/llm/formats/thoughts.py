"""Which part of an answer's text is what the model thought before it answered?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: Blanks between a call's mark and the call, and before thoughts, at most.
MOST_BLANKS: Final = 64
MOST_BEFORE: Final = 1024


@dataclass(frozen=True, slots=True)
class ThoughtFormat:
    """The marks that a family of models puts around its thoughts."""

    begin: str
    end: str
    #: What may follow the first mark directly and is not thought.
    label: str = ""
    #: Other marks in their place.
    others: tuple[tuple[str, str], ...] = ()

    @property
    def marks(self) -> tuple[tuple[str, str], ...]:
        return ((self.begin, self.end), *self.others)

    def opened_by(self, prompt_end: str) -> tuple[str, str] | None:
        """The marks of the thoughts that a prompt which ends like this has begun, if any."""
        end = prompt_end.rstrip()
        return next((p for p in self.marks if end.endswith((p[0], p[0] + self.label))), None)


class ThoughtText:
    """Splits one answer, as it comes, into thoughts, which come first, and the answer.

    `opened`: the prompt ends within the thoughts. Blanks after the marks belong to them. An end
    that the answer begins with is left out. Thoughts that have no end are thoughts to the end, or
    to the first of `calls`: marks, each with its end, which begin calls if one of `opens` follows.
    Until it is known whether the thoughts go on to an end of their own, what comes behind such a
    mark is kept: a call that a model only drafted does not count.
    """

    def __init__(
        self,
        format_: ThoughtFormat,
        *,
        opened: bool,
        calls: Sequence[tuple[str, str]] = (),
        opens: tuple[str, ...] = (),
    ) -> None:
        self._format = format_
        self._held = ""
        #: Whether the text so far ends within the thoughts.
        self.thinking = opened
        #: Whether it may be that thoughts begin here, and whether a mark was right before.
        self._at_start = True
        self._after_mark = opened
        ends = [end for _, end in format_.marks]
        #: Marks of calls whose own end is not that of thoughts, and of others: these end thoughts.
        self._drafts = {begin for begin, end in calls if end not in ends}
        self._opens = opens or ("",)
        self._marks = sorted({*ends, *(begin for begin, _ in calls)}, key=len, reverse=True)
        self._mark = re.compile("|".join(map(re.escape, self._marks)))
        self._end = re.compile("|".join(map(re.escape, ends)))
        self._longest = max(map(len, ends))
        #: The text since a call's mark, including it, and the last characters of that.
        self._draft: list[str] = []
        self._last = ""

    def feed(self, text: str) -> tuple[str, str]:
        """Take more text; return what more is known of the thoughts, and of the answer."""
        text, self._held = self._held + text, ""
        if self._at_start:
            begun = text.lstrip()
            label, begins = self._format.label, [begin for begin, _ in self._format.marks]
            ends = [] if self.thinking else [end for _, end in self._format.marks]
            known = [*(begin + label for begin in begins), *ends]
            short = any(one.startswith(begun) and begun != one for one in known)
            if (short or (label and begun in begins)) and len(text) < MOST_BEFORE:
                self._held = text  # too short to know
                return "", ""
            self._at_start = False
            if mark := next((m for m in begins if begun.startswith(m)), ""):
                text = begun.removeprefix(mark).removeprefix(label)
                self.thinking = self._after_mark = True
            elif mark := next((m for m in ends if begun.startswith(m)), ""):
                text, self._after_mark = begun.removeprefix(mark), True
        thoughts = ""
        if self.thinking:
            thoughts, text = self._end_of_draft(text) if self._draft else self._think(text)
        return thoughts, text if self.thinking else self._unblanked(text)

    def end(self) -> tuple[str, str]:
        """End the answer; return the rest of both."""
        held, self._held = self._held, ""
        if self._draft:
            return "", "".join(self._draft)
        if self._at_start and held.lstrip().startswith(self._format.begin):
            return held.lstrip().removeprefix(self._format.begin).strip(), ""
        return (self._unblanked(held), "") if self.thinking else ("", held)

    def _think(self, text: str) -> tuple[str, str]:
        text, at = self._unblanked(text), 0
        while found := self._mark.search(text, at):
            before, mark, after = text[: found.start()], found[0], text[found.end() :]
            if self._end.fullmatch(mark):
                self.thinking, self._after_mark = False, True
                return before, after
            if mark not in self._drafts:
                self.thinking = False
                return before, mark + after
            begun = text[found.end() : found.end() + MOST_BLANKS].lstrip()
            if begun.startswith(self._opens):
                self._draft, self._last = [mark], ""
                thoughts, behind = self._end_of_draft(after)
                return before + thoughts, behind
            if len(after) < MOST_BLANKS and any(one.startswith(begun) for one in self._opens):
                self._held = text[found.start() :]  # too short to know
                return before, ""
            at = found.end()
        keep = max(overlap(text, mark) for mark in self._marks)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], ""

    def _end_of_draft(self, text: str) -> tuple[str, str]:
        """As `_think`, behind a call's mark."""
        self._draft.append(text)
        near = self._last + text
        self._last = near[max(0, len(near) - self._longest + 1) :]
        if not self._end.search(near):
            return "", ""
        thoughts, after = self._end.split("".join(self._draft), maxsplit=1)
        self._draft = []
        self.thinking, self._after_mark = False, True
        return thoughts, after

    def _unblanked(self, text: str) -> str:
        """Leave out the blanks that a mark has after it."""
        if self._after_mark:
            text = text.lstrip()
            self._after_mark = not text
        return text


def overlap(text: str, mark: str) -> int:
    """The length of the text's longest end that a mark begins with, but is not."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
