"""How does a model of a repository come into the runtime, and go out of it again?

An ensemble brings its members along. A model that is loaded again serves without a gap: the old
one answers until the new one is ready, and goes on if the new one cannot be loaded.
"""

from __future__ import annotations

import gc
import logging
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from wherry.core.api import (
    ConfigError,
    LoadedModel,
    LoadFailed,
    ModelNotFound,
    ModelNotReady,
    Registry,
    Runtime,
    Status,
    ThreadGroup,
    WherryError,
)
from wherry.triton.backends.load import backend_for
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.loading.folders import Config, Patch, RepositoryFolders, cannot_load, uploaded
from wherry.triton.repository.ensemble_graph import decoupled, member_problems, members
from wherry.triton.repository.layout import Found
from wherry.triton.repository.normalise import is_ensemble
from wherry.triton.repository.triton_config import TritonConfig, TritonTransactionPolicy

log = logging.getLogger("wherry")

OnReady = Callable[[LoadedModel, float], None]
Scratch = tempfile.TemporaryDirectory[str]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    #: Times that a load is tried again.
    retries: int = 0
    #: Complete a configuration from the model's own files.
    auto_complete: bool = True
    #: The folder of Python-based backends.
    backend_directory: str | None = None
    #: The most rows of a batch where only a model's file shows that it takes batches.
    default_max_batch_size: int | None = None
    #: The operator's settings for a model of this name, over its configuration.
    settings: Callable[[str], Mapping[str, Any]] = lambda name: {}
    make_model: Callable[..., RepositoryModel] = backend_for

    @property
    def of_backends(self) -> dict[str, Any]:
        """The arguments of make_model beside the model's own."""
        return {
            "auto_complete": self.auto_complete,
            "backend_directory": self.backend_directory,
            "default_max_batch_size": self.default_max_batch_size,
        }


@dataclass(slots=True, eq=False)
class _Origin:
    """Source of one model. The states of its versions are in the Lifecycle."""

    #: Held while it is loaded or unloaded: one after the other.
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: Where the files are that came with the load request.
    files: Scratch | None = None
    #: The models that it is made of, if it is an ensemble.
    members: Sequence[str] = ()
    #: Requested by its own name, and not only as a member of an ensemble.
    requested: bool = False


