"""Which models of a repository are to be loaded or unloaded, since their files have changed?

Pure: what the files look like and what time it is come in, names go out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from wherry.triton.repository.layout import Fingerprint


class Changes(NamedTuple):
    """Names of models, sorted."""

    load: list[str]
    unload: list[str]


class RepositoryWatch:
    """Compares the files of each model with those that it was loaded from.

    Files may still be copied when they are seen first: they count once they have not changed for
    `settle_seconds`.
    """

    def __init__(self, settle_seconds: float) -> None:
        self._settle_seconds = settle_seconds
        self._loaded: dict[str, Fingerprint] = {}
        #: Files that are not those that were loaded, and since when they have been like that.
        self._unsettled: dict[str, tuple[Fingerprint, float]] = {}

    @property
    def is_settling(self) -> bool:
        """Whether files have changed that are not loaded yet."""
        return bool(self._unsettled)

    def start(self, files: Mapping[str, Fingerprint]) -> None:
        """All models are loaded from these files."""
        self._loaded = dict(files)
        self._unsettled = {}

    def look(self, files: Mapping[str, Fingerprint], now: float) -> Changes:
        """The files of all models that there are. What is to be loaded counts as loaded, also if
        that fails: it is tried again when its files change again."""
        gone = sorted(self._loaded.keys() - files.keys())
        for name in gone:
            del self._loaded[name]
        self._unsettled = {name: seen for name, seen in self._unsettled.items() if name in files}
        settled = [name for name in sorted(files) if self._has_settled(name, files[name], now)]
        for name in settled:
            self._loaded[name] = files[name]
        return Changes(settled, gone)

    def _has_settled(self, name: str, files: Fingerprint, now: float) -> bool:
        """Have they changed since they were loaded, and not within the settling time?"""
        seen, since = self._unsettled.pop(name, (None, now))
        if files == self._loaded.get(name):
            return False
        if seen == files and now - since >= self._settle_seconds:
            return True
        self._unsettled[name] = (files, since if seen == files else now)
        return False
