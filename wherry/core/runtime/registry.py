"""How are loaded models started, published, retired and closed?

The Registry owns the runtime's Lifecycle and its lock. It starts, drains and closes the runners of
the models, and updates the Lifecycle. It never holds the lock while it calls a runner.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from wherry.core.models.model import Caller
from wherry.core.observability.load_meter import LoadMeter, LoadReport
from wherry.core.residency.residency import Residency
from wherry.core.runtime.lifecycle import ANY, Lifecycle
from wherry.core.runtime.loaded_model import LoadedModel
from wherry.core.runtime.threads import side_by_side
from wherry.core.values.errors import ConfigError, InvalidRequest, ModelNotReady


class Registry:
    """Holds the loaded models of a runtime. Any thread; load, retire, drain and close block."""

    def __init__(
        self,
        caller: Caller,
        clock: Callable[[], float],
        life: Lifecycle[LoadedModel] | None = None,
        residency: Residency | None = None,
    ) -> None:
        """`caller` is what the models' own `infer` goes through."""
        self._caller = caller
        self._clock = clock
        self._residency = Residency({}, clock) if residency is None else residency
        self._life: Lifecycle[LoadedModel] = Lifecycle() if life is None else life
        self._changed = threading.Condition(threading.Lock())
        self._meter = LoadMeter()
        #: Changes whenever `find` may find another model than before.
        self.generation = 0
        #: Called after the lifecycle may have changed, in any thread, with no lock held.
        self.listeners: tuple[Callable[[], None], ...] = ()
        #: The process that this copy was forked from; None: it is not a copy.
        self._parent: int | None = None

    # Questions

    def find(self, name: str, version: str | int | None = None) -> LoadedModel:
        """Find the model that is ready; without a version the highest one.

        ModelNotFound if there is none, ModelNotReady if its first load is under way or to come.
        """
        if version is not None and type(version) is not str:
            version = _as_text(version)
        found = self._life.get(name, version)
        if found is None:
            self.refuse_a_copy()
            with self.quietly() as life:
                found = life.get(name, version)  # it may have become ready just now
                if found is None:
                    raise life.refusal(name, version)
        return found

    def names(self) -> set[str]:
        """Names of all models that are loaded, load or will be. ModelNotReady while it is not known
        yet which those are."""
        with self.quietly() as life:
            names = life.names()
        if ANY in names:
            raise ModelNotReady("the models are not ready: loading")
        return names

    def models(self) -> list[LoadedModel]:
        with self.quietly() as life:
            return life.all_ready()

    def routes(self) -> dict[str, str]:
        """Return the natural routes of models that are ready or load, with the models' names. Of
        several versions the highest that is ready has its route."""
        latest = self._latest()
        return {one.config.route: name for name, one in latest.items() if one.config.route}

    def served_names(self) -> dict[str, str]:
        """Return the served names of models that are ready or load, with the models' names, by
        the same rule."""
        latest = self._latest()
        return {other: name for name, one in latest.items() for other in one.config.served_names}

    def _latest(self) -> dict[str, LoadedModel]:
        """The highest version that is ready, or one that loads, of each model by its name."""
        with self.quietly() as life:
            handles = [*life.being_loaded(), *life.all_ready()]
            latest = {one.name: one for one in handles}
            for one in life.all_ready():
                latest[one.name] = life.get(one.name) or one
        return latest

    def awaits(self) -> bool:
        """Whether models load or will be loaded of which nothing is known yet."""
        with self.quietly() as life:
            return bool(life.announced.names() or life.being_loaded())

    def unable(self) -> dict[str, str]:
        """By model: why one that should be loaded now cannot answer. Not models that failed to load
        on a request: callers could take the server out of service for all others."""
        return {
            one.name: reason
            for one in self.models()
            if (reason := one.not_ready_reason())
            and one.runner.residence().get("resident") != "when asked"
        }

    def load_report(self) -> LoadReport:
        return self._meter.read(self.models(), self._clock())

    # The lifecycle, for several reads and writes under one lock

    @contextmanager
    def locked(self) -> Iterator[Lifecycle[LoadedModel]]:
        """Hold the lock, to read or change the lifecycle. The body must not block."""
        with self._changed:
            try:
                yield self._life
            finally:
                self.generation += 1
            self._changed.notify_all()
        for changed in self.listeners:
            changed()

    @contextmanager
    def quietly(self) -> Iterator[Lifecycle[LoadedModel]]:
        """Hold the lock, only to read the lifecycle."""
        with self._changed:
            yield self._life

    def wait_until_no_load_needs(self, name: str) -> None:
        """Block while a load of the model, or of an ensemble over it, is under way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._life.announced.is_under_way(name))

    # Loading

    def load(
        self,
        made: Sequence[LoadedModel],
        on_ready: Callable[[LoadedModel, float], None] | None,
        replaced: Callable[[LoadedModel], None],
    ) -> None:
        """Load models side by side and publish them; call `on_ready(model, seconds)` for each.
        Versions that they replace are passed to `replaced`, which must retire them."""
        self.refuse_a_copy()
        _check_names(made)
        started = self._clock()
        with self.locked() as life:
            _check_apart(made, [*life.all_ready(), *life.being_loaded()])
            life.loading(made)
        try:
            awake = [one for one in made if not self._residency.add(one.runner, one.model)]
            for loaded in awake:
                loaded.runner.start()
            for loaded in made:
                if loaded in awake:
                    loaded.runner.wait_ready()
                    self._residency.loaded(loaded.runner)
                loaded.load_seconds = self._clock() - started
                if on_ready is not None:
                    on_ready(loaded, loaded.load_seconds)
            with self.locked() as life:
                published = [(loaded, life.ready(loaded)) for loaded in made]
        except BaseException:
            for loaded in made:
                loaded.runner.close()
                self._residency.remove(loaded.runner)
            with self.locked() as life:
                life.dropped(made)
            raise
        for loaded, old in published:
            loaded.model.serve_through(self._caller)
            if old is not None:
                # Else requests that still reach the old one do not fit the new one.
                if old.signature == loaded.signature:
                    old.runner.successor = loaded.submit
                replaced(old)

    # Unloading

    def take_out(self, name: str, version: str | None = None) -> list[LoadedModel]:
        """Make versions unfindable: the first half of unloading. `retire` must follow."""
        with self.locked() as life:
            return life.take_out(name, version)

    def retire(
        self,
        loaded: LoadedModel,
        drain_timeout: float | None = 30.0,
        at_most: float | None = None,
    ) -> None:
        """Let a version finish its requests, and free it: the second half of unloading. To free it
        takes at most its own `unload_timeout` and `at_most` seconds. `close` ends the wait."""
        loaded.runner.drain(drain_timeout)
        limits = [s for s in (loaded.config.unload_timeout, at_most) if s is not None]
        loaded.runner.close(min(limits, default=None))
        self._residency.remove(loaded.runner)
        if loaded.cache is not None:
            loaded.cache.forget()
        with self.locked() as life:
            life.freed(loaded)
            still_loaded = any(one.model is loaded.model for one in life.all_ready())
        if not still_loaded:
            loaded.model.serve_no_more_through(self._caller)

    def drain(self, timeout: float | None) -> bool:
        """Take no more requests and wait for those that are here. False if time ran out."""
        ends_at = None if timeout is None else self._clock() + timeout
        with self.quietly() as life:
            models = [*life.all_ready(), *life.retiring()]
        drained = True
        for loaded in sorted(models, key=_callers_first):
            left = None if ends_at is None else max(0.0, ends_at - self._clock())
            drained = loaded.runner.drain(left) and drained
        return drained

    def close(self, timeout: float) -> None:
        """Free all models, also those that load or unload, and refuse further loads."""
        with self.locked() as life:
            models = life.close()
        models.sort(key=_callers_first)
        for _, group in itertools.groupby(models, key=_callers_first):
            ending = list(group)  # side by side: each may take its time to unload
            side_by_side(
                lambda loaded: self.retire(loaded, 0.0, timeout), ending, len(ending), "wherry-end"
            )

    # Forks

    def forked(self, parent: int) -> None:
        self._parent = parent
        self._of_the_parent = self._life  # not to be destroyed here
        self._life = Lifecycle()
        self.generation += 1
        self._changed = threading.Condition(
            threading.Lock()
        )  # a thread of the parent may have held it

    @property
    def is_a_copy(self) -> bool:
        return self._parent is not None

    def refuse_a_copy(self) -> None:
        if self._parent is not None:
            raise RuntimeError(
                f"this Runtime belongs to process {self._parent}, which this process was forked"
                " from, and cannot be used here: create a Runtime in the child, or start children"
                " with multiprocessing's 'spawn'"
            )


def _as_text(version: Any) -> str:
    if not isinstance(version, str | int | np.integer) or isinstance(version, bool):
        raise InvalidRequest(
            f"version must be a str or an int, not {type(version).__name__}; pass an input of"
            " that name by position"
        )
    return str(version)


def _callers_first(loaded: LoadedModel) -> tuple[bool, bool]:
    """Sort key of the order in which models end: callers before the models that they call."""
    return (not loaded.is_pipeline, not loaded.calls_others)


def _check_apart(made: Sequence[LoadedModel], others: Sequence[LoadedModel]) -> None:
    """ConfigError if two models would be called at one path, or by one name."""
    owners: dict[tuple[str, str], str] = {("served name", one.name): one.name for one in others}
    owners |= {("served name", one.name): one.name for one in made}
    for one in (*others, *made):
        config = one.config
        taken = [("served name", name) for name in config.served_names]
        for what, value in taken if config.route is None else [*taken, ("route", config.route)]:
            if (owner := owners.setdefault((what, value), one.name)) != one.name:
                raise ConfigError(
                    f"model {one.name!r} has the same {what} {value!r} as model {owner!r}; each"
                    " needs its own"
                )


def _check_names(made: Sequence[LoadedModel]) -> None:
    names = [(one.name, one.version) for one in made]
    for name, version in names:
        if names.count((name, version)) > 1:
            raise ConfigError(
                f"two models are called {name!r} (version {version}); give one another name:"
                " `@wherry.model(name=...)`, or `name = ...` in its class"
            )
