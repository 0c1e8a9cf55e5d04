"""Which JSON do the routes answer with that are about the server and its models?"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

DatatypeName = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BF16", "BYTES",
]  # fmt: skip
State = Literal["READY", "LOADING", "UNLOADING", "UNAVAILABLE"]


class ExactAnswer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An answer with exactly these members."""


class Error(ExactAnswer):
    """What went wrong, and what to do about it."""

    error: str


class NotReady(msgspec.Struct, kw_only=True):
    """Why the server is not ready."""

    error: str
    draining: bool = False
    #: The reason for each model that is not ready.
    models: dict[str, str] = {}


class ServerLive(ExactAnswer):
    """The server lives. Only for clients that say by Accept that they take JSON."""

    live: bool


class ServerReady(ExactAnswer):
    """The server is ready. Only for clients that say by Accept that they take JSON."""

    ready: bool


class ModelReady(ExactAnswer):
    """The model is ready. Only for clients that say by Accept that they take JSON."""

    name: str
    ready: bool


class ServerMetadata(ExactAnswer):
    """The server's name, its version, and the extensions of the V2 protocol that it has."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(ExactAnswer):
    """An input or output; -1 in its shape is any size, the first one counts rows."""

    name: str
    datatype: DatatypeName
    shape: list[int]


class ModelMetadata(ExactAnswer):
    """A model's versions, inputs and outputs."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ListedTensor(msgspec.Struct, kw_only=True):
    """An input or output, and its form in the model's code."""

    name: str
    datatype: DatatypeName
    shape: list[int]
    form: str
    optional: bool = False


class ListedModel(msgspec.Struct, kw_only=True):
    """A model and its state. Of one that is not loaded little is known."""

    name: str
    version: str
    state: State
    reason: str
    inputs: list[ListedTensor]
    outputs: list[ListedTensor]
    examples: list[dict[str, Any]]
    description: str = ""
    max_batch_size: int = 0
    streams: bool = False


class ModelList(msgspec.Struct, kw_only=True):
    """Every model, by name."""

    models: list[ListedModel]


class CountedTime(ExactAnswer):
    """How often, and how long in all, in nanoseconds."""

    count: int
    ns: int


class BatchPhases(msgspec.Struct, kw_only=True):
    """The phases of a batch."""

    compute_input: CountedTime
    compute_infer: CountedTime
    compute_output: CountedTime


class InferStatistics(BatchPhases):
    """Requests from arrival to answer, in the queue, and in the phases of their batches."""

    success: CountedTime
    fail: CountedTime
    queue: CountedTime
    cache_hit: CountedTime
    cache_miss: CountedTime


class BatchStatistics(BatchPhases):
    """Batches of one size."""

    batch_size: int


class PlaceStatistics(ExactAnswer):
    """Responses that came at one place of their streams, and streams that ended there."""

    compute_infer: CountedTime
    compute_output: CountedTime
    success: CountedTime
    fail: CountedTime
    empty_response: CountedTime
    cancel: CountedTime


class MemoryUsage(ExactAnswer):
    """Memory of a model's worker processes."""

    type: str
    id: int
    byte_size: int


class VersionStatistics(ExactAnswer):
    """What was counted of one version since its load."""

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferStatistics
    response_stats: dict[str, PlaceStatistics]
    batch_stats: list[BatchStatistics]
    memory_usage: list[MemoryUsage]


class AllStatistics(ExactAnswer):
    """The statistics of each version that was asked for."""

    model_stats: list[VersionStatistics]


class Batching(msgspec.Struct, kw_only=True):
    """What the batcher believes and has decided; which members there are depends on the policy."""

    name: str
    version: str
    max_batch_size: int
    queued_requests: int


class IndexRequest(msgspec.Struct, kw_only=True):
    """Which models are to be listed: those that are ready only, or all."""

    ready: bool = False


class IndexRow(ExactAnswer):
    """A model of the repositories; what is not known is left out."""

    name: str
    version: str = ""
    state: State | None = None
    reason: str = ""


class RegionStatus(ExactAnswer):
    """A registered region of shared memory."""

    name: str
    key: str
    offset: int
    byte_size: int


class LogValues(ExactAnswer):
    """The settings of the server's log."""

    log_file: str
    log_info: bool
    log_warning: bool
    log_error: bool
    log_verbose_level: int
    log_format: str


class TraceValues(ExactAnswer):
    """The settings of the server's, or of one model's traces; numbers as text, as in Triton."""

    trace_level: list[Literal["OFF", "TIMESTAMPS", "TENSORS"]]
    trace_rate: str
    trace_count: str
    log_frequency: str
    trace_file: str
    trace_mode: str
