"""What do installed packages bring beside wherry's own: which backends, caches, engines, and so on?

A package names what it brings in an entry point group. wherry's own are in a table of the same
form: to read what is installed takes some 20 ms, which only a name that is not wherry's costs.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wherry.core.values.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True)
class Plugins:
    """Those of one kind by their names: subclasses of `base`, or anything that makes one."""

    #: As in the group's name: "backend" for the entry point group `wherry.backends`.
    kind: str
    base: type[Any]
    #: wherry's, each as module:attribute. A package cannot take the place of one of these.
    own: dict[str, str] = field(default_factory=dict)
    #: Functions are refused: class methods are called before there is an object.
    only_classes: bool = False

    @property
    def group(self) -> str:
        return f"wherry.{self.kind}s"

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in self.installed()

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.own, *sorted(self.installed())]))

    def installed(self) -> dict[str, list[EntryPoint]]:
        """What packages bring, by the name; several of one name are a mistake. Reads files."""
        from importlib.metadata import entry_points

        found: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=self.group):
            found.setdefault(entry.name, []).append(entry)
        return found

    def load(self, name: str) -> Any:
        """What is registered under the name; imports it. ConfigError names package and remedy."""
        if name in self.own:
            module, _, attribute = self.own[name].partition(":")
            try:
                return getattr(importlib.import_module(module), attribute)
            except ImportError as error:
                extra = name.removesuffix("runtime")
                raise ConfigError(
                    f"the {self.kind} {name!r} cannot be imported: {error}; install wherry[{extra}]"
                ) from error
        entries = self.installed().get(name)
        if entries is None:
            there = ", ".join(self) or "none"
            raise ConfigError(
                f"no installed package provides the {self.kind} {name!r}; available: {there}"
            )
        if len(entries) > 1:
            packages = " and ".join(sorted(map(package_of, entries)))
            raise ConfigError(
                f"the {self.kind} {name!r} comes from {packages}: uninstall all but one"
            )
        try:
            loaded = entries[0].load()
        except Exception as error:  # another's module: anything may come
            problem = f"cannot be imported: {type(error).__name__}: {error}"
            raise self._mistake(entries[0], problem) from error
        if not self._may_make(loaded):
            raise self._mistake(entries[0], f"is {loaded!r}, not a {_name(self.base)}")
        return loaded

    def make(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call what is registered under the name. ConfigError, also if what it makes is of another
        type than required."""
        made = self.load(name)(*args, **kwargs)
        if not isinstance(made, self.base) and (entries := self.installed().get(name)):
            lacks = [one for one in vars(self.base) if one[0] != "_" and not hasattr(made, one)]
            without = f" without {', '.join(lacks)}" if lacks else ""
            problem = f"makes a {type(made).__name__}{without}, which is not a {_name(self.base)}"
            raise self._mistake(entries[0], problem)
        return made

    def _may_make(self, loaded: object) -> bool:
        if isinstance(loaded, type) and not getattr(self.base, "_is_protocol", False):
            return issubclass(loaded, self.base)
        return callable(loaded) and not self.only_classes

    def _mistake(self, entry: EntryPoint, problem: str) -> ConfigError:
        package = package_of(entry)
        return ConfigError(
            f"the {self.kind} {entry.name!r} of {package} {problem}; update {package.split()[0]},"
            " or uninstall it"
        )


def package_of(entry: EntryPoint) -> str:
    """The name and version of the distribution that an entry point is of."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
