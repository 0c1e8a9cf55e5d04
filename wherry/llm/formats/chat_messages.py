"""Which thoughts, text and calls has an answer of several messages, each with a header?

<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary
to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from wherry.llm.formats.call_writer import GrammarOf
from wherry.llm.formats.calls import (
    MOST_BEFORE,
    CallPieces,
    CallReader,
    Functions,
    MessagePart,
    PiecesOf,
)
from wherry.llm.formats.thoughts import overlap

Kind = Literal["thoughts", "text", "call", "none"]


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """How a family writes messages. `read` and `pieces` are those of calls."""

    #: What headers begin with; other text is the answer's. Such a mark also ends a message.
    begins: tuple[str, ...]
    #: What ends a header, which is part of it.
    opens: re.Pattern[str]
    #: What ends a message, or begins another without an end.
    ends: tuple[str, ...]
    #: The kind of a message by its header, and for a call the text that is read before its own.
    kind: Callable[[str], tuple[Kind, str]]
    read: CallReader
    pieces: PiecesOf
    #: Special tokens in headers and texts.
    inner: tuple[str, ...]
    #: A mark that may follow calls, and is left out.
    tail: str = ""
    #: As that of a `CallFormat`.
    grammar: GrammarOf | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        return (*self.ends, *self.inner)


class MessagesText:
    """Splits one answer, as it comes, by the headers of its messages. Calls of other functions than
    `functions` count as text."""

    def __init__(self, format_: MessageFormat, functions: Functions) -> None:
        self._format = format_
        self._functions = functions
        self._end = re.compile("|".join(map(re.escape, format_.ends)))
        self._held = ""
        #: From where ends count: a begin that was no header does not end a message.
        self._from = 0
        #: The kind of the message whose text comes; None: its header comes.
        self._kind: Kind | None = None
        #: Of a call: its text, the reader of that, and the text that is read before it.
        self._call: list[str] = []
        self._pieces: CallPieces | None = None
        self._before = ""

    def feed(self, text: str) -> list[MessagePart]:
        """Take more text; return its thoughts, text and calls, in this order."""
        self._held += text
        parts: list[MessagePart] = []
        while self._held:
            if self._kind is None:
                if not self._opens():
                    break
                continue
            ended = self._end.search(self._held, self._from)
            cut = ended.start() if ended else len(self._held) - self._keep(self._held)
            after = ended.end() if ended and ended[0] not in self._format.begins else cut
            more, self._held, self._from = self._held[:cut], self._held[after:], 0
            parts += self._more(self._kind, more)
            if not ended:
                break
            parts += self._ended(cut=False)
        return parts

    def end(self, *, cut: bool = False) -> list[MessagePart]:
        """End the answer; return the rest. `cut`: a call whose arguments have not begun is
        dropped."""
        held, self._held = self._held, ""
        if cut and not held and not self._call:
            self._kind = None
        if self._kind is None:
            return [] if "<|" in held else [MessagePart(text=held)]
        return [*self._more(self._kind, held), *self._ended(cut=cut)]

    def _opens(self) -> bool:
        """Take a message's header; False: it is not complete."""
        begun = self._held[:MOST_BEFORE].lstrip()
        starts = self._format.begins
        if any(begun.startswith(start) or start.startswith(begun) for start in starts):
            found = self._format.opens.search(self._held, 0, MOST_BEFORE)
            if found is not None:
                self._enter(self._held[: found.end()])
                self._held = self._held[found.end() :]
                return True
            if len(self._held) < MOST_BEFORE:
                return False
            self._from = 1
        self._kind = "text"
        return True

    def _enter(self, header: str) -> None:
        self._kind, self._before = self._format.kind(header)
        if self._kind == "call":
            self._pieces = self._format.pieces(self._functions)
            self._pieces.feed(self._before)

    def _keep(self, text: str) -> int:
        return max(overlap(text, end) for end in self._format.ends)

    def _more(self, kind: Kind, text: str) -> list[MessagePart]:
        if kind == "call" and self._pieces is not None:
            self._call.append(text)
            return [MessagePart(calls=made)] if (made := self._pieces.feed(text)) else []
        if not text or kind == "none":
            return []
        return [MessagePart(thoughts=text) if kind == "thoughts" else MessagePart(text=text)]

    def _ended(self, *, cut: bool) -> list[MessagePart]:
        """End a message; return its calls, or its text if it cannot be read as calls."""
        pieces, self._pieces, self._kind = self._pieces, None, None
        text, self._call = "".join(self._call), []
        if pieces is None:
            return []
        whole = self._before + text
        if pieces.at:
            calls, behind = pieces.end(whole[pieces.at :], cut=cut)
            behind = behind.strip().removesuffix(self._format.tail).strip()
            return [MessagePart(calls=calls), MessagePart(text=behind)]
        if cut:
            return [MessagePart(text=text)]
        try:
            whole = whole.strip().removesuffix(self._format.tail)
            return [MessagePart(calls=self._format.read(whole, self._functions))]
        except (ValueError, RecursionError):
            return [MessagePart(text=text)]