class RepositoryLoader:
    """Loads models of some repositories into a runtime, and unloads them. Names are the models'
    keys. Any thread; loading blocks, unloading does not."""

    def __init__(
        self, runtime: Runtime, repositories: RepositoryFolders, options: LoadOptions
    ) -> None:
        self._registry = runtime.registry
        self._runtime = runtime
        self._repositories = repositories
        self._options = options
        self._lock = threading.Lock()
        self._origins: dict[str, _Origin] = {}
        self._retiring = ThreadGroup()
        self._frozen = False

    def freeze(self) -> None:
        """Do not retry loads that fail from now on."""
        self._frozen = True

    def close(self, left: Callable[[], float]) -> None:
        """Wait `left()` seconds for models that are being freed, then remove uploaded files."""
        self._retiring.join(left)
        for origin in self._origins.values():
            if origin.files is not None:
                origin.files.cleanup()
                origin.files = None

    def members_of(self, name: str) -> Sequence[str]:
        """Its members, if it is an ensemble that was loaded here."""
        origin = self._origins.get(name)
        return origin.members if origin is not None else ()

    def set_requested(self, name: str, requested: bool) -> None:
        """Set whether it stays loaded when no ensemble needs it any more."""
        if requested or name in self._origins:
            self._origin(name).requested = requested

    # Loading

    def ensure(self, name: str, callers: Sequence[str], on_ready: OnReady | None) -> None:
        """Load a model unless it is loaded. `callers` are the ensembles that need it."""
        if name in callers:
            circle = " -> ".join([*callers[callers.index(name) :], name])
            raise ConfigError(f"failed to load '{name}': these ensembles are a circle: {circle}")
        if not self._is_loaded(name):
            self._load(self._found(name), callers, on_ready, unless_loaded=True)

    def load(
        self, name: str, on_ready: OnReady, config: Config | None = None, patch: Patch | None = None
    ) -> None:
        self._load(self._found(name, config, patch), (), on_ready)

    def load_files(
        self, name: str, on_ready: OnReady, config: Config | None, files: Mapping[str, bytes]
    ) -> None:
        scratch = tempfile.TemporaryDirectory(prefix="wherry-model-")
        try:
            found = uploaded(name, config, files, scratch.name)
            self._load(_sound(found), (), on_ready, scratch)
        except BaseException:
            scratch.cleanup()
            raise

    def _found(self, name: str, config: Config | None = None, patch: Patch | None = None) -> Found:
        found = self._repositories.look(name, config, patch)
        if found.in_several:
            self.unload(name)
        elif found.problems and not found.versions:
            with self._registry.locked() as life:
                life.failed(name, (), "")
        return _sound(found)

    def _load(
        self,
        found: Found,
        callers: Sequence[str],
        on_ready: OnReady | None,
        scratch: Scratch | None = None,
        *,
        unless_loaded: bool = False,
    ) -> None:
        name = found.name
        origin = self._origin(name)
        needed = members(found.config)
        with self._announced([name, *needed]):
            self._ensure_members(found, needed, [*callers, name], on_ready)
            with origin.lock:
                if unless_loaded and self._is_loaded(name):
                    return
                replaced = self._replace(origin, self._with_members(found), on_ready)
                old, origin.files, origin.members = origin.files, scratch, needed
        if replaced or old is not None:
            self._retiring.start(lambda: self._free(replaced, old), f"wherry-replace-{name}")

    @contextmanager
    def _announced(self, names: Sequence[str]) -> Iterator[None]:
        """Meanwhile callers of these get ModelNotReady, and an unload of one of them waits."""
        with self._registry.locked() as life:
            life.announced.begin(names)
        try:
            yield
        finally:
            with self._registry.locked() as life:
                life.announced.end(names)

    def _ensure_members(
        self,
        found: Found,
        needed: Sequence[str],
        callers: Sequence[str],
        on_ready: OnReady | None,
    ) -> None:
        problems = []
        for member in needed:
            try:
                self.ensure(member, callers, on_ready)
            except WherryError as error:
                problems.append(f"{found.name}: its member {member!r}: {error}")
        if problems:
            raise cannot_load(found.name, problems)

    def _replace(
        self, origin: _Origin, found: Found, on_ready: OnReady | None
    ) -> list[LoadedModel]:
        """Load the versions that `found` has, then retire the others. Returns those that were
        replaced: they may still have requests, and must be retired."""
        name = found.name
        versions = [str(version) for version in found.versions]
        with self._registry.locked() as life:
            life.begin(name, versions)
        for notice in found.notices:
            log.warning(notice, extra={"model": name})
        try:
            replaced = self._load_versions(found, on_ready)
        except Exception as error:  # the model's files and code: anything may come
            reason = str(error)
            if not isinstance(error, WherryError):  # from reading the model's own files
                reason = f"{type(error).__name__}: {error}"
            # Clients read this text: it must not show where the repository is.
            reason = reason.replace(found.folder, found.name)
            # Without a backend it is not a model, to its callers.
            known = bool(found.config.backend or found.config.platform)
            with self._registry.locked() as life:
                life.failed(name, versions, reason, known=known)
            if isinstance(error, ModelNotReady) and not isinstance(error, LoadFailed):
                raise  # the runtime is closing
            raise _load_failed(found.name, versions, reason) from error
        self._forget_answers_of_callers(name)
        with self._registry.quietly() as life:
            others = [v for v in life.ready_versions(name) if v not in versions]
        self._take_out(name, others)
        return replaced

    def _forget_answers_of_callers(self, name: str) -> None:
        """Empty the caches of the ensembles over this model: they hold the old one's answers."""
        for other in self._registry.models():
            if name in self.members_of(other.name):
                if other.cache is not None:
                    other.cache.forget()
                self._forget_answers_of_callers(other.name)

    def _load_versions(self, found: Found, on_ready: OnReady | None) -> list[LoadedModel]:
        options = self._options
        started = self._runtime.clock()
        replaced: list[LoadedModel] = []

        def ready(loaded: LoadedModel, _: float) -> None:
            # Completing the configuration took its time, too.
            loaded.load_seconds = self._runtime.clock() - started
            if on_ready is not None:
                on_ready(loaded, loaded.load_seconds)

        for attempt in range(options.retries + 1):
            try:
                models = [self._made(found, version) for version in found.versions]
                self._label(models)
                settings = options.settings(found.name)
                self._runtime.load_all(models, on_ready=ready, replaced=replaced.append, **settings)
                break
            except LoadFailed as error:
                if attempt == options.retries or self._frozen:
                    raise
                log.warning(
                    "loading again", extra={"model": found.name, "why": str(error), "try": attempt}
                )
        return replaced

    def _made(self, found: Found, version: int) -> RepositoryModel:
        options = self._options
        made = options.make_model(found.folder, str(version), found.config, **options.of_backends)
        tags = found.config.metric_tags
        made.metric_labels = {f"_{name}": tag for name, tag in tags.items()}
        return made

    def _with_members(self, found: Found) -> Found:
        """Check an ensemble against its members that are loaded; it streams if one of them does."""
        if not is_ensemble(found.config):
            return found

        config_of = self._config_of_loaded
        problems = [*member_problems(found.config, config_of), *_missing(found, self._registry)]
        if problems:
            raise cannot_load(found.name, [f"{found.name}: {problem}" for problem in problems])
        policy = TritonTransactionPolicy(decoupled=decoupled(found.config, config_of))
        config = msgspec.structs.replace(found.config, model_transaction_policy=policy)
        return replace(found, config=config)

    def _label(self, models: Sequence[RepositoryModel]) -> None:
        """Give an ensemble's outputs the labels of the members' outputs that they are."""
        for model in models:
            scheduling = model.triton.ensemble_scheduling
            for step in scheduling.step if scheduling is not None else []:
                member = self._registry.find(step.model_name).model
                for output, label in member.output_labels.items():
                    if output in step.output_map:
                        model.output_labels.setdefault(step.output_map[output], list(label))

    def _config_of_loaded(self, name: str) -> TritonConfig | None:
        try:
            model = self._registry.find(name).model
        except (ModelNotFound, ModelNotReady):
            return None
        return model.triton if isinstance(model, RepositoryModel) else TritonConfig(name=name)

    # Unloading

    def unload(self, name: str, *, dependents: bool = False) -> None:
        """Take all versions out of service now; they are freed when they have finished. With
        `dependents` also the members that nothing else needs and that were not requested."""
        needs = self.members_of(name) if dependents else []
        with self._registry.locked() as life:
            versions = life.ready_versions(name)
            life.missing.pop(name, None)
        self._take_out(name, versions)
        for member in needs:
            if self._origin(member).requested:
                continue
            with self._registry.quietly() as life:
                others = life.ready_names()
            if not any(member in self.members_of(other) for other in others):
                self.unload(member, dependents=True)

    def _take_out(self, name: str, versions: Iterable[str]) -> None:
        """Take versions out of service; a thread frees them when they have finished."""
        retiring: list[LoadedModel] = []
        for version in versions:
            try:
                retiring += self._registry.take_out(name, version)
            except ModelNotFound:
                continue  # another thread was quicker
        if not retiring:
            return
        origin = self._origin(name)

        def retire() -> None:
            while retiring:  # no variable holds what is freed
                self._registry.retire(retiring[0], None)
                version = retiring.pop(0).version
                log.info("model unloaded", extra={"model": name, "version": version})
            # Frees its reference cycles now: in a server the collector runs rarely.
            gc.collect()
            with origin.lock:
                if origin.files is not None and not self._is_loaded(name):
                    origin.files.cleanup()
                    origin.files = None

        self._retiring.start(retire, f"wherry-unload-{name}")

    def _free(self, replaced: list[LoadedModel], files: Scratch | None) -> None:
        while replaced:
            self._registry.retire(replaced.pop(), None)
        if files is not None:
            files.cleanup()
        gc.collect()  # as in _take_out

    # Parts

    def _origin(self, name: str) -> _Origin:
        with self._lock:
            return self._origins.setdefault(name, _Origin())

    def _is_loaded(self, name: str) -> bool:
        with self._registry.quietly() as life:
            return name in life.ready_names()


