"""Which part of an answer's text is a call of a tool?"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from wherry.llm.formats.calls import CallReader, Functions, ToolCall
from wherry.llm.formats.marks import partial

#: What begins, ends or escapes within a JSON string.
QUOTES: Final = re.compile(r'\\.|(?P<toggle>")', re.DOTALL)


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a family of models writes calls."""

    read: CallReader
    #: What begins and ends a text that is read; an end of "" is the answer's end.
    marks: tuple[tuple[str, str], ...] = ()
    #: The same, where both are part of what is read.
    inline: tuple[tuple[str, str], ...] = ()
    #: What an answer begins with that is nothing but calls, without marks.
    bare: tuple[str, ...] = ()
    #: Within which values an end is none: groups `open`, `close` or `toggle`.
    values: re.Pattern[str] | None = QUOTES
    #: Where calls end that the answer goes on after, if no mark does it.
    cut: Callable[[str], int] | None = None


class CallText:
    """Splits one answer, as it comes, into what is shown and what is called.

    What stands between marks and is no call of `functions` is shown, as the model wrote it. The
    result does not depend on how the text is cut. An answer that begins like calls without marks
    is held until its end.
    """

    def __init__(self, format_: CallFormat, functions: Functions) -> None:
        self._format = format_
        self._functions = functions
        self._bare = format_.bare
        #: The end of the text outside, which may begin a mark, or the answer's first characters.
        self._kept = ""
        #: The marks of the text inside, what of it has come, and the last characters of that.
        self._begin = self._end = ""
        self._body: list[str] | None = None
        self._tail = ""
        #: How far it was searched for its end, and whether that is within a value.
        self._searched = 0
        self._in_value = False
        self._shown = False
        self._blanks = ""
        #: Ends of marks, to be left out: a call was read that began without its mark.
        self._stray: tuple[tuple[str, str], ...] = ()

    def feed(self, text: str) -> tuple[str, list[ToolCall]]:
        """Take more text; return what may be shown now, and the calls that are complete."""
        shown: list[str] = []
        calls: list[ToolCall] = []
        while text:
            if self._body is None:
                text = self._outside(text, shown)
            else:
                text = self._inside(text, self._body, shown, calls)
        return self._visible("".join(shown)), calls

    def end(self) -> tuple[str, list[ToolCall]]:
        """End the answer; return the rest of the text and of the calls."""
        kept, self._kept = self._kept, ""
        if self._body is None:
            return self._visible(kept), []
        body, self._body = "".join(self._body), None
        shown, calls = self._read_to_end(body)
        if calls:
            return self._visible(shown), calls
        if self._begin and not (self._format.values and self._end in body):
            return self._visible(self._begin + body), []
        # Not without marks, but perhaps with them; or a quote without its counterpart hides an end.
        again = CallText(replace(self._format, bare=(), inline=(), values=None), self._functions)
        again._shown, again._blanks = self._shown, self._blanks
        shown, calls = again.feed(self._begin + body)
        rest, more = again.end()
        return shown + rest, calls + more

    # Parts

    def _outside(self, text: str, shown: list[str]) -> str:
        """Show what stands before the next call; return the text inside of it."""
        text, self._kept = self._kept + text, ""
        if self._bare:
            begun = text.lstrip()
            if any(bare.startswith(begun) for bare in self._bare):  # too short to tell
                self._kept = text
                return ""
            without_marks, self._bare = begun.startswith(self._bare), ()
            if without_marks:
                self._enter("", "")
                return text
        marks = self._format.marks + self._format.inline + self._stray
        found = [(at, mark) for mark in marks if (at := text.find(mark[0])) >= 0]
        if not found:
            keep = max((partial(text, mark[0]) for mark in marks), default=0)
            shown.append(text[: len(text) - keep])
            self._kept = text[len(text) - keep :]
            return ""
        at, (begin, end) = min(found)
        shown.append(text[:at])
        if (begin, end) in self._stray:
            return text[at + len(begin) :]
        if (begin, end) in self._format.inline:
            self._enter("", end)
            return text[at:]
        self._enter(begin, end)
        return text[at + len(begin) :]

    def _enter(self, begin: str, end: str) -> None:
        self._begin, self._end, self._body = begin, end, []
        self._tail, self._searched, self._in_value = "", 0, False

    def _inside(self, text: str, body: list[str], shown: list[str], calls: list[ToolCall]) -> str:
        """Take more of the text inside, and read it if this ends it; return what is behind it."""
        body.append(text)
        if not self._end:
            return ""
        near = self._tail + text
        self._tail = near[max(0, len(near) - len(self._end) + 1) :]
        if self._end not in near:
            return ""
        whole = "".join(body)
        at = self._end_of(whole)
        if at < 0:
            body[:] = [whole]
            return ""
        behind = at + len(self._end)
        before, made = self._read(whole[: at if self._begin else behind])
        calls += made
        if made and not self._begin:
            self._stray = tuple((end, "") for _, end in self._format.marks if end)
        shown.append(before if made else self._begin + whole[:behind])
        self._body = None
        return whole[behind:]

    def _end_of(self, text: str) -> int:
        """Where the text inside ends, from where it was searched before; -1: nowhere."""
        while (at := text.find(self._end, self._searched)) >= 0:
            if self._format.values is not None:
                for found in self._format.values.finditer(text, self._searched, at):
                    if found.lastgroup is not None:
                        opens = found.lastgroup == "open"
                        self._in_value = (
                            not self._in_value if found.lastgroup == "toggle" else opens
                        )
            if not self._in_value:
                return at
            self._searched = at + len(self._end)
        return -1

    def _visible(self, text: str) -> str:
        """Leave out the line breaks around calls: they are not part of the answer."""
        if not self._shown:
            text, self._blanks = self._blanks + text, ""
            if not text.strip():
                self._blanks = text
                return ""
            text, self._shown = text.lstrip("\n"), True
        return text

    def _read(self, text: str) -> tuple[str, list[ToolCall]]:
        """The calls in the text inside, and what stands before them: the mark may have been
        mentioned before it was meant, so the last one counts as well as the first."""
        if (calls := self._calls(text)) or not self._begin:
            return "", calls
        before, again, after = text.rpartition(self._begin)
        return self._begin + before, self._calls(after) if again else []

    def _read_to_end(self, text: str) -> tuple[str, list[ToolCall]]:
        """As `_read`, of what only the answer's end ends: text may follow the calls."""
        shown, calls = self._read(text)
        if not calls and self._format.cut is not None and not self._end:
            at = self._format.cut(text)
            if calls := self._calls(text[:at]):
                shown = text[at:]
        return shown, calls

    def _calls(self, text: str) -> list[ToolCall]:
        try:
            return self._format.read(text, self._functions)
        except (ValueError, RecursionError):
            return []
