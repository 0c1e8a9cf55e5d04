"""Which settings may a program pass for a model, and of which types?

Type checkers and editors read this; `ModelConfig` has their meaning and checks their values.
A test holds both equal: what a program passes may be looser (a list for a tuple, a dict for an
InstanceGroup), and nothing here is read when a model is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypedDict

from wherry.core.models.config import (
    InstanceGroup,
    QueuePolicy,
    SequenceBatching,
)

#: One group, several, or the number of instances.
Instances = int | InstanceGroup | Mapping[str, Any] | Sequence[InstanceGroup | Mapping[str, Any]]
Rows = Sequence[Mapping[str, Any]]
Isolation = Literal["auto", "thread", "process", "shared"]


class ModelSettings(TypedDict, total=False):
    """The settings of a model, for type checkers.

        overrides: dict[str, wherry.ModelSettings] = {"sentiment": {"max_queue_size": 10}}

    ModelConfig explains each.
    """

    name: str
    version: str | int
    description: str
    route: str | None
    served_names: Sequence[str]
    max_batch_size: int
    max_queue_delay: float | None
    preferred_batch_sizes: Sequence[int]
    wait_when_mixed: bool
    share_batches: bool
    max_queue_size: int | None
    max_queue_wait: float | None
    max_queue_bytes: int | None
    request_timeout: float | None
    preserve_ordering: bool
    queue_policies: Sequence[QueuePolicy | Mapping[str, Any]]
    response_cache: bool
    priority_levels: int
    default_priority: int
    instances: Instances
    device: str
    resident: Literal["always", "when asked"] | None
    offload: bool
    memory: int | str | None
    resources: Mapping[str, int] | None
    resource_priority: int
    isolation: Isolation
    execution_timeout: float | None
    stall_timeout: float
    unload_timeout: float | None
    isolate_errors: bool
    run_again: bool
    run_in_caller: bool
    crash_budget: int
    crash_window: float
    max_restart_delay: float
    sequence: SequenceBatching | Mapping[str, Any] | None
    max_unread_responses: int
    warmup: Rows
    examples: Rows


class FunctionSettings(ModelSettings, total=False):
    """What `wherry.model` and `wherry.pipeline` take: settings, and how rows are measured."""

    cost: Callable[..., float] | int | None


class SettingAttributes:
    """The settings as attributes of a class `Model`, but for `name`, `version` and `device`, of
    which models have their own. Mutable ones are class variables, as linters have them written."""

    description: str
    route: str | None
    served_names: ClassVar[Sequence[str]]
    max_batch_size: int
    max_queue_delay: float | None
    preferred_batch_sizes: ClassVar[Sequence[int]]
    wait_when_mixed: bool
    share_batches: bool
    max_queue_size: int | None
    max_queue_wait: float | None
    max_queue_bytes: int | None
    request_timeout: float | None
    preserve_ordering: bool
    queue_policies: ClassVar[Sequence[QueuePolicy | Mapping[str, Any]]]
    response_cache: bool
    priority_levels: int
    default_priority: int
    instances: ClassVar[Instances]
    resident: str | None
    offload: bool
    memory: int | str | None
    resources: ClassVar[Mapping[str, int] | None]
    resource_priority: int
    isolation: str
    execution_timeout: float | None
    stall_timeout: float
    unload_timeout: float | None
    isolate_errors: bool
    run_again: bool
    run_in_caller: bool
    crash_budget: int
    crash_window: float
    max_restart_delay: float
    sequence: ClassVar[SequenceBatching | Mapping[str, Any] | None]
    max_unread_responses: int
    warmup: ClassVar[Rows]
    examples: ClassVar[Rows]
