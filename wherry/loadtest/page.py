"""How does a report become one page that opens anywhere, without a network?"""

from __future__ import annotations

from pathlib import Path

import msgspec

from wherry.loadtest.report import Report


def render(report: Report) -> str:
    """The page with the report in it. Nothing a server said can end the script it stands in."""
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    data = msgspec.json.encode(report).decode().replace("<", "\\u003c")
    before, _, after = template.partition("__REPORT__")
    return before + data + after
