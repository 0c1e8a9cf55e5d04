"""How is a model run: which settings exist, what are their defaults, and which values are refused?

The same fields may be class attributes, decorator arguments, a table in wherry.toml, or overrides
of `Runtime.load`. Times are seconds.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

import msgspec

from wherry.core.values.errors import ConfigError


def wrong_name(name: str) -> str | None:
    """What is wrong with the name of a model; None if nothing is."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*", name):
        return None
    return f"model name {name!r}: use letters, digits, '_', '-' and '.' only"


#: First segments of the server's own paths, and of some that it may get. Those of OpenAI's and
#: others' protocols are not among them: a model's own route comes before theirs.
RESERVED_PATHS: Final = frozenset(
    (
        "",
        "admin",
        "dashboard",
        "debug",
        "docs",
        "favicon.ico",
        "health",
        "healthz",
        "livez",
        "load",
        "metrics",
        "openapi.json",
        "ping",
        "readyz",
        "redoc",
        "robots.txt",
        "v2",
        "version",
    )
)
_PATH: Final = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~!$&'()*+,;=:@-]{1,100}){1,16}")


def wrong_route(route: str) -> str | None:
    if _PATH.fullmatch(route) is None:
        return (
            f'must be a path such as "/predict", of letters, digits and -._~!$&\'()*+,;=:@ between'
            f" slashes and without one at its end, not {route!r}"
        )
    first = route.split("/")[1]
    if first.lower() in RESERVED_PATHS or first.startswith("_"):
        return f"{route!r} begins as paths of the server itself do (/{first}); choose another"
    return None


#: Names of the hub, and what else clients send: gpt-4o, claude-sonnet-4@20250514, llama3:8b.
_SERVED_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+/\-]{0,255}")


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """`count` copies of a model on one device.

    For example:

        @wherry.model(instances=[wherry.InstanceGroup(2, "cpu")])
        def twice(x: int) -> int:
            return 2 * x
    """

    #: 1 to 1000.
    count: int = 1
    #: "cpu", "cuda:1", "cuda" (each GPU has `count`), or "auto": a GPU if there is one that the
    #: model may use (`load` takes a device, or torch, CuPy or the like is imported), and each GPU
    #: if its load or warm-up has taken memory of the first.
    device: str = "auto"

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 1000:  # more would start threads or processes without end
            raise ConfigError(f"instances: count must be 1 to 1000, not {self.count}")
        if not re.fullmatch(r"auto|cpu|cuda|cuda:\d+", self.device):
            raise ConfigError(f"device {self.device!r}: expected 'auto', 'cpu', 'cuda' or 'cuda:N'")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """Limits on the number and the waiting time of queued requests of one priority level.

    For example:

        @wherry.model(queue_policies=[wherry.QueuePolicy(level=2, timeout=0.5, max_queue_size=100)])
        def patient(x: int) -> int:
            return x
    """

    #: The priority level; 0: all levels without a policy of their own.
    level: int = 0
    #: Seconds that a request may wait for an instance; None: no limit.
    timeout: float | None = None
    #: What happens then: "reject", or "delay": it moves behind all others of its level.
    timeout_action: str = "reject"
    #: Whether a request's own timeout may shorten it; if not, that is ignored.
    allow_timeout_override: bool = True
    #: Requests that may wait; None: only the model's limit.
    max_queue_size: int | None = None
    #: Triton's behaviour: a request's own timeout limits only its wait, and refusals have status
    #: 503 and Triton's message.
    triton: bool = False

    def __post_init__(self) -> None:
        if self.level < 0:
            raise ConfigError("queue_policies: level must not be negative")
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigError("queue_policies: timeout must be more than 0 seconds, or None")
        if self.timeout_action not in ("reject", "delay"):
            raise ConfigError(
                f"queue_policies: timeout_action {self.timeout_action!r}: expected 'reject' or"
                " 'delay'"
            )
        if self.max_queue_size is not None and self.max_queue_size < 1:
            raise ConfigError("queue_policies: max_queue_size must be at least 1, or None")


#: Kinds of sequence control inputs.
CONTROLS = ("start", "end", "ready", "id")


