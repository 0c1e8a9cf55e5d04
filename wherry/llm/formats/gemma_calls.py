"""Which calls stand in a text as Gemma writes them: `call:name{key:<escape>text<escape>}`?"""

from __future__ import annotations

import json
import re
from typing import Final

from wherry.llm.formats.calls import CallReader, Functions, ToolCall, call_of

_BEGIN: Final = re.compile(r"\s*(?:call)?:\s*(?P<name>[\w.-]+)\s*(?=\{)")
_KEY: Final = re.compile(r"([{,]\s*)([\w.-]+)(\s*:)")


def with_quotes(quote: str) -> CallReader:
    """A reader of calls whose texts stand between two of `quote`."""

    def read(text: str, functions: Functions) -> list[ToolCall]:
        begun = _BEGIN.match(text)
        if begun is None:
            raise ValueError("no call")
        parts = text[begun.end() :].strip().split(quote)
        if not len(parts) % 2:
            raise ValueError("a text has no end")
        outside = [_KEY.sub(r'\1"\2"\3', part) for part in parts[::2]]
        inside = [json.dumps(part, ensure_ascii=False) for part in parts[1::2]]
        joined = [outside[0]]
        for text_, rest in zip(inside, outside[1:], strict=True):
            joined += [text_, rest]
        return [call_of(begun["name"], "".join(joined), functions)]

    return read
