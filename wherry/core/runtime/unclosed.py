"""Which runtimes of this program were not closed at its end?

The threads of a runtime's models hold what they run, and that holds the runtime, so that it can be
called: no garbage collector ends one, and no finalizer comes before the end of the program.
"""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from collections.abc import Sequence

#: With the names of their models. Module state, as it concerns the end of the whole process.
_open: weakref.WeakKeyDictionary[object, Sequence[str]] = weakref.WeakKeyDictionary()


def opened(one: object, names: Sequence[str]) -> None:
    """Warn at the program's end if `closed(one)` was not called before. Not in forked children."""
    _open[one] = names


def closed(one: object) -> None:
    _open.pop(one, None)


def _tell() -> None:
    for names in _open.values():
        warnings.warn(
            f"a Runtime ({', '.join(names)}) was not closed: its threads, workers and memory stayed"
            " until the end; use `with wherry.Runtime(...)`, or call close()",
            ResourceWarning,
            stacklevel=2,
        )


atexit.register(_tell)
if hasattr(os, "register_at_fork"):  # not on Windows, where there is no fork
    os.register_at_fork(after_in_child=_open.clear)
