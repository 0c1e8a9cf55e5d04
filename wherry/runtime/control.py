"""Which models of the repository are loaded, and what happens when that is to change?

    none       all of them, once, at the start
    poll       all of them, and again whenever their files change
    explicit   those that are asked for, at the start or by a client

A model that is loaded again serves without a gap: the old one answers until the new one is ready,
and goes on doing so if the new one cannot be loaded.
"""

from __future__ import annotations

import gc
import logging
import os
import tempfile
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import msgspec

from wherry.backends.load import backend_for
from wherry.backends.repository_model import RepositoryModel
from wherry.repository import layout, upload
from wherry.repository.ensemble_graph import decoupled, member_problems, members
from wherry.repository.json_form import from_json, patched
from wherry.repository.kind import is_ensemble
from wherry.repository.layout import Fingerprint, Found
from wherry.repository.problems import BadConfig
from wherry.repository.triton_config import TritonConfig, TritonTransactionPolicy
from wherry.repository.validate import problems_of
from wherry.runtime.loaded_model import LoadedModel
from wherry.runtime.runtime import Runtime
from wherry.values.errors import ConfigError, LoadFailed, ModelNotFound, ModelNotReady, WherryError

log = logging.getLogger("wherry")

T = TypeVar("T")
Mode = Literal["none", "poll", "explicit"]
Config = TritonConfig | Mapping[str, Any] | str | bytes
OnReady = Callable[[LoadedModel, float], None]

#: Seconds for which a model's files must not have changed before they are loaded.
SETTLE_SECONDS = 2.0

_NOT_ALLOWED = "explicit model load / unload is not allowed if polling is enabled"


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One line of the repository's index. A model that was never loaded has a name only."""

    name: str
    version: str = ""
    #: READY, LOADING, UNLOADING, UNAVAILABLE, or "".
    state: str = ""
    reason: str = ""


@dataclass(slots=True, eq=False)
class _Model:
    """What is known of one name beyond what the runtime serves."""

    #: Held while it is loaded or unloaded: one after the other.
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: State and reason of each version that is not simply ready.
    states: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: What was loaded last.
    found: Found | None = None
    #: Where the files that came with the load request lie.
    files: tempfile.TemporaryDirectory[str] | None = None
    #: Somebody wants it for itself, not only an ensemble as its member.
    wanted: bool = False


