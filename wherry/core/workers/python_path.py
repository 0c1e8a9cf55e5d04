"""Where do a user's folders stand in sys.path?

Behind the standard library: a `queue.py` or `types.py` beside app.py must not take the place of the
module that wherry, and each library, means by this name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

_STANDARD = os.path.dirname(os.path.abspath(os.__file__))
_ZIP = f"python{sys.version_info.major}{sys.version_info.minor}.zip"


def standard_first(path: Iterable[str]) -> list[str]:
    """The same entries, those of the standard library first."""
    return sorted(path, key=lambda entry: not _is_standard(entry))


def for_children() -> dict[str, str]:
    """The environment of a process that is to find all that this one finds."""
    path = standard_first(map(os.path.abspath, sys.path))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def import_from(folder: str) -> None:
    """Find modules in this folder, before those that are installed."""
    places = [place for place, entry in enumerate(sys.path, 1) if _is_standard(entry)]
    sys.path.insert(max(places, default=0), folder)


def _is_standard(entry: str) -> bool:
    name = os.path.basename(entry)
    return entry == _STANDARD or name in ("lib-dynload", _ZIP)
