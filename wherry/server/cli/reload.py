"""How do the models of saved files take the place of those that serve? `wherry serve --reload`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import linecache
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import wherry
from wherry.core.api import (
    ConfigError,
    LoadedModel,
    Model,
    Runtime,
    ThreadGroup,
    WherryError,
)
from wherry.llm.api import is_checkpoint
from wherry.server.targets import (
    import_from_here,
    is_repository,
    load_failure,
    load_target,
    module_name,
)
from wherry.triton.api import Fingerprint, RepositoryWatch, fingerprint, log_ready

log = logging.getLogger("wherry")

#: Seconds between two looks at the files, and for which they must not have changed.
LOOK_SECONDS: Final = 0.25
SETTLE_SECONDS: Final = 0.2

_OURS: Final = os.path.join(os.path.dirname(wherry.__file__), "")
#: Folders of installed packages, also of an environment within the user's folder.
_INSTALLED: Final = {"site-packages", "dist-packages"}

_Key = tuple[str, str]


class Reloader:
    """The models of some targets, and those that follow them when their files are saved.

    When a file of the user's is saved, all targets that have a file are imported again, and their
    models loaded; the old ones serve until the new ones are ready, and finish what they have. What
    fails is logged, and changes nothing.
    """

    def __init__(
        self,
        targets: Sequence[str],
        watched: Sequence[str] = (),
        settings: Callable[[str], Mapping[str, Any]] = lambda name: {},
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`watched`: more files and folders whose changes count. `settings` are the operator's for
        a model of this name."""
        import_from_here()
        self._targets = tuple(targets)
        self._files = {one: file for one in targets if (file := _file_of(one)) is not None}
        folders = {Path.cwd(), *(module_name(one)[1] for one in self._files.values())}
        self._folders = tuple(f"{folder}{os.sep}" for folder in folders)
        self._watched = [Path(path).resolve() for path in watched]
        self._settings = settings
        self._clock = clock
        self._watch = RepositoryWatch(SETTLE_SECONDS)
        self._seen: dict[str, Fingerprint] = {}
        #: Files that have changed while others still do.
        self._pending: set[Path] = set()
        self._served: set[_Key] = set()
        self._closing = threading.Event()
        self._threads = ThreadGroup()

    @property
    def has_files(self) -> bool:
        """Whether there is one that can be saved."""
        return any(file.is_file() for file in self._files.values())

    def first(self) -> list[Model]:
        """Import the targets. As `load_targets`; ConfigError for a Runtime."""
        models: list[Model] = []
        for target in self._targets:
            found = _import(target)
            models += [one for one in found if not any(one is known for known in models)]
            if target in self._files:
                self._served |= self._by_key(found).keys()
        return models

    def watch(self) -> None:
        """Hold the files as they are now for what is loaded."""
        self._seen = self._look_at_files()
        self._watch.start(self._seen)

    def start(self, runtime: Runtime) -> None:
        """Reload into this runtime, once its first models are ready, until `close`."""
        log.info("watching", extra={"files": len(self._seen)})
        self._threads.start(lambda: self._work(runtime), "wherry-reload")

    def close(self, timeout: float = 5.0) -> None:
        """Begin no more reloads, and wait for what is under way."""
        self._closing.set()
        ends_at = self._clock() + timeout
        self._threads.join(lambda: max(0.0, ends_at - self._clock()))

    def wait_for_a_change(self) -> None:
        while not self._changed():
            time.sleep(LOOK_SECONDS)

    def look(self, runtime: Runtime) -> bool:
        """Look at the files once, and reload if any has changed. Whether any has."""
        changed = self._changed()
        if changed:
            self._reload(changed, runtime)
            self.watch()  # new files may have been imported
        return bool(changed)

    # Files

    def _changed(self) -> set[Path]:
        """The files that have been saved, or are gone, since this last returned any. Empty while
        some still change: an editor may save several."""
        # What is gone may be about to be replaced: it has to settle, too.
        self._seen = {**dict.fromkeys(self._seen, ()), **self._look_at_files()}
        self._pending |= set(map(Path, self._watch.look(self._seen, self._clock()).load))
        if not self._pending or self._watch.is_settling:
            return set()
        changed, self._pending = self._pending, set()
        return changed

    def _look_at_files(self) -> dict[str, Fingerprint]:
        """The user's files that are imported, and those beside them, which may be missed by an
        import."""
        used = {*self._files.values(), *(Path(one.__file__) for one in self._modules().values())}
        beside = {path for folder in {one.parent for one in used} for path in folder.glob("*.py")}
        found = {str(path): _stat(path) for path in used | beside}
        for path in self._watched:
            found[str(path)] = fingerprint(str(path)) if path.is_dir() else _stat(path)
        return found

    def _modules(self) -> dict[str, Any]:
        """The imported modules that are the user's, by name."""
        return {
            name: module
            for name, module in list(sys.modules.items())
            if name != "__main__" and self._is_users(getattr(module, "__file__", None) or "")
        }

    def _is_users(self, file: str) -> bool:
        return (
            file.startswith(self._folders)
            and not file.startswith(_OURS)
            and _INSTALLED.isdisjoint(Path(file).parts)
        )

    # Models

    def _work(self, runtime: Runtime) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            if "loading" not in runtime.not_ready().values():
                try:
                    self.look(runtime)
                except Exception:  # a bug of ours: the next file may fare better
                    log.exception("reloading failed")

    def _by_key(self, models: Sequence[Model]) -> dict[_Key, Model]:
        found = {}
        for model in models:
            config = model.config(**self._settings(model.name))
            found[config.name, config.version] = model
        return found

    def _reload(self, changed: Set[Path], runtime: Runtime) -> None:
        """Load the models anew; what they take the place of ends by itself."""
        models: dict[_Key, Model] = {}
        gone = set(self._served)
        with _imported_anew(self._modules(), changed):
            for target in self._files:
                try:
                    models |= self._by_key(_import(target))
                except ConfigError as error:
                    _log_failure(f"cannot reload {target}", error)
                    gone.clear()  # what of it was loaded, serves on
        for model in models.values():
            model.serve_through(runtime)  # they may call each other
        replaced: list[LoadedModel] = []
        for (name, version), model in models.items():
            if self._closing.is_set():
                return
            try:
                if name in runtime.names() and name not in {served for served, _ in self._served}:
                    raise ConfigError(f"another model is called {name!r}")
                settings = self._settings(name)
                runtime.load_all([model], on_ready=log_ready, replaced=replaced.append, **settings)
            except WherryError as error:
                _log_failure(f"cannot reload model {name!r}", error)
            else:
                self._served.add((name, version))
        for key in gone - models.keys():
            replaced += runtime.registry.take_out(*key)
            self._served.discard(key)
            log.info("unloaded", extra={"model": key[0]})
        self._threads.start(lambda: _retire(replaced, runtime), "wherry-reload-end")