class ModelControl:
    """The models of some repositories in a Runtime. Without a repository: what it has anyway.

    All methods may be called from any thread; loading blocks.
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
        settings: Callable[[str], Mapping[str, Any]] = lambda name: {},
        make_model: Callable[..., RepositoryModel] = backend_for,
    ) -> None:
        """`settings` are the operator's for a model of this name, over its configuration."""
        self.runtime = runtime
        self.repositories = [os.path.abspath(repository) for repository in repositories]
        if self.repositories or runtime.control is None:
            runtime.control = self  # for models that have others loaded
        self.mode = mode
        self.strict_readiness = strict_readiness
        self._at_start = tuple(load)
        self._poll_seconds = poll_seconds
        self._settle_seconds = settle_seconds
        self._load_threads = load_threads
        self._load_retries = load_retries
        self._auto_complete = auto_complete
        self._exit_on_error = exit_on_error
        self._config_name = config_name
        self._backend_directory = backend_directory
        self._settings = settings
        self._make_model = make_model
        self._lock = threading.Lock()
        self._models: dict[str, _Model] = {}
        #: Names that have to be ready for the server to be, and why they are not.
        self._missing: dict[str, str] = {}
        #: Of each model that is polled: its files when it was loaded, and as they were seen last.
        self._loaded_files: dict[str, Fingerprint] = {}
        self._unsettled: dict[str, tuple[Fingerprint, float]] = {}
        self._polling = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._loads = _Workers("wherry-control-load", load_threads)
        self._looks = _Workers("wherry-control", 8)
        #: Names that some call of `_load` is about.
        self._under_load: Counter[str] = Counter()
        self._loads_ended = threading.Condition()
        self._closing = threading.Event()
        self._started = False

    def __repr__(self) -> str:
        return f"<ModelControl {self.mode}: {len(self.repositories)} repositories>"

    # Life

    def start(self, on_ready: OnReady | None = None) -> None:
        """Load what is to be there from the start. Blocks; LoadFailed names all that failed."""
        try:
            self._start(on_ready)
        finally:
            self.runtime.expect_no_more("*")

    def _start(self, on_ready: OnReady | None) -> None:
        wanted = self._wanted()
        self.runtime.expect(wanted)
        self.runtime.expect_no_more("*")
        if self.mode == "poll":
            self._loaded_files = {name: self._files_of(name) for name in wanted}
        failed = self._load_all(wanted, on_ready)
        self._started = True
        if self._closing.is_set():
            return
        for name, error in sorted(failed.items()):
            _log_failure(name, error)
        if failed and self._exit_on_error:
            raise _all_of(failed)
        if self.mode == "poll":
            self._start_thread(self._poll_until_closed, "wherry-poll")

    def try_all(self) -> dict[str, str]:
        """Load every model of the repositories, whatever the mode; why each that fails does."""
        failed = self._load_all(sorted(self._names()), None)
        return {name: str(error) for name, error in failed.items()}

    def _load_all(self, names: Sequence[str], on_ready: OnReady | None) -> dict[str, WherryError]:
        """Load these models side by side; the errors of those that failed."""
        self._missing = dict.fromkeys(names, "loading")
        failed: dict[str, WherryError] = {}

        def load(name: str) -> None:
            try:
                self._ensure(name, (), on_ready)
                self._model(name).wanted = True
                self._missing.pop(name, None)
            except WherryError as error:
                failed[name] = error
                self._missing[name] = str(error)
            finally:
                self.runtime.expect_no_more([name])

        _side_by_side(load, names, self._load_threads)
        return failed

    def freeze(self) -> None:
        """Begin no more changes: the runtime is about to be closed, by its owner."""
        self._closing.set()

    def close(self, timeout: float = 10.0) -> None:
        """Wait for the changes that were under way, and remove the files that clients sent."""
        self.freeze()
        with self._lock:
            threads, self._threads = self._threads, []
        threads += self._loads.threads + self._looks.threads
        ends_at = self.runtime.clock() + timeout
        for thread in threads:
            thread.join(max(0.0, ends_at - self.runtime.clock()))
        for model in self._models.values():
            if model.files is not None:
                model.files.cleanup()
                model.files = None

    # What is there

    def index(self, ready_only: bool = False) -> list[ModelStatus]:
        """Every model and version, by name."""
        rows: dict[tuple[str, str], ModelStatus] = {}
        for name, model in list(self._models.items()):
            for version, (state, reason) in list(model.states.items()):
                rows[name, version] = ModelStatus(name, version, state, reason)
        for loaded in self.runtime.models():
            reason = loaded.not_ready_reason()
            state = "UNAVAILABLE" if reason else "READY"
            rows[loaded.name, loaded.version] = ModelStatus(
                loaded.name, loaded.version, state, reason
            )
        known = {name for name, _ in rows}
        names = self._names()
        for name in names - self._loaded_names():
            if self._is_in_several(name):
                for key in [key for key in rows if key[0] == name]:
                    del rows[key]
                rows[name, ""] = ModelStatus(name, "", "UNAVAILABLE", layout.IN_SEVERAL)
                known.add(name)
        for name in names - known:
            reason = self._missing.get(name, "")
            state = "LOADING" if reason == "loading" else "UNAVAILABLE" if reason else ""
            rows[name, ""] = ModelStatus(name, "", state, reason if state == "UNAVAILABLE" else "")
        order = sorted(rows.values(), key=lambda row: (row.name, int(row.version or 0)))
        return [row for row in order if row.state == "READY" or not ready_only]

    def not_ready(self) -> dict[str, str]:
        """Models without which the server is not ready, and why; without strict readiness only
        while the first ones are loaded, as Triton listens after that."""
        if self._started and not self.strict_readiness:
            return {}
        reasons = self.runtime.not_ready()
        if self._started:  # what is loaded from now on is an addition: it takes nothing away
            there = self._loaded_names()
            reasons = {
                name: why
                for name, why in reasons.items()
                # Whoever unloads a member has unloaded its ensembles, too.
                if name in there and there.issuperset(self._members_of(name))
            }
        elif self.repositories and not self._missing:
            return {"*": "loading"}  # nobody has looked yet which models there are
        return {**dict(self._missing), **reasons}

    # Changes

    def load(
        self,
        name: str,
        config: Config | None = None,
        *,
        patch: Mapping[str, Any] | str | bytes | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Load a model, or load it again, with its members if it is an ensemble.

        `config` stands in place of the whole file; `patch` changes members of it (RFC 7396).
        `files` (name in the model's folder -> content) stand in place of the folder; they need a
        `config`. Only in mode explicit. Blocks until it is ready.
        """
        self._check_allowed()
        scratch = None
        try:
            if files and patch is not None:
                raise ConfigError(
                    f"failed to load '{name}': files need a config, not a patch of one"
                )
            if files:
                scratch = tempfile.TemporaryDirectory(prefix="wherry-model-")
                found = self._uploaded(name, config, files, scratch.name)
            else:
                found = self._found(name, config, patch)
            self._load(found, (), log_ready, scratch)
        except BaseException as error:
            if scratch is not None:
                scratch.cleanup()
            if isinstance(error, ConfigError):  # the caller may be a client, which is told less
                _log_failure(name, error)
            raise
        # A load was asked for now: its failure at the start says nothing any more.
        self._missing.pop(name, None)
        self._model(name).wanted = True

    def unload(self, name: str, *, dependents: bool = False) -> None:
        """Take a model out of service at once, and free it when it has finished what it has, as
        long as that takes.

        With `dependents` the members of an ensemble, too, but for those that another one needs and
        those that were loaded by their own name.
        Unloading what is not loaded is no error; what is just being loaded, for itself or for an
        ensemble, is waited for. Only in mode explicit.
        """
        self._check_allowed()
        with self._loads_ended:
            self._loads_ended.wait_for(lambda: not self._under_load[name])
        self._model(name).wanted = False
        self._unload(name, dependents=dependents)

    def poll(self) -> float:
        """Look at the files once: load what is new or has changed, unload what is gone.

        Files that have just changed are loaded at a later look, when they have not changed for
        the settling time. Returns the seconds until the next look makes sense.
        """
        with self._polling:
            names = self._names()
            for name in set(self._loaded_files) - names:
                del self._loaded_files[name]
                self._unsettled.pop(name, None)
                self._missing.pop(name, None)
                self._unload(name)
            settled = [name for name in sorted(names) if self._has_settled(name)]
            _side_by_side(self._reload, settled, self._load_threads)
            return self._settle_seconds if self._unsettled else self._poll_seconds

    def in_thread(
        self, call: Callable[[], T], done: Callable[[T | Exception], None], *, loads: bool
    ) -> None:
        """For frontends, which must not block: `call` in one of a few threads, which then tells
        `done` what it gave or raised. What `loads` a model does not hold up what does not."""

        def run() -> None:
            outcome: T | Exception
            try:
                outcome = call()
            except Exception as error:  # noqa: BLE001 - the client is told
                outcome = error
            done(outcome)

        (self._loads if loads else self._looks).run(run)

    # Parts: finding

    def _check_allowed(self) -> None:
        if self.mode != "explicit":
            refused = ModelNotReady(_NOT_ALLOWED)
            refused.retry_after = None  # it will not be allowed later
            raise refused
        if self._closing.is_set():
            raise ModelNotReady("the server is stopping")

    def _names(self) -> set[str]:
        try:
            return layout.names(self.repositories)
        except OSError as error:
            raise ModelNotReady(f"a model repository cannot be read: {error.strerror}") from None

    def _wanted(self) -> list[str]:
        """The models to load at the start."""
        for repository in self.repositories:
            if not os.path.isdir(repository):
                raise ConfigError(f"model repository {repository}: there is no such folder")
        if self.mode != "explicit":
            return sorted(self._names())
        wanted: set[str] = set()
        for name in self._at_start:
            wanted |= self._names() if name == "*" else {name}
        return sorted(wanted)

    def _found(
        self, name: str, config: Config | None, patch: Mapping[str, Any] | str | bytes | None = None
    ) -> Found:
        """The model as its files, or what stands in place of them, say."""
        try:
            if config is None and patch is None:
                found = layout.look(name, self.repositories, config_name=self._config_name)
            else:
                folders = layout.folders_of(name, self.repositories)
                found = layout.look(name, self.repositories, config_name=self._config_name)
                if len(folders) == 1:
                    changed = _config_of(config) if config is not None else found.config
                    if patch is not None:
                        changed = _checked(patched(changed, patch), "patch")
                    _check_environment(changed, found.config)
                    found = layout.read(folders[0], config=changed)
        except FileNotFoundError:
            raise ModelNotFound(
                f"failed to load '{name}', failed to poll from model repository: there is no"
                " model of this name"
            ) from None
        except BadConfig as error:
            raise _cannot_load(name, error) from None
        if found.in_several:
            self._unload(name)
        elif found.problems and not found.versions:
            self.runtime.note_unavailable(name, ())
        return _sound(found)

    def _uploaded(
        self, name: str, config: Config | None, files: Mapping[str, bytes], folder: str
    ) -> Found:
        """A model whose folder comes with the request."""
        if config is None:
            raise ConfigError(
                f"failed to load '{name}', failed to poll from model repository: files need a"
                " config beside them, which says how to serve them"
            )
        if not layout.is_name(name):
            raise ConfigError(f"failed to load '{name}': it is no name of a model")
        root = os.path.join(folder, name)
        try:
            changed = _config_of(config)
            upload.save(files, root)
            return _sound(layout.read(root, config=changed))
        except upload.BadUpload as error:
            raise ConfigError(f"failed to load '{name}': {error}") from None
        except BadConfig as error:
            raise _cannot_load(name, error) from None

    def _files_of(self, name: str) -> Fingerprint:
        folders = layout.folders_of(name, self.repositories)
        return tuple(file for folder in folders for file in layout.fingerprint(folder))

    # Parts: loading

    def _ensure(self, name: str, callers: Sequence[str], on_ready: OnReady | None) -> None:
        """Load a model unless it is loaded. `callers` are the ensembles that need it."""
        if name in callers:
            circle = " -> ".join([*callers[callers.index(name) :], name])
            raise ConfigError(f"failed to load '{name}': these ensembles are a circle: {circle}")
        if not self._is_loaded(name):
            self._load(self._found(name, None), callers, on_ready, unless_loaded=True)

    def _load(
        self,
        found: Found,
        callers: Sequence[str],
        on_ready: OnReady | None,
        scratch: tempfile.TemporaryDirectory[str] | None = None,
        *,
        unless_loaded: bool = False,
    ) -> None:
        name = found.name
        model = self._model(name)
        with self._announced([name, *members(found.config)]):
            self._ensure_members(found, [*callers, name], on_ready)
            with model.lock:
                if unless_loaded and self._is_loaded(name):
                    return
                replaced = self._replace(model, self._with_members(found), on_ready)
                old, model.files = model.files, scratch
        if replaced:
            self._start_thread(lambda: self._free(replaced, old), f"wherry-replace-{name}")
        elif old is not None:
            old.cleanup()

    @contextmanager
    def _announced(self, names: Sequence[str]) -> Iterator[None]:
        """While these are under load: `unload` waits for it, and callers are told to come back."""
        with self._loads_ended:
            self._under_load.update(names)
            self.runtime.expect(names)
        try:
            yield
        finally:
            with self._loads_ended:
                self._under_load.subtract(names)
                self._under_load += Counter()  # without those that are at zero
                self.runtime.expect_no_more([n for n in names if n not in self._under_load])
                self._loads_ended.notify_all()

    def _ensure_members(
        self, found: Found, callers: Sequence[str], on_ready: OnReady | None
    ) -> None:
        problems = []
        for member in members(found.config):
            try:
                self._ensure(member, callers, on_ready)
            except WherryError as error:
                problems.append(f"{found.name}: its member {member!r}: {error}")
        if problems:
            raise _cannot_load(found.name, BadConfig(problems))

    def _replace(self, model: _Model, found: Found, on_ready: OnReady | None) -> list[LoadedModel]:
        """Load the versions that are wanted; then let go of the others. Under the model's lock.
        Those whose places they took: they still have what they were asked before."""
        name = found.name
        versions = [str(version) for version in found.versions]
        for version in versions:
            model.states[version] = ("LOADING", "")
        for notice in found.notices:
            log.warning(notice, extra={"model": name})
        try:
            replaced = self._load_versions(found, on_ready)
        except Exception as error:  # the model's files and code: anything may come
            reason = str(error)
            if not isinstance(error, WherryError):  # from reading the model's own files
                reason = f"{type(error).__name__}: {error}"
            # Clients are told: where the repository is, is not theirs to know.
            reason = reason.replace(found.folder, name)
            for version in versions:
                model.states[version] = ("UNAVAILABLE", reason)
            if found.config.backend or found.config.platform:  # else nobody knows what it is
                self.runtime.note_unavailable(name, versions)
            if isinstance(error, ModelNotReady) and not isinstance(error, LoadFailed):
                raise  # the runtime is closing
            raise _load_failed(name, versions, reason) from error
        for version in versions:
            model.states.pop(version, None)
        model.found = found
        self._forget_answers_of_callers(name)
        self._let_go(name, [v for v in self._versions(name) if v not in versions])
        return replaced

    def _forget_answers_of_callers(self, name: str) -> None:
        """What the ensembles over this model remember, came from the one that it replaces."""
        for other in self.runtime.models():
            if name in self._members_of(other.name):
                if other.cache is not None:
                    other.cache.forget()
                self._forget_answers_of_callers(other.name)

    def _load_versions(self, found: Found, on_ready: OnReady | None) -> list[LoadedModel]:
        started = self.runtime.clock()
        replaced: list[LoadedModel] = []

        def tell(loaded: LoadedModel, _: float) -> None:
            # Completing the configuration took its time, too.
            loaded.load_seconds = self.runtime.clock() - started
            if on_ready is not None:
                on_ready(loaded, loaded.load_seconds)

        for attempt in range(self._load_retries + 1):
            try:
                models = [
                    self._make_model(
                        found.folder,
                        str(version),
                        found.config,
                        auto_complete=self._auto_complete,
                        backend_directory=self._backend_directory,
                    )
                    for version in found.versions
                ]
                self._label(models)
                settings = self._settings(found.name)
                self.runtime.load_all(models, on_ready=tell, replaced=replaced.append, **settings)
                break
            except LoadFailed as error:
                if attempt == self._load_retries or self._closing.is_set():
                    raise
                log.warning(
                    "loading again", extra={"model": found.name, "why": str(error), "try": attempt}
                )
        return replaced

    def _with_members(self, found: Found) -> Found:
        """An ensemble whose steps fit the models that are loaded; it streams if one does."""
        if not is_ensemble(found.config):
            return found
        problems = member_problems(found.config, self._config_of_loaded)
        if problems:
            raise _cannot_load(found.name, BadConfig(f"{found.name}: {p}" for p in problems))
        policy = TritonTransactionPolicy(decoupled=decoupled(found.config, self._config_of_loaded))
        config = msgspec.structs.replace(found.config, model_transaction_policy=policy)
        return replace(found, config=config)

    def _label(self, models: Sequence[RepositoryModel]) -> None:
        """An output of an ensemble has the labels of the member's output that it is."""
        for model in models:
            scheduling = model.triton.ensemble_scheduling
            for step in scheduling.step if scheduling is not None else []:
                member = self.runtime.model(step.model_name).model
                for output, label in getattr(member, "labels", {}).items():
                    if output in step.output_map:
                        model.labels.setdefault(step.output_map[output], label)

    def _config_of_loaded(self, name: str) -> TritonConfig | None:
        try:
            return getattr(self.runtime.model(name).model, "triton", TritonConfig(name=name))
        except (ModelNotFound, ModelNotReady):
            return None

    def _reload(self, name: str) -> None:
        """In mode poll: what is wrong is logged, and the old one goes on serving."""
        self._loaded_files[name] = self._files_of(name)
        try:
            self._load(self._found(name, None), (), log_ready)
            self._missing.pop(name, None)
        except WherryError as error:
            _log_failure(name, error)
            if not self._is_loaded(name) and not self._is_in_several(name):
                self._missing[name] = str(error)

    # Parts: unloading

    def _unload(self, name: str, *, dependents: bool = False) -> None:
        model = self._models.get(name)
        needs = members(model.found.config) if model and model.found and dependents else []
        self._let_go(name, self._versions(name))
        self._missing.pop(name, None)
        for member in needs:
            if self._model(member).wanted:
                continue
            if not any(member in self._members_of(other) for other in self._loaded_names()):
                self._unload(member, dependents=True)

    def _let_go(self, name: str, versions: Iterable[str]) -> None:
        """Out of service now; freed by a thread when they have finished what they have."""
        retiring: list[LoadedModel] = []
        model = self._models.get(name) or _Model()
        for version in versions:
            try:
                retiring += self.runtime.take_out(name, version)
            except ModelNotFound:
                continue  # somebody else was quicker
            model = self._model(name)
            model.states[version] = ("UNLOADING", "")
        if not retiring:
            return

        def retire() -> None:
            for loaded in retiring:
                self.runtime.retire(loaded, None)
                log.info("model unloaded", extra={"model": name, "version": loaded.version})
                if model.states.get(loaded.version) == ("UNLOADING", ""):
                    model.states[loaded.version] = ("UNAVAILABLE", "unloaded")
            retiring.clear()
            # What it held in circles goes now: a server has told the collector to look rarely.
            gc.collect()
            with model.lock:
                if model.files is not None and not self._is_loaded(name):
                    model.files.cleanup()
                    model.files = None

        self._start_thread(retire, f"wherry-unload-{name}")

    def _free(
        self, replaced: list[LoadedModel], files: tempfile.TemporaryDirectory[str] | None
    ) -> None:
        """Another serves in their place: let them finish what they have."""
        while replaced:
            self.runtime.retire(replaced.pop(), None)
        if files is not None:
            files.cleanup()
        gc.collect()  # as in _let_go

    # Parts: polling

    def _has_settled(self, name: str) -> bool:
        """Have its files changed since they were loaded, and not within the settling time?"""
        files, now = self._files_of(name), self.runtime.clock()
        if files == self._loaded_files.get(name):
            self._unsettled.pop(name, None)
            return False
        seen, since = self._unsettled.get(name, (None, now))
        if seen != files:
            self._unsettled[name] = (files, now)
            return False
        if now - since < self._settle_seconds:
            return False
        del self._unsettled[name]
        return True

    def _poll_until_closed(self) -> None:
        seconds = self._poll_seconds
        while not self._closing.wait(seconds):
            try:
                seconds = self.poll()
            except Exception:  # a bug of ours, or of a backend: the next look may do better
                log.exception("polling failed")
                seconds = self._poll_seconds

    # Parts: bookkeeping

    def _model(self, name: str) -> _Model:
        with self._lock:
            return self._models.setdefault(name, _Model())

    def _versions(self, name: str) -> list[str]:
        return [loaded.version for loaded in self.runtime.models() if loaded.name == name]

    def _loaded_names(self) -> set[str]:
        return {loaded.name for loaded in self.runtime.models()}

    def _is_loaded(self, name: str) -> bool:
        return name in self._loaded_names()

    def _is_in_several(self, name: str) -> bool:
        return len(layout.folders_of(name, self.repositories)) > 1

    def _members_of(self, name: str) -> list[str]:
        model = self._models.get(name)
        return members(model.found.config) if model is not None and model.found else []

    def _start_thread(self, run: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        with self._lock:
            self._threads = [*(t for t in self._threads if t.is_alive()), thread]
            thread.start()  # under the lock: close() joins what is listed


class _Workers:
    """A few threads for calls that come at any time; without calls there are none."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._lock = threading.Lock()
        self._calls: deque[Callable[[], None]] = deque()
        self._threads: list[threading.Thread] = []

    def run(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls.append(call)
            if len(self._threads) < self._most:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()

    @property
    def threads(self) -> list[threading.Thread]:
        with self._lock:
            return list(self._threads)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._threads.remove(threading.current_thread())
                    return
                call = self._calls.popleft()
            call()


def _side_by_side(call: Callable[[str], None], names: Sequence[str], threads: int) -> None:
    """`call` each name, so many at a time; the first error that is not the model's is raised."""
    waiting = list(reversed(names))
    errors: list[BaseException] = []

    def work() -> None:
        while not errors:
            try:
                name = waiting.pop()
            except IndexError:
                return
            try:
                call(name)
            except BaseException as error:  # noqa: BLE001 - carried over to the caller's thread
                errors.append(error)

    workers = [
        threading.Thread(target=work, name=f"wherry-load-{number}", daemon=True)
        for number in range(min(threads, len(names)))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]


def _config_of(config: Config) -> TritonConfig:
    if isinstance(config, TritonConfig):
        return _checked(config, "config")
    return _checked(from_json(config), "config")


def _checked(config: TritonConfig, what: str) -> TritonConfig:
    """As pbtxt.parse does it: what makes no sense is a BadConfig."""
    if problems := list(problems_of(config)):
        raise BadConfig(f"{what}: {problem}" for problem in problems)
    return config


def _check_environment(config: TritonConfig, of_the_files: TritonConfig) -> None:
    """BadConfig if a configuration that a client sends chooses another program to run the model
    than the model's own files do."""
    wanted = config.parameters.get("EXECUTION_ENV_PATH")
    if wanted is not None and wanted != of_the_files.parameters.get("EXECUTION_ENV_PATH"):
        raise BadConfig(
            ["parameters: EXECUTION_ENV_PATH may only be set in the model's own config.pbtxt"]
        )


def _sound(found: Found) -> Found:
    if found.problems:
        raise _cannot_load(found.name, BadConfig(found.problems))
    return found


def _cannot_load(name: str, error: BadConfig) -> ConfigError:
    """The beginning is Triton's; the rest is what only its log says."""
    return ConfigError(
        f"failed to load '{name}', failed to poll from model repository: "
        + "; ".join(error.problems)
    )


def _load_failed(name: str, versions: Sequence[str], reason: str) -> ConfigError:
    return ConfigError(
        f"load failed for model '{name}': version {', '.join(versions)} is at UNAVAILABLE state:"
        f" {reason}"
    )


def _all_of(failed: Mapping[str, WherryError]) -> LoadFailed:
    """One error for all; each of them is a note of it, and in the log."""
    if len(failed) == 1:
        ((_, error),) = failed.items()
        return LoadFailed(str(error))
    names = sorted(failed)
    combined = LoadFailed(f"{len(names)} models could not be loaded: {', '.join(names)}")
    for name in names:
        combined.add_note(f"{name}: {failed[name]}")
    return combined


def _log_failure(name: str, error: WherryError) -> None:
    text = _traceback_of(error)
    fields = {"model": name, "why": str(error)} | ({"traceback": text} if text else {})
    log.error("model not loaded", extra=fields)


def _traceback_of(error: BaseException) -> str:
    """Where in the model's own code it was raised; "" if it was not there."""
    while error.__cause__ is not None:
        error = error.__cause__
    notes: list[str] = getattr(error, "__notes__", [])
    if notes:  # it was raised in a worker process, and came as text
        return notes[-1].rstrip()
    if isinstance(error, WherryError):
        return ""
    return "".join(traceback.format_exception(error)).rstrip()


def log_ready(loaded: LoadedModel, seconds: float) -> None:
    """One line for a model that can be called from now on."""
    fields: dict[str, Any] = {"model": loaded.name, "version": loaded.version}
    if not loaded.is_pipeline:
        devices = [str(instance.device) for instance in loaded.runner.instances]
        fields |= {"instances": len(devices), "device": ",".join(sorted(set(devices)))}
    log.info("model ready", extra={**fields, "seconds": round(seconds, 3)})
