"""How do the models of saved files take the place of those that serve?"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from wherry.cli.reload.modules import imported_anew, loaded_from
from wherry.cli.reload.served import (
    Key,
    SavedModel,
    changes,
    digest_of,
    file_of,
    folders_of,
)
from wherry.cli.reload.sources import Sources
from wherry.models.model import Model
from wherry.repository.layout import Fingerprint, fingerprint
from wherry.runtime.loaded_model import LoadedModel
from wherry.runtime.loader import log_ready
from wherry.runtime.runtime import Runtime
from wherry.runtime.targets import import_from_here, load_failure, load_target
from wherry.runtime.threads import ThreadGroup, side_by_side
from wherry.runtime.watch import RepositoryWatch
from wherry.values.errors import ConfigError, WherryError

log = logging.getLogger("wherry")

#: Seconds between two looks at the files, and for which they must not have changed.
LOOK_SECONDS: Final = 0.25
SETTLE_SECONDS: Final = 0.2


class Reloader:
    """The models of some targets, and those that follow them when their files are saved.

    A model is loaded again if the code that it needs has changed; the old one serves until the
    new one is ready, and finishes what it has. What fails is logged, and changes nothing.
    """

    def __init__(
        self,
        targets: Sequence[str],
        watched: Sequence[str] = (),
        settings: Callable[[str], Mapping[str, Any]] = lambda name: {},
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A change of the files and folders in `watched` is one of every model. `settings` are the
        operator's for a model of this name."""
        import_from_here()
        self._targets = tuple(targets)
        self._files = {one: file for one in targets if (file := file_of(one)) is not None}
        self._folders = folders_of(self._files.values())
        self._watched = [Path(path).resolve() for path in watched]
        self._settings = settings
        self._clock = clock
        self._watch = RepositoryWatch(SETTLE_SECONDS)
        #: The user's files that the targets need, and what was seen at the last look.
        self._used: set[Path] = set()
        self._seen: dict[str, Fingerprint] = {}
        #: Files that have changed while others still do.
        self._pending: set[Path] = set()
        #: By target.
        self._served: dict[str, dict[Key, SavedModel]] = {}
        #: Counts the changes of what all models need.
        self._common = 0
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
            found = self._import(target)
            models += [one for one in found if not any(one is known for known in models)]
            if target in self._files:
                self._served[target] = self._read(target, found, Sources(self._folders))
        return models

    def watch(self) -> None:
        """Hold the files as they are now for what is loaded."""
        self._used = Sources(self._folders).files(self._files.values())
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
        """Block until a file is saved."""
        while not self._changed():
            time.sleep(LOOK_SECONDS)

    def look(self, runtime: Runtime) -> bool:
        """Look at the files once, and reload what has changed. Whether anything has."""
        changed = self._changed()
        if changed:
            self._reload(changed, runtime)
        return bool(changed)

    # Files

    def _changed(self) -> set[Path]:
        """The files that have been saved, or are gone, since this last said so. Empty while there
        are some that still change: who saves one may save several."""
        # What is gone may be about to be replaced: it has to settle, too.
        self._seen = {**dict.fromkeys(self._seen, ()), **self._look_at_files()}
        self._pending |= set(map(Path, self._watch.look(self._seen, self._clock()).load))
        if not self._pending or self._watch.is_settling:
            return set()
        changed, self._pending = self._pending, set()
        self.watch()
        return changed

    def _look_at_files(self) -> dict[str, Fingerprint]:
        """All files that matter, and those beside them, which may be missed by an import."""
        folders = {path.parent for path in self._used}
        beside = {path for folder in folders for path in folder.glob("*.py")}
        found = {str(path): _stat(path) for path in self._used | beside}
        for path in self._watched:
            found[str(path)] = fingerprint(str(path)) if path.is_dir() else _stat(path)
        return found

    # Models

    def _work(self, runtime: Runtime) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            if "loading" not in runtime.not_ready().values():
                try:
                    self.look(runtime)
                except Exception:  # a bug of ours: the next file may fare better
                    log.exception("reloading failed")

    def _import(self, target: str) -> list[Model]:
        models = load_target(target)
        if isinstance(models, Runtime):
            raise ConfigError(f"reload: {target} is a Runtime of its own program: name its models")
        return models

    def _read(self, target: str, models: list[Model], sources: Sources) -> dict[Key, SavedModel]:
        def key_of(model: Model) -> Key:
            config = model.config(**self._settings(model.name))
            return config.name, config.version

        file = self._files[target]
        return {
            key_of(model): SavedModel(model, f"{self._common} {digest_of(model, file, sources)}")
            for model in models
        }

    def _reload(self, changed: set[Path], runtime: Runtime) -> None:
        sources = Sources(self._folders)
        loaded = set(loaded_from({path.parent for path in self._used}))
        if changed & set(self._watched) or (changed - self._used) & loaded:
            self._common += 1  # it is not known which models need them
            changed = changed | self._used
        with imported_anew(self._used | loaded, changed, sources):
            for target in self._files:
                try:
                    now = self._read(target, self._import(target), sources)
                except ConfigError as error:
                    _tell(f"cannot reload {target}", error)
                else:
                    self._replace(target, now, runtime)

    def _replace(self, target: str, now: dict[Key, SavedModel], runtime: Runtime) -> None:
        """Load what has changed of a target; what it takes the place of ends by itself."""
        served = self._served.setdefault(target, {})
        load, same, gone = changes(served, now)
        if not load and not gone:
            log.info("saved, and no model has changed", extra={"target": target})
        for model in [*same, *(one.model for one in load.values())]:
            model.serve_through(runtime)  # new models may call those that stay
        replaced: list[LoadedModel] = []
        for key, one in load.items():
            if self._closing.is_set():
                return
            try:
                self._refuse_a_stranger(key, target, runtime)
                said = self._settings(key[0])
                runtime.load_all([one.model], on_ready=log_ready, replaced=replaced.append, **said)
            except WherryError as error:
                _tell(f"cannot reload model {key[0]!r}", error)
            else:
                served[key] = one
        for key in gone:
            replaced += runtime.registry.take_out(*key)
            del served[key]
            log.info("unloaded", extra={"model": key[0]})
        self._threads.start(lambda: _retire(replaced, runtime), "wherry-reload-end")

    def _refuse_a_stranger(self, key: Key, target: str, runtime: Runtime) -> None:
        """ConfigError if a model of that name is served that is not this target's."""
        if key[0] in runtime.names() and key[0] not in {name for name, _ in self._served[target]}:
            raise ConfigError(f"another model is called {key[0]!r}")


def _retire(models: Sequence[LoadedModel], runtime: Runtime) -> None:
    """Let models finish what they have, however long that takes; callers before those they call."""

    def order(one: LoadedModel) -> tuple[bool, bool]:
        return not one.is_pipeline, not one.calls_others

    def retire(one: LoadedModel) -> None:
        runtime.registry.retire(one, None)

    for _, group in itertools.groupby(sorted(models, key=order), key=order):
        ending = list(group)
        side_by_side(retire, ending, len(ending), "wherry-reload-end")


def _stat(path: Path) -> Fingerprint:
    try:
        about = path.stat()
    except OSError:
        return ()
    # `cp -p` and `rsync -t` bring a file's old time along: that of the inode is of now.
    changed = max(about.st_mtime_ns, about.st_ctime_ns)
    return ((str(path), changed, about.st_size),)


def _tell(what: str, error: Exception) -> None:
    line, text = load_failure(error)
    log.error(
        f"{what}, what was loaded serves on: {line}", extra={"traceback": text} if text else {}
    )


def start_again() -> None:
    """Replace this process by the same command."""
    os.execv(sys.executable, sys.orig_argv)
