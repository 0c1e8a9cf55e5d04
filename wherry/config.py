"""How is a model to be run: what can be set, what are the defaults, and what is refused?

The same fields may be class attributes or decorator arguments, a table in wherry.toml, or
overrides of `Runtime.load`; times are seconds.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec

from wherry.errors import ConfigError


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """`count` copies of a model on one device ("auto", "cpu", "cuda", "cuda:1")."""

    count: int = 1
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"instances: count must be at least 1, not {self.count}")
        if not re.fullmatch(r"auto|cpu|cuda|cuda:\d+", self.device):
            raise ConfigError(f"device {self.device!r}: expected 'auto', 'cpu', 'cuda' or 'cuda:N'")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything that can be set for one model."""

    name: str
    version: str = "1"
    description: str = ""

    #: Most rows in one call of the model; 0: the model takes its inputs without a batch dimension.
    max_batch_size: int = 1
    #: Seconds that a batch which is not full may wait for company; 0: never wait; None: the
    #: batcher finds out by itself whether, how long and for how many waiting pays.
    max_queue_delay: float | None = None
    #: Leave as soon as one of these sizes is reached, else after `max_queue_delay`.
    preferred_batch_sizes: tuple[int, ...] = ()
    #: Requests that may wait; one more is refused (429). None: no bound.
    max_queue_size: int | None = 1024
    #: Default timeout of a request, seconds; None: none.
    request_timeout: float | None = None
    #: Priorities are 1 (first) to `priority_levels`; 0 in a request means the default level.
    priority_levels: int = 10
    default_priority: int = 5

    instances: tuple[InstanceGroup, ...] = (InstanceGroup(),)
    #: "thread", "process", or "auto": thread in-process, process when served.
    isolation: str = "auto"
    #: A batch that runs longer (seconds) fails and its worker is replaced; None: no limit.
    execution_timeout: float | None = None
    #: A model whose every instance has been in one batch for longer (seconds) is not ready.
    stall_timeout: float = 30.0
    #: When a batch raises, run its halves, so that a bad row fails alone.
    isolate_errors: bool = True
    #: A local call that finds an idle thread instance may run in the caller's own thread.
    run_in_caller: bool = True
    #: Crashes within `crash_window` seconds after which an instance is given up.
    crash_budget: int = 5
    crash_window: float = 60.0
    #: A streaming request that nobody reads is failed at so many unread responses.
    max_unread_responses: int = 4096

    #: Rows that every instance runs before it is ready; `examples` are used if there are none.
    warmup: tuple[Mapping[str, Any], ...] = ()
    #: Rows shown in the metadata, on the start page and run by `wherry check`.
    examples: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*", self.name):
            raise ConfigError(
                f"model name {self.name!r}: use letters, digits, '_', '-' and '.' only"
            )
        if not re.fullmatch(r"[1-9][0-9]*", self.version):
            self._fail("version", "must be a whole number from 1 up, as a string")
        for field in ("max_batch_size", "max_queue_delay", "crash_budget"):
            value = getattr(self, field)
            if value is not None and not value >= 0:  # nan too
                self._fail(field, "must not be negative")
        for field in ("request_timeout", "execution_timeout", "stall_timeout", "crash_window"):
            value = getattr(self, field)
            if value is not None and not value > 0:
                self._fail(field, "must be more than 0 seconds")
        if self.max_queue_size is not None and self.max_queue_size < 1:
            self._fail("max_queue_size", "must be at least 1, or None for no bound")
        if self.max_unread_responses < 1:
            self._fail("max_unread_responses", "must be at least 1")
        if self.isolation not in ("auto", "thread", "process"):
            self._fail("isolation", "must be 'auto', 'thread' or 'process'")
        if not self.instances:
            self._fail("instances", "must name at least one instance")
        if not 1 <= self.default_priority <= self.priority_levels:
            self._fail("default_priority", "must be between 1 and priority_levels")
        for size in self.preferred_batch_sizes:
            if not 1 <= size <= self.max_batch_size:
                self._fail(
                    "preferred_batch_sizes",
                    f"must lie between 1 and max_batch_size ({self.max_batch_size})",
                )

        for field in ("warmup", "examples"):
            if not all(isinstance(row, Mapping) for row in getattr(self, field)):
                self._fail(field, "must be a list of rows, each a dict of the inputs by name")

    def _fail(self, field: str, problem: str) -> None:
        value = getattr(self, field)
        raise ConfigError(f"model {self.name!r}: {field} {problem}; it is {value!r}")


FIELDS = {field.name: field for field in fields(ModelConfig)}
GROUP_FIELDS = {field.name: field for field in fields(InstanceGroup)}


def model_config(name: str, settings: Mapping[str, Any]) -> ModelConfig:
    """Build a configuration from loosely typed settings; unknown or mistyped ones are errors.

    `instances` may be a number or a list of groups, `device` a shorthand for one group's device.
    """
    settings = {"name": name, **settings}
    device = settings.pop("device", None)
    _refuse_unknown(settings, [*FIELDS, "device"], f"model {name!r}: unknown setting")
    settings["instances"] = _groups(name, settings.get("instances", 1), device)
    if isinstance(settings.get("version"), int):
        settings["version"] = str(settings["version"])
    # Samples hold arrays and other values of the user's own: they are kept as they are.
    warmup, examples = (_samples(settings.pop(field, ())) for field in ("warmup", "examples"))
    try:
        return replace(msgspec.convert(settings, ModelConfig), warmup=warmup, examples=examples)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        # "Expected `int`, got `str` - at `$.max_batch_size`", as all other messages say it.
        problem, _, field = str(error).replace("`", "").partition(" - at $.")
        raise ConfigError(f"model {name!r}: {field}: {problem[0].lower()}{problem[1:]}") from None


def _groups(name: str, instances: Any, device: Any) -> list[Any]:
    """Instance groups as msgspec reads them, from a number, a group or several."""
    if isinstance(instances, int) and not isinstance(instances, bool):
        instances = [{"count": instances}]
    elif isinstance(instances, InstanceGroup | Mapping):
        instances = [instances]
    if not isinstance(instances, list | tuple):
        raise ConfigError(
            f"model {name!r}: instances must be a number, or a list of"
            f" {{'count': ..., 'device': ...}}; it is {instances!r}"
        )
    groups: list[Any] = []
    for group in instances:
        if isinstance(group, InstanceGroup):
            group = {"count": group.count, "device": device or group.device}
        elif isinstance(group, Mapping):
            _refuse_unknown(group, GROUP_FIELDS, f"model {name!r}: instances: unknown setting")
            if device is not None:
                group = {"device": device, **group}
        groups.append(group)
    return groups


def _samples(rows: Any) -> tuple[Any, ...]:
    # What is no list of rows becomes one bad row, which ModelConfig refuses with its reason.
    return (rows,) if isinstance(rows, str) or not isinstance(rows, Iterable) else tuple(rows)


def _refuse_unknown(settings: Iterable[str], known: Iterable[str], what: str) -> None:
    for key in settings:
        if key not in known:
            close = difflib.get_close_matches(key, list(known), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"{what} {key!r}{hint}")
