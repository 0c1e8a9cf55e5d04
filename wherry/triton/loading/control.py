"""Which models of the repositories are loaded, and what may change that?

    none       all of them, once, at the start
    poll       all of them, and again whenever their files change
    explicit   those that are requested, at the start or by a client

Frontends call this for index, load and unload. loader.py loads a model, the runtime's Lifecycle
knows what is loaded, and RepositoryWatch (pure) finds which files have changed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from wherry.core.api import (
    ANY,
    ConfigError,
    LoadFailed,
    ModelNotReady,
    Runtime,
    Status,
    ThreadGroup,
    ThreadPool,
    WherryError,
    side_by_side,
)
from wherry.triton.backends.load import backend_for
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.loading.folders import Config, Patch, RepositoryFolders
from wherry.triton.loading.loader import (
    LoadOptions,
    OnReady,
    RepositoryLoader,
    log_failure,
    log_ready,
)
from wherry.triton.repository import layout
from wherry.triton.repository.layout import Fingerprint


class Changes(NamedTuple):
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
        #: Files that differ from the loaded ones, and since when they have been as they are.
        self._unsettled: dict[str, tuple[Fingerprint, float]] = {}

    @property
    def is_settling(self) -> bool:
        return bool(self._unsettled)

    def start(self, files: Mapping[str, Fingerprint]) -> None:
        self._loaded = dict(files)
        self._unsettled = {}

    def look(self, files: Mapping[str, Fingerprint], now: float) -> Changes:
        """`files` are those of all models. Models to load count as loaded, even if loading fails:
        they are tried again when their files change again."""
        gone = sorted(self._loaded.keys() - files.keys())
        for name in gone:
            del self._loaded[name]
        self._unsettled = {name: seen for name, seen in self._unsettled.items() if name in files}
        settled = [name for name in sorted(files) if self._has_settled(name, files[name], now)]
        for name in settled:
            self._loaded[name] = files[name]
        return Changes(settled, gone)

    def _has_settled(self, name: str, files: Fingerprint, now: float) -> bool:
        """Whether they have changed since they were loaded, but not within the settling time."""
        seen, since = self._unsettled.pop(name, (None, now))
        if files == self._loaded.get(name):
            return False
        if seen == files and now - since >= self._settle_seconds:
            return True
        self._unsettled[name] = (files, since if seen == files else now)
        return False


log = logging.getLogger("wherry")

T = TypeVar("T")
Mode = Literal["none", "poll", "explicit"]

#: Seconds for which a model's files must not have changed before they are loaded.
SETTLE_SECONDS = 2.0

_NOT_ALLOWED = "explicit model load / unload is not allowed if polling is enabled"


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """Line of the repository's index. A model that was never loaded has a name only."""

    name: str
    version: str = ""
    #: A Status, or "".
    state: str = ""
    reason: str = ""