def _missing(found: Found, registry: Registry) -> Iterator[str]:
    """The versions that an ensemble's steps require and that are not loaded, as problems."""
    scheduling = found.config.ensemble_scheduling
    for number, step in enumerate(scheduling.step if scheduling is not None else ()):
        name, version = step.model_name, step.model_version
        with suppress(WherryError):  # a missing model has been reported
            registry.find(name)
            with registry.quietly() as life:
                versions = life.ready_versions(name)
            if version > 0 and str(version) not in versions:
                listed = ", ".join(versions)
                yield f"step[{number}] ({name}): version {version} is not loaded, but {listed}"


def _sound(found: Found) -> Found:
    if found.problems:
        raise cannot_load(found.name, found.problems)
    return found


def _load_failed(name: str, versions: Sequence[str], reason: str) -> ConfigError:
    """In Triton's words."""
    return ConfigError(
        f"load failed for model '{name}': version {', '.join(versions)} is at"
        f" {Status.UNAVAILABLE} state: {reason}"
    )


def log_failure(name: str, error: WherryError) -> None:
    text = _traceback_of(error)
    fields = {"model": name, "why": str(error)} | ({"traceback": text} if text else {})
    log.error("model not loaded", extra=fields)


def _traceback_of(error: BaseException) -> str:
    """Traceback in the model's own code; "" if the error did not come from there."""
    while error.__cause__ is not None:
        error = error.__cause__
    notes: list[str] = getattr(error, "__notes__", [])
    if notes:  # it was raised in a worker process, and came as text
        return notes[-1].rstrip()
    if isinstance(error, WherryError):
        return ""
    return "".join(traceback.format_exception(error)).rstrip()


def log_ready(loaded: LoadedModel, seconds: float) -> None:
    fields: dict[str, Any] = {"model": loaded.name, "version": loaded.version}
    residence = loaded.runner.residence()
    if residence.get("state") == "asleep":
        fields |= {"device": residence["device"]}
        log.info("model sleeps until it is called", extra=fields)
        return
    if not loaded.is_pipeline:
        devices = [str(instance.device) for instance in loaded.runner.instances]
        fields |= {"instances": len(devices), "device": ",".join(sorted(set(devices)))}
    log.info("model ready", extra={**fields, "seconds": round(seconds, 3)})
