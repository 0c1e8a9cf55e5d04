"""What is thought, said and called in an answer of gpt-oss, which is several messages in channels?

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary
    to=functions.NAME <|constrain|>json<|message|>{...}<|call|>

Source: OpenAI's harmony response format.
"""

from __future__ import annotations

import re
from typing import Final

from wherry.llm.formats.call_pieces import JsonPieces
from wherry.llm.formats.calls import Functions, Said, call_of
from wherry.llm.formats.json_calls import named_shape
from wherry.llm.formats.marks import partial

MESSAGE: Final = "<|message|>"
#: What ends a message, or begins another without an end.
ENDS: Final = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
MARKS: Final = (MESSAGE, *ENDS, "<|channel|>", "<|constrain|>")
#: What headers begin with; a text that does not is said.
_HEADERS: Final = ("<|", "assistant")
_END: Final = re.compile("|".join(map(re.escape, ENDS)))
#: A call's name, given to what reads its arguments, and these.
_ARGUMENTS: Final = named_shape(r"(?P<name>[^\s<]+) ")
_RECIPIENT: Final = re.compile(r"to=(?:functions\.)?([^\s<]+)")


class HarmonyText:
    """Splits one answer, as it comes, by the channels of its messages: `analysis` is thought,
    messages to functions are calls, and all others are said. Calls of other functions than
    `functions` are said, too."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._held = ""
        #: The header of the message whose text comes; None: the header itself comes.
        self._header: str | None = None
        self._call: list[str] = []
        #: What gives the call in pieces.
        self._pieces: JsonPieces | None = None

    def feed(self, text: str) -> list[Said]:
        """Take more text; return what of it was thought, said and called, in this order."""
        self._held += text
        parts: list[Said] = []
        while self._held:
            if self._header is None:
                if not self._opens():
                    break
                continue
            ended = _END.search(self._held)
            cut = ended.start() if ended else len(self._held) - self._keep(self._held)
            more, self._held = self._held[:cut], self._held[ended.end() if ended else cut :]
            parts += self._more(self._header, more)
            if not ended:
                break
            parts += self._ended()
        return parts

    def end(self, *, cut: bool = False) -> list[Said]:
        """End the answer; return the rest. `cut`: a call whose arguments have not begun is none."""
        held, self._held = self._held, ""
        if cut and held == "" and not self._call:
            self._header = None
        if self._header is None:
            return [] if "<|" in held else [Said(text=held)]
        return self.feed(held + ENDS[0])

    def _opens(self) -> bool:
        """Take a message's header; False: it is not complete."""
        begun = self._held.lstrip()
        header, after = "final", self._held
        if any(begun.startswith(start) or start.startswith(begun) for start in _HEADERS):
            header, complete, after = self._held.partition(MESSAGE)
            if not complete:
                return False
        self._header, self._held = header, after
        self._pieces = JsonPieces((_ARGUMENTS,), self._functions)
        if recipient := _RECIPIENT.search(header):
            self._pieces.feed(f"{recipient[1]} ")
        return True

    def _keep(self, text: str) -> int:
        return max(partial(text, end) for end in ENDS)

    def _more(self, header: str, text: str) -> list[Said]:
        """More text of a message."""
        if self._pieces is not None and _RECIPIENT.search(header):
            self._call.append(text)
            return [Said(calls=made)] if (made := self._pieces.feed(text)) else []
        return [Said(thoughts=text) if "analysis" in header else Said(text=text)]

    def _ended(self) -> list[Said]:
        """End a message; what is called, or said if it cannot be."""
        header, self._header = self._header or "", None
        recipient = _RECIPIENT.search(header)
        text, self._call = "".join(self._call), []
        if recipient is None or self._pieces is None or self._pieces.at:
            return []
        try:
            return [Said(calls=[call_of(recipient[1], text, self._functions)])]
        except (ValueError, RecursionError):
            return [Said(text=text)]
