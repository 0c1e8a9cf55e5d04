"""How far is a load that takes a while?"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final

log = logging.getLogger("wherry")

#: Seconds between two lines of one stage.
EVERY: Final = 10.0


@contextmanager
def stage(
    name: str, progress: Callable[[], Mapping[str, Any]] = dict, *, every: float = EVERY, **of: Any
) -> Iterator[None]:
    """Log that a stage of a load begins, and while it goes on what `progress`, which another
    thread calls, returns. `of` is in each line."""
    began, ended = monotonic(), threading.Event()

    def report() -> None:
        while not ended.wait(every):
            log.info(name, extra={**of, **progress(), "seconds": round(monotonic() - began)})

    log.info(name, extra=of)
    thread = threading.Thread(target=report, name="wherry-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
