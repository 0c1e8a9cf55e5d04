"""What may stand in a config.pbtxt, and what holds where nothing stands?

Field for field the ModelConfig message of Triton's model_config.proto, as plain values. Sizes,
counts and microseconds are as they are written there; units are converted where a ModelConfig of
our own is made of it, and nowhere else.
"""

from __future__ import annotations

from typing import Literal

import msgspec

DataType = Literal[
    "TYPE_INVALID",
    "TYPE_BOOL",
    "TYPE_UINT8",
    "TYPE_UINT16",
    "TYPE_UINT32",
    "TYPE_UINT64",
    "TYPE_INT8",
    "TYPE_INT16",
    "TYPE_INT32",
    "TYPE_INT64",
    "TYPE_FP16",
    "TYPE_FP32",
    "TYPE_FP64",
    "TYPE_STRING",
    "TYPE_BF16",
]


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A protobuf message: every field has a default."""


# Tensors


class Reshape(Message):
    shape: list[int] = []


class Input(Message):
    name: str = ""
    data_type: DataType = "TYPE_INVALID"
    format: Literal["FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW"] = "FORMAT_NONE"
    dims: list[int] = []
    reshape: Reshape | None = None
    is_shape_tensor: bool = False
    allow_ragged_batch: bool = False
    optional: bool = False
    is_non_linear_format_io: bool = False


class Output(Message):
    name: str = ""
    data_type: DataType = "TYPE_INVALID"
    dims: list[int] = []
    reshape: Reshape | None = None
    label_filename: str = ""
    is_shape_tensor: bool = False
    is_non_linear_format_io: bool = False


BatchInputKind = Literal[
    "BATCH_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    "BATCH_ITEM_SHAPE",
    "BATCH_ITEM_SHAPE_FLATTEN",
]


class BatchInput(Message):
    kind: BatchInputKind = "BATCH_ELEMENT_COUNT"
    target_name: list[str] = []
    data_type: DataType = "TYPE_INVALID"
    source_input: list[str] = []


class BatchOutput(Message):
    target_name: list[str] = []
    kind: Literal["BATCH_SCATTER_WITH_INPUT_SHAPE"] = "BATCH_SCATTER_WITH_INPUT_SHAPE"
    source_input: list[str] = []


# Versions and instances


class Latest(Message):
    num_versions: int = 1


class All(Message):
    pass


class Specific(Message):
    versions: list[int] = []


class VersionPolicy(Message):
    """At most one of them; none means latest 1."""

    latest: Latest | None = None
    all: All | None = None
    specific: Specific | None = None


class Resource(Message):
    name: str = ""
    global_: bool = msgspec.field(default=False, name="global")
    count: int = 1


class RateLimiter(Message):
    resources: list[Resource] = []
    priority: int = 0


class SecondaryDevice(Message):
    kind: Literal["KIND_NVDLA"] = "KIND_NVDLA"
    device_id: int = 0


class InstanceGroup(Message):
    name: str = ""
    kind: Literal["KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"] = "KIND_AUTO"
    count: int = 0
    rate_limiter: RateLimiter | None = None
    gpus: list[int] = []
    secondary_devices: list[SecondaryDevice] = []
    profile: list[str] = []
    passive: bool = False
    host_policy: str = ""


# Scheduling


class QueuePolicy(Message):
    timeout_action: Literal["REJECT", "DELAY"] = "REJECT"
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


class DynamicBatching(Message):
    preferred_batch_size: list[int] = []
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy | None = None
    priority_queue_policy: dict[int, QueuePolicy] = {}


class Direct(Message):
    max_queue_delay_microseconds: int = 0
    minimum_slot_utilization: float = 0.0


class Oldest(Message):
    max_candidate_sequences: int = 0
    preferred_batch_size: list[int] = []
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False


class Control(Message):
    kind: Literal[
        "CONTROL_SEQUENCE_START",
        "CONTROL_SEQUENCE_READY",
        "CONTROL_SEQUENCE_END",
        "CONTROL_SEQUENCE_CORRID",
    ] = "CONTROL_SEQUENCE_START"
    int32_false_true: list[int] = []
    fp32_false_true: list[float] = []
    bool_false_true: list[bool] = []
    data_type: DataType = "TYPE_INVALID"


class ControlInput(Message):
    name: str = ""
    control: list[Control] = []


class InitialState(Message):
    data_type: DataType = "TYPE_INVALID"
    dims: list[int] = []
    zero_data: bool | None = None
    data_file: str | None = None
    name: str = ""


class State(Message):
    input_name: str = ""
    output_name: str = ""
    data_type: DataType = "TYPE_INVALID"
    dims: list[int] = []
    initial_state: list[InitialState] = []
    use_same_buffer_for_input_output: bool = False
    use_growable_memory: bool = False


class SequenceBatching(Message):
    """`direct` or `oldest`; neither means direct."""

    direct: Direct | None = None
    oldest: Oldest | None = None
    max_sequence_idle_microseconds: int = 0
    control_input: list[ControlInput] = []
    state: list[State] = []
    iterative_sequence: bool = False


class EnsembleStep(Message):
    model_name: str = ""
    model_version: int = -1
    input_map: dict[str, str] = {}
    output_map: dict[str, str] = {}
    model_namespace: str = ""


class EnsembleScheduling(Message):
    step: list[EnsembleStep] = []
    max_inflight_requests: int = 0


# Around it


class Parameter(Message):
    string_value: str = ""


class Accelerator(Message):
    name: str = ""
    parameters: dict[str, str] = {}


class ExecutionAccelerators(Message):
    gpu_execution_accelerator: list[Accelerator] = []
    cpu_execution_accelerator: list[Accelerator] = []


class PinnedMemory(Message):
    enable: bool = True


class Graph(Message):
    level: int = 0


class GraphShape(Message):
    dim: list[int] = []


class LowerBound(Message):
    batch_size: int = 0
    input: dict[str, GraphShape] = {}


class GraphSpec(Message):
    batch_size: int = 0
    input: dict[str, GraphShape] = {}
    graph_lower_bound: LowerBound | None = None


class Cuda(Message):
    graphs: bool = False
    busy_wait_events: bool = False
    graph_spec: list[GraphSpec] = []
    output_copy_stream: bool = False


class Optimization(Message):
    graph: Graph | None = None
    priority: Literal["PRIORITY_DEFAULT", "PRIORITY_MAX", "PRIORITY_MIN"] = "PRIORITY_DEFAULT"
    cuda: Cuda | None = None
    execution_accelerators: ExecutionAccelerators | None = None
    input_pinned_memory: PinnedMemory | None = None
    output_pinned_memory: PinnedMemory | None = None
    gather_kernel_buffer_threshold: int = 0
    eager_batching: bool = False


class WarmupInput(Message):
    """Exactly one of the last three."""

    data_type: DataType = "TYPE_INVALID"
    dims: list[int] = []
    zero_data: bool | None = None
    random_data: bool | None = None
    input_data_file: str | None = None


class Warmup(Message):
    name: str = ""
    batch_size: int = 0
    inputs: dict[str, WarmupInput] = {}
    count: int = 0


class Operations(Message):
    op_library_filename: list[str] = []


class TransactionPolicy(Message):
    decoupled: bool = False


class Agent(Message):
    name: str = ""
    parameters: dict[str, str] = {}


class RepositoryAgents(Message):
    agents: list[Agent] = []


class ResponseCache(Message):
    enable: bool = False


class MetricIdentifier(Message):
    family: str = ""


class HistogramOptions(Message):
    buckets: list[float] = []


class MetricControl(Message):
    metric_identifier: MetricIdentifier = msgspec.field(default_factory=MetricIdentifier)
    histogram_options: HistogramOptions | None = None


class ModelMetrics(Message):
    metric_control: list[MetricControl] = []


class TritonConfig(Message):
    """One model's config.pbtxt."""

    name: str = ""
    platform: str = ""
    backend: str = ""
    runtime: str = ""
    version_policy: VersionPolicy | None = None
    max_batch_size: int = 0
    input: list[Input] = []
    output: list[Output] = []
    batch_input: list[BatchInput] = []
    batch_output: list[BatchOutput] = []
    optimization: Optimization | None = None
    dynamic_batching: DynamicBatching | None = None
    sequence_batching: SequenceBatching | None = None
    ensemble_scheduling: EnsembleScheduling | None = None
    instance_group: list[InstanceGroup] = []
    default_model_filename: str = ""
    cc_model_filenames: dict[str, str] = {}
    metric_tags: dict[str, str] = {}
    parameters: dict[str, Parameter] = {}
    model_warmup: list[Warmup] = []
    model_operations: Operations | None = None
    model_transaction_policy: TransactionPolicy | None = None
    model_repository_agents: RepositoryAgents | None = None
    response_cache: ResponseCache | None = None
    model_metrics: ModelMetrics | None = None

    @property
    def decoupled(self) -> bool:
        return self.model_transaction_policy is not None and self.model_transaction_policy.decoupled

    @property
    def is_ensemble(self) -> bool:
        return self.platform == "ensemble" or self.ensemble_scheduling is not None
