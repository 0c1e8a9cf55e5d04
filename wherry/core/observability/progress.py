"""How far is a load that takes long?"""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from wherry.core.observability.logging import PROGRESS

T = TypeVar("T")

#: Seconds from one report to the next.
_REPORT_SECONDS: Final = 0.2


def progress(parts: Iterable[T], what: str = "loading", total: int | None = None) -> Iterator[T]:
    """Yield the parts of a long load and report progress: a bar on the terminal of `wherry serve`,
    and a log line every 10 seconds. Other programs see no output.

        class Bert(wherry.Model):
            def load(self, device: wherry.Device) -> None:
                for file in wherry.progress(self.files, "reading weights"):
                    self.add(file)
    """
    if total is None:
        total = operator.length_hint(parts)  # 0: not known
    log = logging.getLogger(PROGRESS)
    reported = time.monotonic()
    for done, part in enumerate(parts, 1):
        yield part
        if (now := time.monotonic()) - reported >= _REPORT_SECONDS:
            reported = now
            log.info(what, extra={"done": done, **({"total": total} if total else {})})
