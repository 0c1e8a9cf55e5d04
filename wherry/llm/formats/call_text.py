"""Which part of an answer's text is a call of a tool?"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from wherry.llm.formats.call_writer import GrammarOf
from wherry.llm.formats.calls import CallPieces, CallReader, Functions, PiecesOf, ToolCall
from wherry.llm.formats.thoughts import overlap

#: What begins or ends a JSON string, or escapes in it.
QUOTES: Final = re.compile(r'\\.|(?P<toggle>")', re.DOTALL)


@dataclass(frozen=True, slots=True)
class CallFormat:
    read: CallReader
    #: The marks around calls; an end of "" is the answer's end.
    marks: tuple[tuple[str, str], ...] = ()
    #: Marks that are themselves part of the calls.
    inline: tuple[tuple[str, str], ...] = ()
    #: How an answer begins that consists of calls only, without marks.
    bare: tuple[str, ...] = ()
    #: The values within which an end mark does not count: groups `open`, `close` or `toggle`.
    values: re.Pattern[str] | None = QUOTES
    #: Where calls without an end mark end, if the answer goes on.
    cut: Callable[[str], int] | None = None
    #: What gives calls in pieces; None: they come whole.
    pieces: PiecesOf | None = None
    #: A call that is cut off is not read as a whole one.
    delimited: bool = True
    #: Marks around the answer's text, which are left out.
    dropped: tuple[str, ...] = ()
    #: What calls begin with after their mark and blanks; (): anything.
    opens: tuple[str, ...] = ()
    #: As `inline`, with a function's name in them.
    named: tuple[tuple[str, str], ...] = ()
    #: The grammar of calls in this notation; None: not known.
    grammar: GrammarOf | None = None


#: The first members of an object that may be a call.
_HEADS: Final = frozenset({
    "name", "tool_name", "function", "arguments", "parameters", "args",
    "id", "type", "index", "tool_call_id",
})  # fmt: skip
_FIRST_KEY: Final = re.compile(r'\{\s*+"(?P<key>[^"\\]{0,128})(?P<end>")?')
_LISTS: Final = re.compile(r"\s*+(?:\[\s*+)?")
#: Blanks before and after a bracket that an answer begins with, at most.
_MOST_BLANKS: Final = 1024

#: Parts of an answer in their order: text, and calls or pieces of them.
Parts = list[str | ToolCall]


def _end_of(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.match(text)
    return found.end() if found else 0


class CallText:
    """Splits one answer, as it comes, into text and calls.

    What stands between marks and is not a call of `functions` is text, as the model wrote it. The
    result does not depend on how the answer is divided into pieces. What begins like calls without
    marks, and whose first call is not in the usual form, is held until the answer's end.
    """

    def __init__(self, format_: CallFormat, functions: Functions) -> None:
        self._format = format_
        self._functions = functions
        self._bare = format_.bare
        self._inline = format_.inline + tuple(
            (begin.format(name), end) for begin, end in format_.named for name in functions
        )
        #: The end of the text outside, which may begin a mark, or the answer's first characters.
        self._kept = ""
        #: The marks of the text inside, the text so far, and its last characters.
        self._begin = self._end = ""
        self._body: list[str] | None = None
        self._tail = ""
        self._pieces: CallPieces | None = None
        #: How much of it the pieces have read, and its withheld end, which may begin the mark.
        self._emitted = 0
        self._withheld = ""
        #: The text not yet searched for its end, where it begins, and whether that is in a value.
        self._unsearched: list[str] = []
        self._searched = 0
        self._in_value = False
        #: Whether text was shown last, the blanks after it, and whether no text was shown before.
        self._shown = False
        self._blanks: list[str] = []
        self._first = True
        #: Marks to be left out: the format's, and ends of calls' marks once a call was read that
        #: began without its mark.
        self._stray = tuple((mark, "") for mark in format_.dropped)

    def feed(self, text: str) -> Parts:
        """Take more text; return what is certain now: text and calls."""
        return self._visible(self._split(text))

    def end(self, *, cut: bool = False) -> Parts:
        """End the answer; return the rest of the text and of the calls. `cut`: it was not at its
        end."""
        parts = self._visible(self._last(cut=cut))
        return [*parts, "".join(self._blanks)] if self._shown and self._blanks else parts

    # Parts

    def _split(self, text: str) -> Parts:
        parts: Parts = []
        while text:
            if self._body is None:
                text = self._outside(text, parts)
            else:
                text = self._inside(text, self._body, parts)
        return parts

    def _last(self, *, cut: bool) -> Parts:
        kept, self._kept = self._kept, ""
        if self._body is None:
            return [kept]
        body, self._body = "".join(self._body), None
        emitted = self._give("")
        if self._pieces is not None and self._pieces.at:
            return [*emitted, *self._rest(self._pieces, body, cut=cut)]
        if cut and not self._format.delimited:
            return [self._begin + body]
        if read := self._read_to_end(body):
            return read
        if self._begin and not (self._format.values and self._end in body):
            return [self._begin + body]
        # Not without marks, but perhaps with them; or a quote without its counterpart hides an end.
        plain = replace(self._format, bare=(), inline=(), named=(), values=None, pieces=None)
        again = CallText(plain, self._functions)
        return [*again._split(self._begin + body), *again._last(cut=cut)]

    def _outside(self, text: str, parts: Parts) -> str:
        """Show what stands before the next call; return the text inside of it."""
        text, self._kept = self._kept + text, ""
        if self._bare:
            begun = text.lstrip()
            if not begun:
                parts.append(text)
                return ""
            may_be = self._may_be_bare(begun)
            if may_be is None:  # too short to know
                self._kept = text
                return ""
            self._bare = ()
            if may_be:
                self._enter("", "")
                return text
        marks = self._format.marks + self._inline + self._stray
        found = [(at, mark) for mark in marks if (at := text.find(mark[0])) >= 0]
        if not found:
            keep = max((overlap(text, mark[0]) for mark in marks), default=0)
            parts.append(text[: len(text) - keep])
            self._kept = text[len(text) - keep :]
            return ""
        at, (begin, end) = min(found)
        parts.append(text[:at])
        if (begin, end) in self._stray:
            return text[at + len(begin) :]
        if (begin, end) in self._inline:
            self._enter("", end)
            return text[at:]
        self._enter(begin, end)
        return text[at + len(begin) :]

    def _may_be_bare(self, begun: str) -> bool | None:
        """Whether an answer that begins like this may be nothing but calls; None: it is too short
        to know. A JSON object that is an answer is not held until its end."""
        if not begun.startswith(self._bare):
            return None if any(bare.startswith(begun) for bare in self._bare) else False
        rest = begun[_end_of(_LISTS, begun) :]
        if not rest:
            return None if len(begun) < _MOST_BLANKS else False
        for begin, _ in self._inline:
            name = begin.removeprefix("[")
            if rest.startswith(name):
                return True
            if name.startswith(rest):
                return None
        key = _FIRST_KEY.match(rest)
        if key is None:
            return None if rest[0] == "{" and not rest[1:].strip() and len(rest) < 9 else False
        if key["end"]:
            return key["key"] in _HEADS or key["key"] in self._functions
        return None if key.end() == len(rest) else False

    def _enter(self, begin: str, end: str) -> None:
        self._begin, self._end, self._body = begin, end, []
        self._pieces = self._format.pieces(self._functions) if self._format.pieces else None
        self._tail, self._searched, self._in_value = "", 0, False
        self._emitted, self._withheld, self._unsearched = 0, "", []

    def _inside(self, text: str, body: list[str], parts: Parts) -> str:
        """Take more of the text inside, and read it if this ends it; return what is behind it."""
        body.append(text)
        if not self._end:
            parts += self._give(text)
            return ""
        near = self._tail + text
        self._tail = near[max(0, len(near) - len(self._end) + 1) :]
        self._unsearched.append(text)
        if self._end not in near or (at := self._end_of()) < 0:
            parts += self._give(text, overlap(near, self._end))
            return ""
        whole, self._body = "".join(body), None
        behind = at + len(self._end)
        if self._pieces is not None:
            parts += self._pieces.feed(whole[self._emitted : at])
        if self._pieces is not None and self._pieces.at:
            parts += self._rest(self._pieces, whole[:at], cut=False)
            made = True
        else:
            read = self._read(whole[: at if self._begin else behind])
            made = bool(read)
            parts += read or [self._begin + whole[:behind]]
        if made and not self._begin:
            ends = [end for _, end in self._format.marks if end]
            self._stray = tuple((mark, "") for mark in (*self._format.dropped, *ends))
        return whole[behind:]

    def _end_of(self) -> int:
        """Where the text inside ends, from where it was searched before; -1: nowhere."""
        text, before = "".join(self._unsearched), self._searched
        searched = 0
        while (at := text.find(self._end, searched)) >= 0:
            if self._format.values is not None:
                for found in self._format.values.finditer(text, searched, at):
                    if found.lastgroup is not None:
                        opens = found.lastgroup == "open"
                        self._in_value = (
                            not self._in_value if found.lastgroup == "toggle" else opens
                        )
            if not self._in_value:
                return before + at
            searched = at + len(self._end)
        self._unsearched, self._searched = [text[searched:]], before + searched
        return -1

    def _give(self, text: str, keep: int = 0) -> Parts:
        """Give more of the text inside to the pieces, all but its last `keep` characters."""
        text = self._withheld + text
        until = len(text) - keep
        self._emitted, self._withheld = self._emitted + until, text[until:]
        return [*self._pieces.feed(text[:until])] if self._pieces is not None else []

    def _rest(self, pieces: CallPieces, body: str, *, cut: bool) -> Parts:
        """The last pieces of calls that have begun, and what is behind them."""
        more, behind = pieces.end(body[pieces.at :], cut=cut)
        if not behind.strip():
            return [*more]
        if cut and not self._format.delimited:
            return [*more, behind]
        return [*more, *(self._read_to_end(behind) or [behind])]

    def _visible(self, parts: Parts) -> Parts:
        """Hold blanks until more text comes: blanks around calls, and line breaks before the
        answer, are not part of it."""
        visible: Parts = []
        for part in parts:
            if not isinstance(part, str):
                self._shown = False
                visible.append(part)
                continue
            if text := part.rstrip():
                whole = "".join(self._blanks) + text
                visible.append(whole.lstrip("\n") if self._first else whole)
                self._shown, self._first, self._blanks = True, False, []
            if blanks := part[len(text) :]:
                self._blanks.append(blanks)
        return visible

    def _read(self, text: str) -> Parts:
        """The calls in the text inside, behind what stands before them: the mark may have been
        mentioned before it was meant, so the last one counts as well as the first. [] if it has
        no calls."""
        if (calls := self._calls(text)) or not self._begin:
            return [*calls]
        before, again, after = text.rpartition(self._begin)
        calls = self._calls(after) if again else []
        return [self._begin + before, *calls] if calls else []

    def _read_to_end(self, text: str) -> Parts:
        """As `_read`, for calls without an end mark: text may follow them."""
        read = self._read(text)
        if not read and self._format.cut is not None and not self._end:
            at = self._format.cut(text)
            if calls := self._calls(text[:at]):
                return [*calls, text[at:]]
        return read

    def _calls(self, text: str) -> list[ToolCall]:
        try:
            return self._format.read(text, self._functions)
        except (ValueError, RecursionError):
            return []
