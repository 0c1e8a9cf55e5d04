"""Which fields can a config.pbtxt have, and what are their defaults?

Written by `make proto` from model_config.proto: change that file, not this one. Sizes, counts and
microseconds are as Triton has them; mapping.py converts the units.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from wherry.triton.repository.schema import Int32, Int64, TritonMessage, UInt32, UInt64

TritonDataType = Literal[
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

TritonInstanceGroupKind = Literal["KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"]

TritonInstanceGroupSecondaryDeviceSecondaryDeviceKind = Literal["KIND_NVDLA"]

TritonInputFormat = Literal["FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW"]

TritonBatchInputKind = Literal[
    "BATCH_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    "BATCH_ITEM_SHAPE",
    "BATCH_ITEM_SHAPE_FLATTEN",
]

TritonBatchOutputKind = Literal["BATCH_SCATTER_WITH_INPUT_SHAPE"]

TritonOptimizationPolicyModelPriority = Literal["PRIORITY_DEFAULT", "PRIORITY_MAX", "PRIORITY_MIN"]

TritonQueuePolicyTimeoutAction = Literal["REJECT", "DELAY"]

TritonSequenceBatchingControlKind = Literal[
    "CONTROL_SEQUENCE_START",
    "CONTROL_SEQUENCE_READY",
    "CONTROL_SEQUENCE_END",
    "CONTROL_SEQUENCE_CORRID",
]


class TritonRateLimiter(TritonMessage):
    resources: list[TritonRateLimiterResource] = []
    priority: UInt32 = 0


class TritonRateLimiterResource(TritonMessage):
    name: str = ""
    global_: bool = msgspec.field(default=False, name="global")
    count: UInt32 = 1


class TritonInstanceGroup(TritonMessage):
    name: str = ""
    kind: TritonInstanceGroupKind = "KIND_AUTO"
    count: Int32 = 0
    rate_limiter: TritonRateLimiter | None = None
    gpus: list[Int32] = []
    secondary_devices: list[TritonInstanceGroupSecondaryDevice] = []
    profile: list[str] = []
    passive: bool = False
    host_policy: str = ""


class TritonInstanceGroupSecondaryDevice(TritonMessage):
    kind: TritonInstanceGroupSecondaryDeviceSecondaryDeviceKind = "KIND_NVDLA"
    device_id: Int64 = 0


class TritonTensorReshape(TritonMessage):
    shape: list[Int64] = []


class TritonInput(TritonMessage):
    name: str = ""
    data_type: TritonDataType = "TYPE_INVALID"
    format: TritonInputFormat = "FORMAT_NONE"
    dims: list[Int64] = []
    reshape: TritonTensorReshape | None = None
    is_shape_tensor: bool = False
    allow_ragged_batch: bool = False
    optional: bool = False
    is_non_linear_format_io: bool = False


class TritonOutput(TritonMessage):
    name: str = ""
    data_type: TritonDataType = "TYPE_INVALID"
    dims: list[Int64] = []
    reshape: TritonTensorReshape | None = None
    label_filename: str = ""
    is_shape_tensor: bool = False
    is_non_linear_format_io: bool = False


class TritonBatchInput(TritonMessage):
    kind: TritonBatchInputKind = "BATCH_ELEMENT_COUNT"
    target_name: list[str] = []
    data_type: TritonDataType = "TYPE_INVALID"
    source_input: list[str] = []


class TritonBatchOutput(TritonMessage):
    target_name: list[str] = []
    kind: TritonBatchOutputKind = "BATCH_SCATTER_WITH_INPUT_SHAPE"
    source_input: list[str] = []


class TritonVersionPolicy(TritonMessage):
    one_of: ClassVar[tuple[str, ...]] = ("latest", "all", "specific")

    latest: TritonVersionPolicyLatest | None = None
    all: TritonVersionPolicyAll | None = None
    specific: TritonVersionPolicySpecific | None = None


class TritonVersionPolicyLatest(TritonMessage):
    num_versions: UInt32 = 1


class TritonVersionPolicyAll(TritonMessage):
    pass


class TritonVersionPolicySpecific(TritonMessage):
    versions: list[Int64] = []


class TritonOptimizationPolicy(TritonMessage):
    graph: TritonOptimizationPolicyGraph | None = None
    priority: TritonOptimizationPolicyModelPriority = "PRIORITY_DEFAULT"
    cuda: TritonOptimizationPolicyCuda | None = None
    execution_accelerators: TritonOptimizationPolicyExecutionAccelerators | None = None
    input_pinned_memory: TritonOptimizationPolicyPinnedMemoryBuffer | None = None
    output_pinned_memory: TritonOptimizationPolicyPinnedMemoryBuffer | None = None
    gather_kernel_buffer_threshold: UInt32 = 0
    eager_batching: bool = False


class TritonOptimizationPolicyGraph(TritonMessage):
    level: Int32 = 0


class TritonOptimizationPolicyCuda(TritonMessage):
    graphs: bool = False
    busy_wait_events: bool = False
    graph_spec: list[TritonOptimizationPolicyCudaGraphSpec] = []
    output_copy_stream: bool = False


class TritonOptimizationPolicyCudaGraphSpec(TritonMessage):
    batch_size: Int32 = 0
    input: dict[str, TritonOptimizationPolicyCudaGraphSpecShape] = {}
    graph_lower_bound: TritonOptimizationPolicyCudaGraphSpecLowerBound | None = None


class TritonOptimizationPolicyCudaGraphSpecShape(TritonMessage):
    dim: list[Int64] = []


class TritonOptimizationPolicyCudaGraphSpecLowerBound(TritonMessage):
    batch_size: Int32 = 0
    input: dict[str, TritonOptimizationPolicyCudaGraphSpecShape] = {}


class TritonOptimizationPolicyExecutionAccelerators(TritonMessage):
    gpu_execution_accelerator: list[TritonOptimizationPolicyExecutionAcceleratorsAccelerator] = []
    cpu_execution_accelerator: list[TritonOptimizationPolicyExecutionAcceleratorsAccelerator] = []


class TritonOptimizationPolicyExecutionAcceleratorsAccelerator(TritonMessage):
    name: str = ""
    parameters: dict[str, str] = {}


class TritonOptimizationPolicyPinnedMemoryBuffer(TritonMessage):
    enable: bool = True


class TritonQueuePolicy(TritonMessage):
    timeout_action: TritonQueuePolicyTimeoutAction = "REJECT"
    default_timeout_microseconds: UInt64 = 0
    allow_timeout_override: bool = False
    max_queue_size: UInt32 = 0


class TritonDynamicBatching(TritonMessage):
    preferred_batch_size: list[Int32] = []
    max_queue_delay_microseconds: UInt64 = 0
    preserve_ordering: bool = False
    priority_levels: UInt64 = 0
    default_priority_level: UInt64 = 0
    default_queue_policy: TritonQueuePolicy | None = None
    priority_queue_policy: dict[UInt64, TritonQueuePolicy] = {}


class TritonSequenceBatching(TritonMessage):
    one_of: ClassVar[tuple[str, ...]] = ("direct", "oldest")

    direct: TritonSequenceBatchingStrategyDirect | None = None
    oldest: TritonSequenceBatchingStrategyOldest | None = None
    max_sequence_idle_microseconds: UInt64 = 0
    control_input: list[TritonSequenceBatchingControlInput] = []
    state: list[TritonSequenceBatchingState] = []
    iterative_sequence: bool = False


class TritonSequenceBatchingControl(TritonMessage):
    kind: TritonSequenceBatchingControlKind = "CONTROL_SEQUENCE_START"
    int32_false_true: list[Int32] = []
    fp32_false_true: list[float] = []
    bool_false_true: list[bool] = []
    data_type: TritonDataType = "TYPE_INVALID"


class TritonSequenceBatchingControlInput(TritonMessage):
    name: str = ""
    control: list[TritonSequenceBatchingControl] = []


class TritonSequenceBatchingInitialState(TritonMessage):
    one_of: ClassVar[tuple[str, ...]] = ("zero_data", "data_file")

    data_type: TritonDataType = "TYPE_INVALID"
    dims: list[Int64] = []
    zero_data: bool | None = None
    data_file: str | None = None
    name: str = ""


class TritonSequenceBatchingState(TritonMessage):
    input_name: str = ""
    output_name: str = ""
    data_type: TritonDataType = "TYPE_INVALID"
    dims: list[Int64] = []
    initial_state: list[TritonSequenceBatchingInitialState] = []
    use_same_buffer_for_input_output: bool = False
    use_growable_memory: bool = False


class TritonSequenceBatchingStrategyDirect(TritonMessage):
    max_queue_delay_microseconds: UInt64 = 0
    minimum_slot_utilization: float = 0.0


class TritonSequenceBatchingStrategyOldest(TritonMessage):
    max_candidate_sequences: Int32 = 0
    preferred_batch_size: list[Int32] = []
    max_queue_delay_microseconds: UInt64 = 0
    preserve_ordering: bool = False


class TritonEnsembling(TritonMessage):
    step: list[TritonEnsemblingStep] = []
    max_inflight_requests: UInt32 = 0


class TritonEnsemblingStep(TritonMessage):
    model_name: str = ""
    model_version: Int64 = -1
    input_map: dict[str, str] = {}
    output_map: dict[str, str] = {}
    model_namespace: str = ""


class TritonParameter(TritonMessage):
    string_value: str = ""


class TritonWarmup(TritonMessage):
    name: str = ""
    batch_size: UInt32 = 0
    inputs: dict[str, TritonWarmupInput] = {}
    count: UInt32 = 0


class TritonWarmupInput(TritonMessage):
    one_of: ClassVar[tuple[str, ...]] = ("zero_data", "random_data", "input_data_file")

    data_type: TritonDataType = "TYPE_INVALID"
    dims: list[Int64] = []
    zero_data: bool | None = None
    random_data: bool | None = None
    input_data_file: str | None = None


class TritonOperations(TritonMessage):
    op_library_filename: list[str] = []


class TritonTransactionPolicy(TritonMessage):
    decoupled: bool = False


class TritonRepositoryAgents(TritonMessage):
    agents: list[TritonRepositoryAgentsAgent] = []


class TritonRepositoryAgentsAgent(TritonMessage):
    name: str = ""
    parameters: dict[str, str] = {}


class TritonResponseCache(TritonMessage):
    enable: bool = False


class TritonMetrics(TritonMessage):
    metric_control: list[TritonMetricsMetricControl] = []


class TritonMetricsMetricControl(TritonMessage):
    metric_identifier: TritonMetricsMetricControlMetricIdentifier | None = None
    histogram_options: TritonMetricsMetricControlHistogramOptions | None = None


class TritonMetricsMetricControlMetricIdentifier(TritonMessage):
    family: str = ""


class TritonMetricsMetricControlHistogramOptions(TritonMessage):
    buckets: list[float] = []


class TritonConfig(TritonMessage):
    one_of: ClassVar[tuple[str, ...]] = (
        "dynamic_batching",
        "sequence_batching",
        "ensemble_scheduling",
    )

    name: str = ""
    platform: str = ""
    backend: str = ""
    runtime: str = ""
    version_policy: TritonVersionPolicy | None = None
    max_batch_size: Int32 = 0
    input: list[TritonInput] = []
    output: list[TritonOutput] = []
    batch_input: list[TritonBatchInput] = []
    batch_output: list[TritonBatchOutput] = []
    optimization: TritonOptimizationPolicy | None = None
    dynamic_batching: TritonDynamicBatching | None = None
    sequence_batching: TritonSequenceBatching | None = None
    ensemble_scheduling: TritonEnsembling | None = None
    instance_group: list[TritonInstanceGroup] = []
    default_model_filename: str = ""
    cc_model_filenames: dict[str, str] = {}
    metric_tags: dict[str, str] = {}
    parameters: dict[str, TritonParameter] = {}
    model_warmup: list[TritonWarmup] = []
    model_operations: TritonOperations | None = None
    model_transaction_policy: TritonTransactionPolicy | None = None
    model_repository_agents: TritonRepositoryAgents | None = None
    response_cache: TritonResponseCache | None = None
    model_metrics: TritonMetrics | None = None
