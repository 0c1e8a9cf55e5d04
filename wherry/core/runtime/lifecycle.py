"""Which versions of which models are loaded, loading or gone, and why is one not available?

    nothing --begin--> LOADING --ready--> READY --take_out--> UNLOADING --freed--> UNAVAILABLE
                          |                 ^                                          |
                          +---failed--> UNAVAILABLE --begin--> LOADING <---begin-------+

A version that is READY stays so while it is loaded again: the new one takes its place when it is
ready, and the old one then retires. This is bookkeeping only: no clock, no lock, no thread. The
Registry owns the one Lifecycle of a runtime, and its lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from wherry.core.values.errors import ModelNotFound, ModelNotReady, WherryError

#: The name that stands for all names, as long as it is not known which models will be loaded.
ANY = "*"


class Status(StrEnum):
    """The state of a version, in the words of Triton's repository index."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class Handle(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...


H = TypeVar("H", bound=Handle)


@dataclass(slots=True, eq=False)
class _Version(Generic[H]):
    """What is known of a version beside the handle that is ready."""

    #: Its load has begun; handles may follow.
    begun: bool = False
    loading: list[H] = field(default_factory=list)
    #: Taken out or replaced, and not freed yet.
    retiring: list[H] = field(default_factory=list)
    #: Why there is none, if there was one or should have been.
    why: str = ""

    @property
    def is_blank(self) -> bool:
        return not (self.begun or self.loading or self.retiring or self.why)


class Announced:
    """Names of models that will be loaded or are loading: their callers are answered to retry.

    An ensemble's load needs its members, too: they count as loading with it.
    """

    def __init__(self) -> None:
        self._to_come: Counter[str] = Counter()
        self._under_way: Counter[str] = Counter()

    def expect(self, names: Iterable[str]) -> None:
        """A load of each is to come; ANY: it is not known yet of which."""
        self._to_come.update(names)

    def expect_no_more(self, names: Iterable[str]) -> None:
        """One announced load of each has ended, or will not come."""
        self._to_come.subtract(list(names))
        self._to_come = +self._to_come  # without those at zero

    def begin(self, names: Iterable[str]) -> None:
        """A load that needs these models is under way."""
        self._under_way.update(names)

    def end(self, names: Iterable[str]) -> None:
        self._under_way.subtract(list(names))
        self._under_way = +self._under_way

    def is_under_way(self, name: str) -> bool:
        return name in self._under_way

    def names(self) -> set[str]:
        return {*self._to_come, *self._under_way}