@dataclass(frozen=True, slots=True)
class SequenceControl:
    """An input filled by the server with a row's position in its sequence.

    For example:

        wherry.SequenceControl("start", input="is_first").name  # -> 'is_first'
    """

    #: "start", "end" and "ready" are flags, "id" is the sequence's id.
    kind: str
    #: The input's name; "": the kind.
    input: str = ""
    #: The value of a flag that is not set.
    false: float = 0
    #: The value of a flag that is set.
    true: float = 1
    #: The datatype ("FP32") of an input that the model's signature does not have.
    datatype: str = ""

    def __post_init__(self) -> None:
        if self.kind not in CONTROLS:
            raise ConfigError(f"control {self.kind!r}: expected one of {', '.join(CONTROLS)}")

    @property
    def name(self) -> str:
        """The input's name."""
        return self.input or self.kind


@dataclass(frozen=True, slots=True)
class SequenceState:
    """A tensor kept by the server between the steps of a sequence: the model's `output` becomes its
    `input` in the next step. Callers see neither.

        wherry.SequenceState("total", "total_after", datatype="INT64")
    """

    #: The input that has it, and the output that sets it.
    input: str
    #: The output whose value is the next step's.
    output: str
    #: The datatype of a row.
    datatype: str = "FP32"
    #: The shape of a row; () is a number.
    shape: tuple[int, ...] = ()
    #: The value at the sequence's start, one row in little-endian; None: zeros.
    initial: bytes | None = None
    #: Whether callers get the output as well.
    returned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBatching:
    """Run requests with the same sequence id in order, on one instance.

    For example:

        class Total(wherry.Model):
            sequence = wherry.SequenceBatching(
                max_sequence_idle=60.0,
                states=(wherry.SequenceState("total", "total_after", datatype="INT64"),),
            )

            def execute(
                self, x: list[int], total: list[int]
            ) -> tuple[list[int], list[int]]: ...
    """

    #: "direct": a sequence owns a row of the batch; "oldest": more sequences than rows.
    strategy: str = "direct"
    #: Seconds without a request after which a sequence ends.
    max_sequence_idle: float = 1.0
    #: Open sequences of each instance ("oldest"); further ones wait. 0: max_batch_size.
    max_candidate_sequences: int = 0
    #: Share of occupied rows from which a batch does not wait for `max_queue_delay` ("direct").
    minimum_slot_utilization: float = 0.0
    #: The model runs each request again until it is done.
    iterative: bool = False
    #: The inputs that the server fills.
    controls: tuple[SequenceControl, ...] = ()
    #: The tensors that the server keeps between steps.
    states: tuple[SequenceState, ...] = ()

    def __post_init__(self) -> None:
        if self.strategy not in ("direct", "oldest"):
            raise ConfigError(
                f"sequence: strategy {self.strategy!r}: expected 'direct' or 'oldest'"
            )
        if not self.max_sequence_idle > 0:
            raise ConfigError("sequence: max_sequence_idle must be more than 0 seconds")
        if self.max_candidate_sequences < 0:
            raise ConfigError("sequence: max_candidate_sequences must not be negative")
        if not 0 <= self.minimum_slot_utilization <= 1:
            raise ConfigError("sequence: minimum_slot_utilization must lie between 0 and 1")

    @property
    def hidden_inputs(self) -> set[str]:
        """Inputs that callers do not send."""
        return {one.name for one in self.controls} | {state.input for state in self.states}

    @property
    def hidden_outputs(self) -> set[str]:
        """Outputs that callers do not receive."""
        return {state.output for state in self.states if not state.returned}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """All settings of one model.

    For example:

        sentiment.config().max_batch_size  # -> 32
        sentiment.config(max_queue_size=10).max_queue_size  # -> 10
    """

    #: What clients call it; default: the function's name, or the class's in lower case.
    name: str
    #: A whole number from 1 up.
    version: str = "1"
    #: For the metadata and the start page.
    description: str = ""
    #: A path at which the model is called in its own types: "/predict". None: it has none.
    route: str | None = None
    #: Names for OpenAI's and Anthropic's clients, which list them in place of `name`:
    #: "organisation/model".
    served_names: tuple[str, ...] = ()

    #: Maximum rows in one call of the model; 0: its inputs have no batch dimension.
    max_batch_size: int = 1
    #: Seconds that a partial batch may wait for more requests; 0: never; None: learnt.
    max_queue_delay: float | None = None
    #: A batch starts once it has one of these sizes, or the next request would exceed the largest;
    #: at the latest after `max_queue_delay`.
    preferred_batch_sizes: tuple[int, ...] = ()
    #: False: a waiting batch starts when a request arrives that cannot join it (another shape,
    #: other optional inputs), as in Triton.
    wait_when_mixed: bool = True
    #: False: each request is its own batch.
    share_batches: bool = True
    #: Maximum waiting requests; more are refused (429). None: no limit.
    max_queue_size: int | None = 1024
    #: Seconds that a request without a timeout may be predicted to wait; if longer (and longer than
    #: 8 batches) it is refused (429), even while it waits. 0 or None: no limit.
    max_queue_wait: float | None = 30.0
    #: Maximum bytes of inputs of waiting and running requests; more are refused (503). None: only
    #: the server's limit.
    max_queue_bytes: int | None = None
    #: Default timeout of a request in seconds; None: none.
    request_timeout: float | None = None
    #: Send answers in the order of their requests' arrival.
    preserve_ordering: bool = False
    #: Limits of waiting requests by priority level.
    queue_policies: tuple[QueuePolicy, ...] = ()
    #: Answer repeated requests from the server's response cache, if it has one.
    response_cache: bool = False
    #: Priorities are 1 (highest) to `priority_levels`; 0 in a request is the default level. With 0
    #: levels priorities are ignored.
    priority_levels: int = 10
    #: The level of requests without one.
    default_priority: int = 5

    #: Number of instances and their devices.
    instances: tuple[InstanceGroup, ...] = (InstanceGroup(),)
    #: "always": stays loaded; "when asked": is loaded by a request, and sleeps when another model
    #: needs the room. None: by request if the device has a budget (`--device-memory`), else always.
    resident: Literal["always", "when asked"] | None = None
    #: Keep the weights in host memory while it sleeps, and wake by a copy (`to_host`).
    offload: bool = False
    #: Bytes of device memory of one instance with its largest batch, in a file also as 2GiB. None:
    #: measured.
    memory: int | None = None
    #: Amounts of shared resources that a batch needs, by name; None: none.
    resources: Mapping[str, int] | None = None
    #: Weight in sharing resources: with 2 its requests count as waiting half as long as with 1.
    resource_priority: int = 1
    #: "thread", "process", "shared" (one process per device for all such models), or "auto": thread
    #: in-process, process when served.
    isolation: str = "auto"
    #: Seconds after which a running batch fails and its worker is replaced; None: no limit.
    execution_timeout: float | None = None
    #: Seconds in the same batch after which a model is not ready, if that is so of all instances.
    stall_timeout: float = 30.0
    #: Seconds for unload() (a model.py's finalize()) until its worker is killed; less if the server
    #: stops earlier. None: no limit.
    unload_timeout: float | None = 30.0
    #: After a failed batch run its halves, so that only bad rows fail.
    isolate_errors: bool = True
    #: False, for a model with side effects: no request runs twice. A failed batch is not split; if
    #: a worker dies, its requests fail with MayHaveRun.
    run_again: bool = True
    #: A local call may run in the caller's thread if a thread instance is idle.
    run_in_caller: bool = True
    #: Crashes within `crash_window` after which an instance is out of service. It is retried at
    #: growing intervals, up to `max_restart_delay`.
    crash_budget: int = 5
    #: Seconds; see `crash_budget`.
    crash_window: float = 60.0
    #: Seconds; see `crash_budget`.
    max_restart_delay: float = 30.0
    #: The model's requests are steps of sequences.
    sequence: SequenceBatching | None = None
    #: Unread responses at which a streaming request fails.
    max_unread_responses: int = 4096

    #: Rows that every instance runs before it is ready; empty: `examples`.
    warmup: tuple[Mapping[str, Any], ...] = ()
    #: Rows shown in the metadata and on the start page, and run by `wherry check`.
    examples: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if wrong := wrong_name(self.name):
            raise ConfigError(wrong)
        if not re.fullmatch(r"[1-9][0-9]*", self.version):
            self._fail("version", "must be a whole number from 1 up, as a string")
        if self.route is not None and (problem := wrong_route(self.route)):
            self._fail("route", problem)
        if not all(_SERVED_NAME.fullmatch(name) for name in self.served_names):
            self._fail("served_names", "must have letters, digits and -_.:@+/ only, at most 256")
        for field in ("max_batch_size", "max_queue_delay", "max_queue_wait", "crash_budget"):
            value = getattr(self, field)
            if value is not None and not value >= 0:  # also refuses nan
                self._fail(field, "must not be negative")
        times = ("request_timeout", "execution_timeout", "stall_timeout", "unload_timeout")
        for field in ("crash_window", "max_restart_delay", *times):
            value = getattr(self, field)
            if value is not None and not value > 0:
                self._fail(field, "must be more than 0 seconds")
        for field in ("max_queue_size", "max_queue_bytes", "memory"):
            if (value := getattr(self, field)) is not None and value < 1:
                self._fail(field, "must be at least 1, or None")
        for field in ("max_unread_responses", "resource_priority"):
            if getattr(self, field) < 1:
                self._fail(field, "must be at least 1")
        if any(count < 1 for count in (self.resources or {}).values()):
            self._fail("resources", "must be whole numbers from 1 up, by name")
        if self.isolation not in ("auto", "thread", "process", "shared"):
            self._fail("isolation", "must be 'auto', 'thread', 'process' or 'shared'")
        if not self.instances:
            self._fail("instances", "must name at least one instance")
        if self.priority_levels and not 1 <= self.default_priority <= self.priority_levels:
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

    def queue_policy(self, level: int) -> QueuePolicy | None:
        """Return the policy of a priority level, if it has one."""
        policies = {policy.level: policy for policy in self.queue_policies}
        return policies.get(level) or policies.get(0)

    def _fail(self, field: str, problem: str) -> None:
        value = getattr(self, field)
        raise ConfigError(f"model {self.name!r}: {field} {problem}; it is {value!r}")


