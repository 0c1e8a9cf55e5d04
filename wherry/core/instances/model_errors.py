"""What may a model's code raise without taking its instance down with it?"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any


def parent_decides(number: int, frame: Any) -> None:
    """Handle a signal by going on, in a worker: its parent decides when it ends.

    A handler, not SIG_IGN, which programs that the model starts would inherit.
    """


def model_errors() -> tuple[type[BaseException], ...]:
    """The exceptions of the model's code, for `except model_errors()`, which is evaluated only when
    something was raised.

    All: a panic of a library in Rust is not an Exception. But in the main thread of the program,
    the program's signal handlers may raise, and what they raise is not for us: Ctrl-C, a test's
    timeout.
    """
    if threading.current_thread() is not threading.main_thread():
        return (BaseException,)
    if signal.getsignal(signal.SIGINT) is parent_decides:
        return (BaseException,)
    # A process whose model is not async never loads asyncio (7 MB, 30 ms).
    asyncio = sys.modules.get("asyncio")
    return (Exception, SystemExit, *([asyncio.CancelledError] if asyncio else []))
