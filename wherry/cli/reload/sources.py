"""Which of the user's code does a model need, and has that changed?

A model needs the statement that defines it, those that define the names used there, and so on, also
through imports of the user's own files. Statements that may do anything (a call, an `if`) are
needed by every model of their module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import wherry
from wherry.cli.reload.statements import Import, Statement, statements

_OURS: Final = Path(wherry.__file__).resolve().parent
#: In the place of a name: the whole module.
WHOLE: Final = "*"


class Sources:
    """The user's modules as they are on disk now, each read when it is first asked for."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """`folders`: those of sys.path that are the user's."""
        self._folders = folders
        self._read: dict[Path, list[Statement]] = {}

    def files(self, starts: Iterable[Path]) -> set[Path]:
        """These files, and those that they import, directly or not."""
        seen: set[Path] = set()
        waiting = list(starts)
        while waiting:
            path = waiting.pop()
            if path not in seen:
                seen.add(path)
                waiting += self._imported(path)
        return seen

    def digest(self, path: Path, name: str) -> str:
        """A value that changes when the code that `name` of this file needs does."""
        needed = sorted((str(at), one.code) for at, one in self._needed(path, name))
        return hashlib.sha256(repr(needed).encode()).hexdigest()

    def _needed(self, path: Path, name: str) -> Iterator[tuple[Path, Statement]]:
        seen: set[tuple[Path, str]] = set()
        waiting = [(path, name)]
        while waiting:
            at, wanted = waiting.pop()
            if (at, wanted) in seen:
                continue
            seen.add((at, wanted))
            for one in self._statements(at):
                if one.binds is not None and wanted != WHOLE and wanted not in one.binds:
                    continue
                yield at, one
                waiting += [(at, used) for used in one.uses]
                for imported in one.imports:
                    waiting += self._meant(imported, at)

    def _meant(self, imported: Import, by: Path) -> Iterator[tuple[Path, str]]:
        """The files, and the name in each, that an import is about."""
        places = self._places(imported, by)
        for package in places[:-1]:
            if file := _module(package):
                yield file, ""  # it runs, too
        if places and (file := _module(places[-1])):
            yield file, imported.name or WHOLE
        if places and imported.name and (file := _module(places[-1] / imported.name)):
            yield file, WHOLE

    def _places(self, imported: Import, by: Path) -> list[Path]:
        """The packages and the module of a dotted name, as paths without .py; empty if it is not
        the user's."""
        parts = imported.module.split(".") if imported.module else []
        if imported.level:
            folder = by.parents[imported.level - 1]
            return [folder.joinpath(*parts[:count]) for count in range(len(parts) + 1)]
        for folder in self._folders:
            places = [folder.joinpath(*parts[: count + 1]) for count in range(len(parts))]
            if _module(places[-1]) or places[-1].is_dir():
                return places
        return []

    def _imported(self, path: Path) -> set[Path]:
        imports = {one for statement in self._statements(path) for one in statement.imports}
        return {file for one in imports for file, _ in self._meant(one, path)}

    def _statements(self, path: Path) -> list[Statement]:
        if path not in self._read:
            try:
                self._read[path] = statements(path.read_text(encoding="utf-8"))
            except (OSError, SyntaxError, ValueError):
                self._read[path] = []  # whoever imports it will be told
        return self._read[path]


def _module(place: Path) -> Path | None:
    """The file of a module of this path without .py, if it is the user's."""
    for path in (place.with_name(place.name + ".py"), place / "__init__.py"):
        if path.is_file() and not path.is_relative_to(_OURS):
            return path
    return None