FIELDS = {field.name: field for field in fields(ModelConfig)}
GROUP_FIELDS = {field.name: field for field in fields(InstanceGroup)}
POLICY_FIELDS = {field.name: field for field in fields(QueuePolicy)}
SEQUENCE_FIELDS = {field.name: field for field in fields(SequenceBatching)}


def model_config(name: str, settings: Mapping[str, Any]) -> ModelConfig:
    """Build a configuration from loosely typed settings. ConfigError for unknown and mistyped ones.

    `instances` may be a number or a list of groups; `device` is the device of the only group.
    """
    settings = {"name": name, **settings}
    device = settings.pop("device", None)
    _refuse_unknown(settings, [*FIELDS, "device"], f"model {name!r}: unknown setting")
    settings["instances"] = _groups(name, settings.get("instances", 1), device)
    if isinstance(memory := settings.get("memory"), str):
        try:
            settings["memory"] = size_of(memory)
        except ValueError:
            raise ConfigError(
                f"model {name!r}: memory: {memory!r} is not a size; write bytes, or for example"
                " 2GiB"
            ) from None
    if isinstance(settings.get("version"), int):
        settings["version"] = str(settings["version"])
    # Samples may hold arrays and other values, which msgspec must not convert.
    warmup, examples = (_samples(settings.pop(field, ())) for field in ("warmup", "examples"))
    if isinstance(served := settings.get("served_names"), str):
        settings["served_names"] = served.split(",")
    if isinstance(policies := settings.get("queue_policies"), list | tuple):
        where = f"model {name!r}: queue_policies: unknown setting"
        for policy in policies:
            _refuse_unknown(policy if isinstance(policy, Mapping) else (), POLICY_FIELDS, where)
    if isinstance(sequence := settings.get("sequence"), Mapping):
        _refuse_unknown(sequence, SEQUENCE_FIELDS, f"model {name!r}: sequence: unknown setting")
        if isinstance(controls := sequence.get("controls"), list | tuple):
            kinds = [{"kind": one} if isinstance(one, str) else one for one in controls]
            settings["sequence"] = {**sequence, "controls": kinds}
    try:
        config = msgspec.convert(settings, ModelConfig, from_attributes=True)
        return replace(config, warmup=warmup, examples=examples)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        problem, _, field = str(error).replace("`", "").partition(" - at $.")
        raise ConfigError(f"model {name!r}: {field}: {problem[0].lower()}{problem[1:]}") from None


_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def size_of(text: str) -> int:
    """64MiB, 64M or 67108864: the number of bytes (K, M, G are powers of 1024 as in MiB; MB is a
    power of 1000). ValueError if it is neither."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    number, unit, binary = match.groups()
    step = 1000 if unit and not binary and text.strip().lower().endswith("b") else 1024
    return int(float(number) * step ** " kmgt".index(unit.lower() or " "))


def _groups(name: str, instances: Any, device: Any) -> list[Any]:
    """Instance groups as msgspec reads them, from a number, a group or a list."""
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
    # Anything but a list of rows becomes one invalid row, which ModelConfig refuses with a reason.
    return (rows,) if isinstance(rows, str) or not isinstance(rows, Iterable) else tuple(rows)


def _refuse_unknown(settings: Iterable[str], known: Iterable[str], what: str) -> None:
    for key in settings:
        if key not in known:
            close = difflib.get_close_matches(key, list(known), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"{what} {key!r}{hint}")