class Lifecycle(Generic[H]):
    """The state of each version of each model of a runtime.

    All but `get` is used under the lock of its owner.
    """

    def __init__(self) -> None:
        #: By name and version. The inner tables are replaced, not changed: `get` needs no lock.
        self._ready: dict[str, dict[str, H]] = {}
        self._versions: dict[tuple[str, str], _Version[H]] = {}
        self.announced = Announced()
        #: Names of which there was a version, or should have been.
        self._known: set[str] = set()
        #: Names without which the server is not ready, and why they are not there.
        self.missing: dict[str, str] = {}
        self.closed = False

    # Events of versions

    def begin(self, name: str, versions: Iterable[str]) -> None:
        """The load of these versions has begun: their files are being read."""
        for version in versions:
            self._version(name, version).begun = True

    def loading(self, handles: Sequence[H]) -> None:
        """Handles are about to load. Raises ModelNotReady after `close`."""
        self._refuse_if_closed()
        for handle in handles:
            self._version(handle.name, handle.version).loading.append(handle)

    def ready(self, handle: H) -> H | None:
        """A handle is loaded: callers find it from now on. Returns the one whose place it takes,
        which is retiring now. Raises ModelNotReady after `close`."""
        self._refuse_if_closed()
        name, version = handle.name, handle.version
        one = self._version(name, version)
        one.loading.remove(handle)
        one.begun, one.why = False, ""
        serving = self._ready.get(name, {})
        replaced = serving.get(version)
        if replaced is not None:
            one.retiring.append(replaced)
        self._ready[name] = {**serving, version: handle}
        self._tidy(name, version)
        return replaced

    def dropped(self, handles: Sequence[H]) -> None:
        """These have not become ready, and are closed. Other handles are ignored."""
        for handle in handles:
            one = self._version(handle.name, handle.version)
            if handle in one.loading:
                one.loading.remove(handle)
            self._tidy(handle.name, handle.version)

    def failed(self, name: str, versions: Iterable[str], why: str, *, known: bool = True) -> None:
        """These versions, or none, could not be loaded. If the model is `known`, its callers learn
        that it exists."""
        if known:
            self._known.add(name)
        for version in versions:
            one = self._version(name, version)
            one.begun, one.why = False, why or "not loaded"

    def take_out(self, name: str, version: str | None = None) -> list[H]:
        """One version, or all of them, are not found from now on. Returns the handles to retire.
        Raises ModelNotFound if there is none."""
        serving = self._ready.get(name, {})
        chosen = [one for one in serving.values() if version in (None, one.version)]
        if not chosen:
            raise self._unknown(name, version)
        left = {number: one for number, one in serving.items() if one not in chosen}
        if left:
            self._ready[name] = left
        else:
            del self._ready[name]
        self._known.add(name)
        for handle in chosen:
            one = self._version(name, handle.version)
            one.retiring.append(handle)
            one.why = ""
        return chosen

    def freed(self, handle: H) -> None:
        """A retiring handle holds nothing any more. Other handles are ignored."""
        one = self._version(handle.name, handle.version)
        if handle in one.retiring:
            one.retiring.remove(handle)
            serving = self._ready.get(handle.name, ())
            if handle.version not in serving and not one.retiring and not one.why:
                one.why = "unloaded"
        self._tidy(handle.name, handle.version)

    def close(self) -> list[H]:
        """No version is found or becomes ready any more. Returns all handles that are not freed."""
        self.closed = True
        for name, serving in self._ready.items():
            for version, handle in serving.items():
                self._version(name, version).retiring.append(handle)
        self._ready = {}
        return [*self.retiring(), *self.being_loaded()]

    # Questions

    def get(self, name: str, version: str | None = None) -> H | None:
        """The handle that is ready; without a version, of the highest one. Needs no lock."""
        serving = self._ready.get(name)
        if serving is None:
            return None
        if version is not None:
            return serving.get(version)
        if len(serving) == 1:
            return next(iter(serving.values()))
        return serving[max(serving, key=int)]

    def refusal(self, name: str, version: str | None = None) -> WherryError:
        """Why `get` finds nothing: ModelNotReady if one is to come, else ModelNotFound."""
        coming = any(
            one.name == name and version in (None, one.version) for one in self.being_loaded()
        )
        announced = name not in self._ready and {name, ANY} & self.announced.names()
        if coming or announced:
            return ModelNotReady(f"model {name!r} is not ready: loading")
        return self._unknown(name, version)

    def names(self) -> set[str]:
        """Of all models that are ready, load or will be loaded, as they can be called."""
        return {*self.announced.names(), *self._ready, *(one.name for one in self.being_loaded())}

    def all_ready(self) -> list[H]:
        return [handle for serving in self._ready.values() for handle in serving.values()]

    def ready_names(self) -> set[str]:
        return set(self._ready)

    def ready_versions(self, name: str) -> list[str]:
        return list(self._ready.get(name, ()))

    def retiring(self) -> list[H]:
        return [handle for one in self._versions.values() for handle in one.retiring]

    def loading_first(self) -> set[str]:
        return {one.name for one in self.being_loaded()} - self._ready.keys()

    def status(self, name: str, version: str) -> tuple[Status, str] | None:
        """The state of a version and its reason; None if there never was one."""
        if version in self._ready.get(name, ()):
            return Status.READY, ""
        one = self._versions.get((name, version))
        if one is None:
            return None
        if one.begun or one.loading:
            return Status.LOADING, ""
        if one.why:
            return Status.UNAVAILABLE, one.why
        return Status.UNLOADING, ""

    def versions(self) -> Iterator[tuple[str, str, Status, str]]:
        """Name, version, state and reason of each version that there is or was."""
        ready = {(name, version) for name, serving in self._ready.items() for version in serving}
        for name, version in ready | self._versions.keys():
            found = self.status(name, version)
            assert found is not None
            yield name, version, *found

    # Parts

    def _version(self, name: str, version: str) -> _Version[H]:
        return self._versions.setdefault((name, version), _Version())

    def _tidy(self, name: str, version: str) -> None:
        if self._versions[name, version].is_blank:
            del self._versions[name, version]

    def being_loaded(self) -> list[H]:
        return [handle for one in self._versions.values() for handle in one.loading]

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise ModelNotReady("the runtime is closed")

    def _unknown(self, name: str, version: str | None) -> ModelNotFound:
        """In Triton's words."""
        which, why = f"'{name}'", "is not found"
        known = name in self._known
        if name in self._ready and version is not None:
            which += f" version {version}"
            if known and (name, version) in self._versions:
                why = "is not at ready state"
        elif known:
            why = "has no available versions"
        return ModelNotFound(f"Request for unknown model: {which} {why}")
