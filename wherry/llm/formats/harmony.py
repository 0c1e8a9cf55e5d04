"""What is thought, said and called in an answer of gpt-oss, which is several messages in channels?

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary
    to=functions.NAME <|constrain|>json<|message|>{...}<|call|>

Source: OpenAI's harmony response format.
"""

from __future__ import annotations

import re
from typing import Final

from wherry.llm.formats.calls import Functions, ToolCall, call_of
from wherry.llm.formats.marks import partial

MESSAGE: Final = "<|message|>"
#: What ends a message, or begins another without an end.
ENDS: Final = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
MARKS: Final = (MESSAGE, *ENDS, "<|channel|>", "<|constrain|>")
#: What headers begin with; a text that does not is said.
_HEADERS: Final = ("<|", "assistant")
_END: Final = re.compile("|".join(map(re.escape, ENDS)))
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

    def feed(self, text: str) -> tuple[str, str, list[ToolCall]]:
        """Take more text; return what of it was thought, said and called."""
        self._held += text
        thought, said, calls = "", "", list[ToolCall]()
        while self._held:
            if self._header is None:
                if not self._opens():
                    break
                continue
            ended = _END.search(self._held)
            cut = ended.start() if ended else len(self._held) - self._keep(self._held)
            more, self._held = self._held[:cut], self._held[ended.end() if ended else cut :]
            if _RECIPIENT.search(self._header):
                self._call.append(more)
            elif "analysis" in self._header:
                thought += more
            else:
                said += more
            if not ended:
                break
            rest, made = self._ended()
            said, calls = said + rest, calls + made
        return thought, said, calls

    def end(self) -> tuple[str, str, list[ToolCall]]:
        """End the answer; return the rest."""
        held, self._held = self._held, ""
        if self._header is None:
            return "", "" if "<|" in held else held, []
        thought, said, calls = self.feed(held + ENDS[0])
        return thought, said, calls

    def _opens(self) -> bool:
        """Take a message's header; False: it is not complete."""
        begun = self._held.lstrip()
        header, after = "final", self._held
        if any(begun.startswith(start) or start.startswith(begun) for start in _HEADERS):
            header, complete, after = self._held.partition(MESSAGE)
            if not complete:
                return False
        self._header, self._held = header, after
        return True

    def _keep(self, text: str) -> int:
        return max(partial(text, end) for end in ENDS)

    def _ended(self) -> tuple[str, list[ToolCall]]:
        """End a message; what is called, or said if it cannot be."""
        header, self._header = self._header or "", None
        recipient = _RECIPIENT.search(header)
        text, self._call = "".join(self._call), []
        if recipient is None:
            return "", []
        try:
            return "", [call_of(recipient[1], text, self._functions)]
        except (ValueError, RecursionError):
            return text, []
