"""What may the other parts use of core?

A name is loaded at its first use, so that a process pays only for what it uses.
"""

from typing import TYPE_CHECKING

from wherry.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from wherry.core.client import Client as Client
    from wherry.core.client.connections import KeptConnections as KeptConnections
    from wherry.core.client.connections import advice as advice
    from wherry.core.client.wire import ModelDescription as ModelDescription
    from wherry.core.client.wire import Tensor as Tensor
    from wherry.core.client.wire import by_place as by_place
    from wherry.core.client.wire import describe as describe
    from wherry.core.client.wire import infer_body as infer_body
    from wherry.core.instances.device_errors import broken_by as broken_by
    from wherry.core.instances.device_errors import out_of_memory as out_of_memory
    from wherry.core.instances.devices import cpu_instead as cpu_instead
    from wherry.core.instances.devices import for_torch as for_torch
    from wherry.core.instances.devices import gpu_count as gpu_count
    from wherry.core.instances.devices import or_on_cpu as or_on_cpu
    from wherry.core.instances.devices import try_gpus as try_gpus
    from wherry.core.instances.instance import Answers as Answers
    from wherry.core.instances.instance import Instance as Instance
    from wherry.core.instances.instance import Loadable as Loadable
    from wherry.core.instances.instance_slots import shortage as shortage
    from wherry.core.instances.linked_worker import LinkedWorker as LinkedWorker
    from wherry.core.instances.process import are_large as are_large
    from wherry.core.instances.runner import Refused as Refused
    from wherry.core.instances.runner import Runner as Runner
    from wherry.core.instances.runner import admitted as admitted
    from wherry.core.instances.sequence_inputs import WARM_UP as WARM_UP
    from wherry.core.instances.sequence_inputs import SequenceInputs as SequenceInputs
    from wherry.core.instances.source import import_file as import_file
    from wherry.core.instances.source import refuse_while_importing as refuse_while_importing
    from wherry.core.instances.stream_run import StreamRun as StreamRun
    from wherry.core.models.config import FIELDS as FIELDS
    from wherry.core.models.config import InstanceGroup as InstanceGroup
    from wherry.core.models.config import ModelConfig as ModelConfig
    from wherry.core.models.config import QueuePolicy as QueuePolicy
    from wherry.core.models.config import SequenceBatching as SequenceBatching
    from wherry.core.models.config import SequenceControl as SequenceControl
    from wherry.core.models.config import SequenceState as SequenceState
    from wherry.core.models.config import model_config as model_config
    from wherry.core.models.config import size_of as size_of
    from wherry.core.models.config import wrong_name as wrong_name
    from wherry.core.models.host_weights import move_weights as move_weights
    from wherry.core.models.model import Device as Device
    from wherry.core.models.model import FunctionModel as FunctionModel
    from wherry.core.models.model import Model as Model
    from wherry.core.models.model import ModelOfModels as ModelOfModels
    from wherry.core.models.model import Pipeline as Pipeline
    from wherry.core.models.row_types import plain as plain
    from wherry.core.models.rows import as_array as as_array
    from wherry.core.models.settings import Isolation as Isolation
    from wherry.core.models.settings import ModelSettings as ModelSettings
    from wherry.core.models.signature import Signature as Signature
    from wherry.core.models.step_model import Step as Step
    from wherry.core.models.step_model import StepModel as StepModel
    from wherry.core.observability import numbers as numbers
    from wherry.core.observability.custom_metrics import CustomMetrics as CustomMetrics
    from wherry.core.observability.custom_metrics import Kind as Kind
    from wherry.core.observability.fronts import BUCKETS as BUCKETS
    from wherry.core.observability.fronts import AllLoops as AllLoops
    from wherry.core.observability.fronts import FrontFigures as FrontFigures
    from wherry.core.observability.fronts import FrontsSource as FrontsSource
    from wherry.core.observability.fronts import LoopStall as LoopStall
    from wherry.core.observability.fronts import ProcessFigures as ProcessFigures
    from wherry.core.observability.fronts import of_all_loops as of_all_loops
    from wherry.core.observability.fronts import process_figures as process_figures
    from wherry.core.observability.load_meter import FRESH as FRESH
    from wherry.core.observability.load_meter import LoadReport as LoadReport
    from wherry.core.observability.logging import HumanFormatter as HumanFormatter
    from wherry.core.observability.logging import JsonFormatter as JsonFormatter
    from wherry.core.observability.logging import configure as configure
    from wherry.core.observability.logging import formatter_of as formatter_of
    from wherry.core.observability.logging import log_internal_error as log_internal_error
    from wherry.core.observability.logging import one_line as one_line
    from wherry.core.observability.logging import severities as severities
    from wherry.core.observability.machine import Machine as Machine
    from wherry.core.observability.machine import Use as Use
    from wherry.core.observability.machine import cache_folder as cache_folder
    from wherry.core.observability.metrics import Metrics as Metrics
    from wherry.core.observability.metrics import MetricsConfig as MetricsConfig
    from wherry.core.observability.otel.context import SpanKind as SpanKind
    from wherry.core.observability.otel.following import begun as begun
    from wherry.core.observability.otel.following import trace_below as trace_below
    from wherry.core.observability.otel.following import trace_request as trace_request
    from wherry.core.observability.otel.providers import tracing_of as tracing_of
    from wherry.core.observability.otel.tracing import RequestTrace as RequestTrace
    from wherry.core.observability.otel.tracing import Tracing as Tracing
    from wherry.core.observability.records import Records as Records
    from wherry.core.observability.statistics import SECONDS_BUCKETS as SECONDS_BUCKETS
    from wherry.core.observability.statistics import Compute as Compute
    from wherry.core.observability.statistics import Duration as Duration
    from wherry.core.observability.statistics import Histogram as Histogram
    from wherry.core.observability.statistics import ModelStatistics as ModelStatistics
    from wherry.core.observability.tracing import Trace as Trace
    from wherry.core.pipelines.pipeline import gather as gather
    from wherry.core.pipelines.pipeline import stop as stop
    from wherry.core.runtime.lifecycle import ANY as ANY
    from wherry.core.runtime.lifecycle import Status as Status
    from wherry.core.runtime.loaded_model import LoadedModel as LoadedModel
    from wherry.core.runtime.loop_port import LoopPort as LoopPort
    from wherry.core.runtime.registry import Registry as Registry
    from wherry.core.runtime.runtime import Runtime as Runtime
    from wherry.core.runtime.shared_cache import CACHES as CACHES
    from wherry.core.runtime.threads import ThreadGroup as ThreadGroup
    from wherry.core.runtime.threads import ThreadPool as ThreadPool
    from wherry.core.runtime.threads import in_thread as in_thread
    from wherry.core.runtime.threads import side_by_side as side_by_side
    from wherry.core.scheduler.decisions import Decision as Decision
    from wherry.core.scheduler.instance_table import BatchRun as BatchRun
    from wherry.core.scheduler.overload import late as late
    from wherry.core.values import errors as errors
    from wherry.core.values import quantities as quantities
    from wherry.core.values.datatypes import BF16 as BF16
    from wherry.core.values.datatypes import BOOL as BOOL
    from wherry.core.values.datatypes import BYTES as BYTES
    from wherry.core.values.datatypes import DATATYPES as DATATYPES
    from wherry.core.values.datatypes import FP16 as FP16
    from wherry.core.values.datatypes import FP32 as FP32
    from wherry.core.values.datatypes import UINT64 as UINT64
    from wherry.core.values.datatypes import Buffer as Buffer
    from wherry.core.values.datatypes import Datatype as Datatype
    from wherry.core.values.datatypes import Form as Form
    from wherry.core.values.datatypes import TensorSpec as TensorSpec
    from wherry.core.values.datatypes import bf16_to_float32 as bf16_to_float32
    from wherry.core.values.datatypes import float32_to_bf16 as float32_to_bf16
    from wherry.core.values.errors import AccessDenied as AccessDenied
    from wherry.core.values.errors import AdapterNotFound as AdapterNotFound
    from wherry.core.values.errors import AlreadyRegistered as AlreadyRegistered
    from wherry.core.values.errors import BadModelOutput as BadModelOutput
    from wherry.core.values.errors import Cancelled as Cancelled
    from wherry.core.values.errors import ConfigError as ConfigError
    from wherry.core.values.errors import DeadlineExceeded as DeadlineExceeded
    from wherry.core.values.errors import InvalidRequest as InvalidRequest
    from wherry.core.values.errors import LoadFailed as LoadFailed
    from wherry.core.values.errors import MayHaveRun as MayHaveRun
    from wherry.core.values.errors import ModelFailed as ModelFailed
    from wherry.core.values.errors import ModelNotFound as ModelNotFound
    from wherry.core.values.errors import ModelNotReady as ModelNotReady
    from wherry.core.values.errors import NotAcceptable as NotAcceptable
    from wherry.core.values.errors import Overloaded as Overloaded
    from wherry.core.values.errors import PromptTooLong as PromptTooLong
    from wherry.core.values.errors import RegionNotFound as RegionNotFound
    from wherry.core.values.errors import RequestTimeoutExpired as RequestTimeoutExpired
    from wherry.core.values.errors import RequestTooLarge as RequestTooLarge
    from wherry.core.values.errors import ServerBusy as ServerBusy
    from wherry.core.values.errors import Tag as Tag
    from wherry.core.values.errors import TooManyBytes as TooManyBytes
    from wherry.core.values.errors import Unsupported as Unsupported
    from wherry.core.values.errors import UnsupportedMediaType as UnsupportedMediaType
    from wherry.core.values.errors import WherryError as WherryError
    from wherry.core.values.errors import WorkerDied as WorkerDied
    from wherry.core.values.execution import RESCHEDULED as RESCHEDULED
    from wherry.core.values.execution import Execution as Execution
    from wherry.core.values.execution import Failure as Failure
    from wherry.core.values.execution import Outcome as Outcome
    from wherry.core.values.load import Load as Load
    from wherry.core.values.media import Audio as Audio
    from wherry.core.values.media import AudioSpec as AudioSpec
    from wherry.core.values.media import File as File
    from wherry.core.values.media import FileBytes as FileBytes
    from wherry.core.values.media import FileSpec as FileSpec
    from wherry.core.values.media import ImageSpec as ImageSpec
    from wherry.core.values.media import MediaSpec as MediaSpec
    from wherry.core.values.media import media_type_of as media_type_of
    from wherry.core.values.plugins import Plugins as Plugins
    from wherry.core.values.quantities import duration as duration
    from wherry.core.values.quantities import number as number
    from wherry.core.values.quantities import rows as rows
    from wherry.core.values.reply import Reply as Reply
    from wherry.core.values.reply import StreamReply as StreamReply
    from wherry.core.values.reply import notify as notify
    from wherry.core.values.request import Array as Array
    from wherry.core.values.request import Batch as Batch
    from wherry.core.values.request import Budget as Budget
    from wherry.core.values.request import Column as Column
    from wherry.core.values.request import Columns as Columns
    from wherry.core.values.request import InferRequest as InferRequest
    from wherry.core.values.request import InferResponse as InferResponse
    from wherry.core.values.request import Reservation as Reservation
    from wherry.core.values.request import SequenceStep as SequenceStep
    from wherry.core.values.request import ShapedRow as ShapedRow
    from wherry.core.values.request import ShapedRows as ShapedRows
    from wherry.core.values.request import bytes_of as bytes_of
    from wherry.core.values.request import concatenate as concatenate
    from wherry.core.values.request import parted as parted
    from wherry.core.values.request import rows_of as rows_of
    from wherry.core.values.request import shared as shared
    from wherry.core.values.request import value_bytes as value_bytes
    from wherry.core.values.tensors import for_code as for_code
    from wherry.core.values.tensors import is_tensor as is_tensor
    from wherry.core.values.tensors import view as view
    from wherry.core.workers.encoding import Garbage as Garbage
    from wherry.core.workers.link import LARGE_BYTES as LARGE_BYTES
    from wherry.core.workers.link import Messages as Messages
    from wherry.core.workers.link import WorkerLink as WorkerLink
    from wherry.core.workers.loop import LoopCalls as LoopCalls
    from wherry.core.workers.loop import new_event_loop as new_event_loop
    from wherry.core.workers.message_socket import FrameSocket as FrameSocket
    from wherry.core.workers.message_socket import MessageSocket as MessageSocket
    from wherry.core.workers.process import end_descendants as end_descendants
    from wherry.core.workers.process import start_worker as start_worker
    from wherry.core.workers.python_path import for_children as for_children
    from wherry.core.workers.python_path import import_from as import_from
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "client": "Client",
            "client.connections": "KeptConnections advice",
            "client.wire": "ModelDescription Tensor by_place describe infer_body",
            "instances.device_errors": "broken_by out_of_memory",
            "instances.devices": ("cpu_instead for_torch gpu_count or_on_cpu try_gpus"),
            "instances.instance": "Answers Instance Loadable",
            "instances.instance_slots": "shortage",
            "instances.linked_worker": "LinkedWorker",
            "instances.process": "are_large",
            "instances.runner": "Refused Runner admitted",
            "instances.sequence_inputs": "SequenceInputs WARM_UP",
            "instances.source": "import_file refuse_while_importing",
            "instances.stream_run": "StreamRun",
            "models.config": (
                "FIELDS InstanceGroup ModelConfig QueuePolicy SequenceBatching SequenceControl "
                "SequenceState model_config size_of wrong_name"
            ),
            "models.model": "Device FunctionModel Model ModelOfModels Pipeline",
            "models.row_types": "plain",
            "models.rows": "as_array",
            "models.signature": "Signature",
            "models.settings": "Isolation ModelSettings",
            "models.step_model": "Step StepModel",
            "observability.custom_metrics": "CustomMetrics Kind",
            "observability.fronts": (
                "AllLoops BUCKETS FrontFigures FrontsSource LoopStall ProcessFigures of_all_loops "
                "process_figures"
            ),
            "observability.logging": (
                "HumanFormatter JsonFormatter configure formatter_of log_internal_error one_line "
                "severities"
            ),
            "models.host_weights": "move_weights",
            "observability.machine": "Machine Use cache_folder",
            "observability.metrics": "Metrics MetricsConfig",
            "observability": "numbers",
            "observability.load_meter": "FRESH LoadReport",
            "observability.otel.context": "SpanKind",
            "observability.otel.following": "begun trace_below trace_request",
            "observability.otel.providers": "tracing_of",
            "observability.otel.tracing": "RequestTrace Tracing",
            "observability.records": "Records",
            "observability.statistics": (
                "Compute Duration Histogram ModelStatistics SECONDS_BUCKETS"
            ),
            "observability.tracing": "Trace",
            "pipelines.pipeline": "gather stop",
            "runtime.lifecycle": "ANY Status",
            "runtime.loaded_model": "LoadedModel",
            "runtime.loop_port": "LoopPort",
            "runtime.registry": "Registry",
            "runtime.runtime": "Runtime",
            "runtime.shared_cache": "CACHES",
            "runtime.threads": "ThreadGroup ThreadPool in_thread side_by_side",
            "scheduler.decisions": "Decision",
            "scheduler.instance_table": "BatchRun",
            "scheduler.overload": "late",
            "values": "errors quantities",
            "values.datatypes": (
                "BF16 BOOL BYTES Buffer DATATYPES Datatype FP16 FP32 Form TensorSpec UINT64 "
                "bf16_to_float32 float32_to_bf16"
            ),
            "values.errors": (
                "AccessDenied AdapterNotFound AlreadyRegistered BadModelOutput Cancelled "
                "ConfigError DeadlineExceeded InvalidRequest LoadFailed MayHaveRun ModelFailed "
                "ModelNotFound ModelNotReady NotAcceptable Overloaded PromptTooLong "
                "RegionNotFound RequestTimeoutExpired RequestTooLarge ServerBusy Tag TooManyBytes "
                "Unsupported UnsupportedMediaType WherryError WorkerDied"
            ),
            "values.execution": "Execution Failure Outcome RESCHEDULED",
            "values.load": "Load",
            "values.media": (
                "Audio AudioSpec File FileBytes FileSpec ImageSpec MediaSpec media_type_of"
            ),
            "values.plugins": "Plugins",
            "values.quantities": "duration number rows",
            "values.reply": "Reply StreamReply notify",
            "values.request": (
                "Array Batch Budget Column Columns InferRequest InferResponse Reservation "
                "SequenceStep ShapedRow ShapedRows bytes_of concatenate parted rows_of shared "
                "value_bytes"
            ),
            "values.tensors": "for_code is_tensor view",
            "workers.encoding": "Garbage",
            "workers.link": "LARGE_BYTES Messages WorkerLink",
            "workers.loop": "LoopCalls new_event_loop",
            "workers.message_socket": "FrameSocket MessageSocket",
            "workers.process": "end_descendants start_worker",
            "workers.python_path": "for_children import_from",
        },
    )
