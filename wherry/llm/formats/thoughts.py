"""Which part of an answer's text is what the model thought before it answered?"""

from __future__ import annotations

from dataclasses import dataclass

from wherry.llm.formats.marks import partial


@dataclass(frozen=True, slots=True)
class ThoughtFormat:
    """The marks that a family of models puts around its thoughts."""

    begin: str
    end: str


class ThoughtText:
    """Splits one answer, as it comes, into thoughts, which come first, and the answer.

    `opened`: the prompt ends within the thoughts. Blanks after the marks belong to them. Thoughts
    that have no end are thoughts to the end.
    """

    def __init__(self, format_: ThoughtFormat, *, opened: bool) -> None:
        self._format = format_
        self._held = ""
        self._thinking = opened
        #: Whether it may be that thoughts begin here, and whether a mark was right before.
        self._at_start = True
        self._after_mark = opened

    def feed(self, text: str) -> tuple[str, str]:
        """Take more text; return what more is known of the thoughts, and of the answer."""
        text, self._held = self._held + text, ""
        thoughts = ""
        if self._at_start:
            begun = text.lstrip()
            if self._format.begin.startswith(begun):  # too short to tell
                self._held = text
                return "", ""
            self._at_start = False
            if begun.startswith(self._format.begin):
                text = begun.removeprefix(self._format.begin)
                self._thinking = self._after_mark = True
        if self._thinking:
            thoughts, ended, after = self._unblanked(text).partition(self._format.end)
            if not ended:
                keep = partial(thoughts, self._format.end)
                self._held = thoughts[len(thoughts) - keep :]
                return thoughts[: len(thoughts) - keep], ""
            self._thinking, self._after_mark = False, True
            text = after
        return thoughts, self._unblanked(text)

    def end(self) -> tuple[str, str]:
        """End the answer; return the rest of both."""
        held, self._held = self._held, ""
        if self._at_start and held.strip() == self._format.begin:
            return "", ""
        return (self._unblanked(held), "") if self._thinking else ("", held)

    def _unblanked(self, text: str) -> str:
        """Leave out the blanks that a mark has after it."""
        if self._after_mark:
            text = text.lstrip()
            self._after_mark = not text
        return text