@contextmanager
def _imported_anew(modules: Mapping[str, Any], changed: Set[Path]) -> Iterator[None]:
    """Within, these modules are not imported. Those that have not come back by the end are as they
    were."""
    for name in modules:
        del sys.modules[name]
    for path in changed:
        # Python holds a compiled file for fresh if its source has the same size and second.
        with contextlib.suppress(OSError, NotImplementedError):
            Path(importlib.util.cache_from_source(path)).unlink()
    importlib.invalidate_caches()
    linecache.checkcache()
    try:
        yield
    finally:
        for name, module in modules.items():
            sys.modules.setdefault(name, module)


def _import(target: str) -> list[Model]:
    models = load_target(target)
    if isinstance(models, Runtime):
        raise ConfigError(f"reload: {target} is a Runtime of its own program: name its models")
    return models


def _file_of(target: str) -> Path | None:
    """The file that a target imports; None for one that has no code of the user's. Nothing is
    imported, but for the packages around it."""
    where = target.partition(":")[0]
    if is_checkpoint(target) or is_repository(target):
        return None
    if where.endswith(".py") or "/" in where:
        return Path(where).resolve()
    try:
        spec = importlib.util.find_spec(where)
    except (ImportError, ValueError, AttributeError):
        return None
    return None if spec is None or not spec.has_location else Path(spec.origin or "").resolve()


def _retire(models: Sequence[LoadedModel], runtime: Runtime) -> None:
    """Let models finish what they have, however long that takes; callers before those they call."""
    for one in sorted(models, key=lambda one: (not one.is_pipeline, not one.calls_others)):
        runtime.registry.retire(one, None)


def _stat(path: Path) -> Fingerprint:
    try:
        about = path.stat()
    except OSError:
        return ()
    # `cp -p` and `rsync -t` bring a file's old time along: that of the inode is of now.
    changed = max(about.st_mtime_ns, about.st_ctime_ns)
    return ((str(path), changed, about.st_size),)


def _log_failure(what: str, error: Exception) -> None:
    line, text = load_failure(error)
    log.error(
        f"{what}, what was loaded serves on: {line}", extra={"traceback": text} if text else {}
    )


def start_again() -> None:
    os.execv(sys.executable, sys.orig_argv)