class ModelControl:
    """Loads and unloads the models of some repositories in a Runtime, and lists what is there.

    Without a repository it only lists. All methods may be called from any thread; loading blocks.
    """

    def __init__(
        self,
        runtime: Runtime,
        repositories: Sequence[str | os.PathLike[str]] = (),
        *,
        mode: Mode = "none",
        load: Sequence[str] = (),
        poll_seconds: float = 15.0,
        settle_seconds: float = SETTLE_SECONDS,
        load_threads: int = 4,
        load_retries: int = 0,
        auto_complete: bool = True,
        strict_readiness: bool = True,
        exit_on_error: bool = True,
        config_name: str | None = None,
        backend_directory: str | None = None,
        default_max_batch_size: int | None = None,
        settings: Callable[[str], Mapping[str, Any]] = lambda name: {},
        make_model: Callable[..., RepositoryModel] = backend_for,
    ) -> None:
        """`settings` are the operator's for a model of this name, over its configuration."""
        self.runtime = runtime
        self._repositories = RepositoryFolders(repositories, config_name)
        if repositories or runtime.control is None:
            runtime.control = self  # for models that have others loaded
        self.mode = mode
        self.strict_readiness = strict_readiness
        self._at_start = tuple(load)
        self._poll_seconds = poll_seconds
        self._settle_seconds = settle_seconds
        self._load_threads = load_threads
        self._exit_on_error = exit_on_error
        options = LoadOptions(
            load_retries,
            auto_complete,
            backend_directory,
            default_max_batch_size,
            settings,
            make_model,
        )
        self._loader = RepositoryLoader(runtime, self._repositories, options)
        self._watch = RepositoryWatch(settle_seconds)
        self._polling = threading.Lock()
        self._poller = ThreadGroup()
        self._loads = ThreadPool("wherry-control-load", load_threads)
        self._looks = ThreadPool("wherry-control", 8)
        self._closing = threading.Event()
        self._started = False
        self._no_models = ""

    def __repr__(self) -> str:
        return f"<ModelControl {self.mode}: {len(self.repositories)} repositories>"

    @property
    def repositories(self) -> Sequence[str]:
        return self._repositories.folders

    # Life

    def start(self, on_ready: OnReady | None = None) -> None:
        """Load the startup models. Blocks; LoadFailed names all that failed.

        A missing repository raises ConfigError, or, where errors must not end the server, leaves it
        without models and not ready.
        """
        try:
            requested = self._requested()
            self.runtime.expect(requested)
        except ConfigError as refused:
            if self._exit_on_error:
                raise
            log.error("no model is served", extra={"why": str(refused)})
            self._no_models = str(refused)
            return
        finally:
            self.runtime.expect_no_more([ANY])
        if self.mode == "poll":
            self._watch.start({name: self._repositories.files_of(name) for name in requested})
        failed = self._load_all(requested, on_ready)
        self._started = True
        if self._closing.is_set():
            return
        for name, error in sorted(failed.items()):
            log_failure(name, error)
        if failed and self._exit_on_error:
            raise _all_of(failed)
        if self.mode == "poll":
            self._poller.start(self._poll_until_closed, "wherry-poll")

    def try_all(self) -> dict[str, str]:
        self._repositories.check()
        names = sorted(self._repositories.names())
        self.runtime.expect(names)
        failed = self._load_all(names, None)
        return {name: str(error) for name, error in failed.items()}

    def _requested(self) -> list[str]:
        self._repositories.check()
        if self.mode != "explicit":
            return sorted(self._repositories.names())
        requested: set[str] = set()
        for name in self._at_start:
            requested |= self._repositories.names() if name == "*" else {name}
        return sorted(requested)

    def _load_all(self, names: Sequence[str], on_ready: OnReady | None) -> dict[str, WherryError]:
        """Load these models, which are expected, side by side. Returns the errors by name."""
        with self.runtime.registry.locked() as life:
            life.missing.update(dict.fromkeys(names, "loading"))
        failed: dict[str, WherryError] = {}

        def load(name: str) -> None:
            try:
                self._loader.ensure(name, (), on_ready)
                self._is_there(name)
            except WherryError as error:
                failed[name] = error
                self._is_missing(name, str(error))
            finally:
                self.runtime.expect_no_more([name])

        side_by_side(load, names, self._load_threads, "wherry-load")
        return failed

    def freeze(self) -> None:
        """Begin no more changes: the runtime is about to be closed, by its owner."""
        self._closing.set()
        self._loader.freeze()

    def close(self, timeout: float = 10.0) -> None:
        """Wait for the changes that were under way, and remove the files that clients sent."""
        self.freeze()
        ends_at = self.runtime.clock() + timeout

        def left() -> float:
            return max(0.0, ends_at - self.runtime.clock())

        for threads in (self._poller, self._loads, self._looks):
            threads.join(left)
        self._loader.close(left)
        self._repositories.close()

    # What is there

    def index(self, ready_only: bool = False) -> list[ModelStatus]:
        rows = _statuses(self.runtime, self._repositories)
        return [row for row in rows if row.state == Status.READY or not ready_only]

    def not_ready(self) -> dict[str, str]:
        """Reasons, by model, for which the server is not ready. Without strict readiness there are
        none once the first models are loaded, as Triton listens from then on."""
        if self._no_models:
            return {"*": self._no_models}
        with self.runtime.registry.quietly() as life:
            missing, ready = dict(life.missing), life.ready_names()
        if not self._started:
            if self.repositories and not missing:
                return {"*": "loading"}  # it is not known yet which models there are
            return {**missing, **self.runtime.not_ready()}
        if not self.strict_readiness:
            return {}
        # A model that loads now is an addition: the server stays ready. And an ensemble without
        # its members was unloaded with them.
        unable = self.runtime.registry.unable()
        needed = [name for name in unable if ready.issuperset(self._loader.members_of(name))]
        return {**missing, **{name: unable[name] for name in needed}}

    # Changes

    def load(
        self,
        name: str,
        config: Config | None = None,
        *,
        patch: Patch | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Load a model, or load it again, with its members if it is an ensemble.

        `config` stands in place of the whole file; `patch` changes members of it (RFC 7396).
        `files` (name in the model's folder -> content) stand in place of the folder; they need a
        `config`. Only in mode explicit. Blocks until it is ready.
        """
        self._check_allowed()
        try:
            if files and patch is not None:
                raise ConfigError(
                    f"failed to load '{name}': files need a config, not a patch of one"
                )
            if files:
                self._loader.load_files(name, log_ready, config, files)
            else:
                self._loader.load(name, log_ready, config, patch)
            self._is_there(name)
            for loaded in self.runtime.models():
                if loaded.name == name:
                    self.runtime.residency.wake(loaded.runner)
        except ConfigError as error:  # in full: a client gets only a part
            log_failure(name, error)
            raise

    def unload(self, name: str, *, dependents: bool = False) -> None:
        """Take a model out of service at once, and free it when its requests have finished, however
        long that takes.

        With `dependents` the members of an ensemble, too, except those that another one needs and
        those that were loaded by their own name.
        Unloading what is not loaded is not an error. Waits for a load of the model that is under
        way, for itself or for an ensemble. Only in mode explicit.
        """
        self._check_allowed()
        self.runtime.registry.wait_until_no_load_needs(name)
        self._loader.set_requested(name, False)
        self._loader.unload(name, dependents=dependents)

    def poll(self) -> float:
        """Look at the files once: load what is new or has changed, unload what is gone.

        Files that have just changed are loaded at a later look, when they have not changed for
        the settling time. Returns the seconds until the next look makes sense.
        """
        with self._polling:
            names = self._repositories.names()
            files = {name: self._repositories.files_of(name) for name in names}
            changes = self._watch.look(files, self.runtime.clock())
            for name in changes.unload:
                self._loader.unload(name)
            side_by_side(self._reload, changes.load, self._load_threads, "wherry-load")
            return self._settle_seconds if self._watch.is_settling else self._poll_seconds

    def in_thread(
        self, call: Callable[[], T], done: Callable[[T | Exception], None], *, loads: bool
    ) -> None:
        """Run `call` in one of a few threads, which then calls `done` with what it returned or
        raised. For frontends, which must not block. Calls that load (`loads`) have threads of their
        own, so that they do not delay the others."""

        def run() -> None:
            outcome: T | Exception
            try:
                outcome = call()
            except Exception as error:  # noqa: BLE001 - the client gets it
                outcome = error
            done(outcome)

        (self._loads if loads else self._looks).run(run)

    # Parts

    def _check_allowed(self) -> None:
        if self.mode != "explicit":
            refused = ModelNotReady(_NOT_ALLOWED)
            refused.retry_after = None  # it will not be allowed later
            raise refused
        if self._closing.is_set():
            raise ModelNotReady("the server is stopping")

    def _reload(self, name: str) -> None:
        """Load a model whose files have changed. An error is logged, and the old one serves on."""
        try:
            self._loader.load(name, log_ready)
            self._is_there(name)
        except WherryError as error:
            log_failure(name, error)
            in_several = self._repositories.is_in_several(name)
            with self.runtime.registry.locked() as life:
                if name not in life.ready_names() and not in_several:
                    life.missing[name] = str(error)

    def _poll_until_closed(self) -> None:
        seconds, unreadable = self._poll_seconds, ""
        while not self._closing.wait(seconds):
            try:
                seconds, unreadable = self.poll(), ""
            except ModelNotReady as error:
                if str(error) != unreadable:  # once, not at every look
                    log.error("polling failed", extra={"why": str(error)})
                seconds, unreadable = self._poll_seconds, str(error)
            except Exception:  # a bug of ours, or of a backend: the next look may do better
                log.exception("polling failed")
                seconds = self._poll_seconds

    def _is_there(self, name: str) -> None:
        """Note that it was requested by its name, and is loaded."""
        self._loader.set_requested(name, True)
        with self.runtime.registry.locked() as life:
            life.missing.pop(name, None)

    def _is_missing(self, name: str, why: str) -> None:
        with self.runtime.registry.locked() as life:
            life.missing[name] = why


def _statuses(runtime: Runtime, repositories: RepositoryFolders) -> list[ModelStatus]:
    with runtime.registry.quietly() as life:
        rows = {(one[0], one[1]): ModelStatus(*one) for one in life.versions()}
        missing = dict(life.missing)
        ready = life.all_ready()
    for loaded in ready:
        if reason := loaded.not_ready_reason():
            row = ModelStatus(loaded.name, loaded.version, Status.UNAVAILABLE, reason)
            rows[loaded.name, loaded.version] = row
    names = repositories.names()
    for name in names - {loaded.name for loaded in ready}:
        if repositories.is_in_several(name):
            rows = {key: row for key, row in rows.items() if key[0] != name}
            rows[name, ""] = ModelStatus(name, "", Status.UNAVAILABLE, layout.IN_SEVERAL)
    for name in names - {name for name, _ in rows}:
        reason = missing.get(name, "")
        if reason == "loading":
            rows[name, ""] = ModelStatus(name, "", Status.LOADING)
        else:
            rows[name, ""] = ModelStatus(name, "", reason and Status.UNAVAILABLE, reason)
    return sorted(rows.values(), key=lambda row: (row.name, int(row.version or 0)))


def _all_of(failed: Mapping[str, WherryError]) -> LoadFailed:
    if len(failed) == 1:
        ((_, error),) = failed.items()
        return LoadFailed(str(error))
    names = sorted(failed)
    combined = LoadFailed(f"{len(names)} models could not be loaded: {', '.join(names)}")
    for name in names:
        combined.add_note(f"{name}: {failed[name]}")
    return combined
