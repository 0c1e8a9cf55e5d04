"""How does a caller's input become a request to one loaded version, and an output its result?"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np

from wherry.core.instances.runner import Runner
from wherry.core.instances.sequence_inputs import SequenceInputs
from wherry.core.instances.split import split
from wherry.core.models.config import ModelConfig, SequenceBatching
from wherry.core.models.defaults import filled
from wherry.core.models.model import Model
from wherry.core.models.row_types import from_fields, restorer
from wherry.core.models.rows import columns_of_row, columns_of_rows
from wherry.core.models.signature import Signature
from wherry.core.observability.statistics import ModelStatistics
from wherry.core.pipelines.pipeline import PipelineRunner
from wherry.core.runtime.cache import ModelCache
from wherry.core.runtime.row_sizes import RowSize, ShapeKeys
from wherry.core.values.datatypes import Form, TensorSpec
from wherry.core.values.errors import (
    Cancelled,
    InvalidRequest,
    ModelFailed,
    TooManyBytes,
    Unsupported,
    WherryError,
)
from wherry.core.values.media_codec import is_converted, to_caller
from wherry.core.values.reply import Reply, StreamReply
from wherry.core.values.request import (
    Budget,
    Columns,
    InferRequest,
    InferResponse,
    Reservation,
    SequenceStep,
    bytes_of,
    check_timeout,
)
from wherry.core.values.tensors import as_declared, is_tensor, own
from wherry.core.workers.encoding import UNSENDABLE, copied, why_not_sent


class LoadedModel:
    """One version of a model with its runner, from the begin of its load until it is freed."""

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        signature: Signature,
        runner: Runner,
        clock: Callable[[], float],
        sequence_inputs: SequenceInputs | None = None,
        cache: ModelCache | None = None,
        size: RowSize | None = None,
        *,
        is_here: bool = True,
    ) -> None:
        """`is_here`: its code runs in this process."""
        self.model = model
        self.sequence_inputs = sequence_inputs
        self.cache = cache
        self.config = config
        self.signature = signature
        self.runner = runner
        #: When its load began (seconds of the clock).
        self.made_at = clock()
        #: Seconds from the begin of its load until it was ready.
        self.load_seconds = 0.0
        #: Bytes of the inputs of its requests, if max_queue_bytes bounds them.
        self._held = None if config.max_queue_bytes is None else Budget(config.max_queue_bytes)
        self._holding = threading.Lock()
        #: A request with more is split.
        self._most_rows = sys.maxsize if runner.takes_any_rows else config.max_batch_size or 1
        self._clock = clock
        self._size = size
        keys = ShapeKeys(signature, model.variable_strings, batched=config.max_batch_size > 0)
        #: None: all requests go together.
        self._shape_key = keys.of if keys.differ else None
        self.runs_in_caller = (
            not signature.is_async
            and not signature.streams
            and config.execution_timeout is None
            and config.request_timeout is None
            and config.sequence is None
            and not config.preserve_ordering
            and cache is None
        )
        #: Whether rows hold images, audio or files, which callers take time to encode and decode.
        self.has_media = any(spec.media for spec in (*signature.inputs, *signature.outputs))
        #: Columns of rows of a caller in this program.
        self.inputs = InputRows(signature, config, is_here=is_here)
        self.row_columns = self.inputs.of
        self._tensors = [spec for spec in signature.outputs if spec.library]
        #: One row of outputs as a caller in this program has it.
        self.row = OutputRow(signature, batched=config.max_batch_size > 0).of

    @property
    def name(self) -> str:
        return self.config.name

    def reported_name(self) -> str:
        """What an answer calls it if its request did not: the first of its served names."""
        return next(iter(self.config.served_names), self.name)

    @property
    def version(self) -> str:
        return self.config.version

    @property
    def statistics(self) -> ModelStatistics:
        return self.runner.statistics.fold()

    @property
    def is_pipeline(self) -> bool:
        return isinstance(self.runner, PipelineRunner)

    @property
    def calls_others(self) -> bool:
        """Whether it needs other models, which must end after it."""
        return self.is_pipeline or self.model.calls_others

    def request(
        self,
        columns: Columns,
        rows: int,
        reply: Reply[InferResponse],
        id: str = "",
        timeout: float | None = None,
        priority: int = 0,
        parameters: Mapping[str, Any] | None = None,
        sequence: SequenceStep | None = None,
        requested_outputs: Sequence[str] | None = None,
        tenant: str = "",
        takes_tensors: bool = False,
    ) -> InferRequest:
        """Make a request of checked columns. `timeout` is in seconds from now; `priority` 0 is the
        default. Raises InvalidRequest or Unsupported."""
        if self.signature.streams or isinstance(reply, StreamReply):
            self._check_streams(reply, rows)
        config = self.config
        if config.sequence is not None:
            self._check_step(config.sequence, sequence, rows)
        priority = self._checked_priority(priority) if priority else config.default_priority
        if timeout is None:
            timeout = config.request_timeout
        else:
            check_timeout(timeout)
        if self.inputs.filled:
            columns = filled(columns, self.inputs.filled, rows)
        now = self._clock()
        wait, limit = None, timeout
        if config.queue_policies:
            wait, limit = self._wait_and_timeout(priority, timeout)
        request = InferRequest(
            columns,
            rows,
            reply,
            id,
            priority,
            None if limit is None else now + limit,
            None if self._shape_key is None else self._shape_key(columns),
            parameters,
            sequence,
            requested_outputs,
            tenant,
            timeout,
            now,  # until it is queued: it may be cancelled before
        )
        if takes_tensors:
            request.takes_tensors = True
        if wait is not None:
            request.wait_until = now + wait
        if self._size is not None:
            request.cost = self.size_of(columns, rows)
        return request

    def _check_streams(self, reply: Reply[InferResponse], rows: int) -> None:
        """Check that request and model both stream, or both do not, and set the reply's bounds."""
        if not isinstance(reply, StreamReply):
            raise Unsupported(f"model {self.name!r} streams its responses: use stream")
        if not self.signature.streams:
            raise Unsupported(f"model {self.name!r} does not stream: use infer")
        reply.limit = self.config.max_unread_responses
        reply.window = min(reply.window, reply.limit)
        reply.measure = _response_bytes
        if rows > max(1, self.config.max_batch_size):
            raise InvalidRequest(
                f"model {self.name!r}: a streaming request has at most"
                f" {self.config.max_batch_size} rows, not {rows}"
            )

    def _checked_priority(self, priority: Any) -> int:
        """The priority that a request gets; InvalidRequest if the model has no such level."""
        config = self.config
        if not config.priority_levels:
            return config.default_priority
        if not isinstance(priority, int | np.integer) or not 0 < priority <= config.priority_levels:
            raise InvalidRequest(
                f"model {self.name!r}: priority {priority!r} is not between 1 (first) and"
                f" {config.priority_levels}, or 0 (default)",
                field="priority",
            )
        return int(priority)

    def _wait_and_timeout(
        self, level: int, timeout: float | None
    ) -> tuple[float | None, float | None]:
        """Seconds that a request may wait for an instance, and in which it must be answered."""
        policy = self.config.queue_policy(level)
        if policy is None:
            return None, timeout
        if not policy.allow_timeout_override:
            return policy.timeout, None
        if not policy.triton:
            return policy.timeout, timeout
        # In Triton a timeout bounds only the wait, and can only shorten the one that is set.
        if policy.timeout is None or not timeout:
            return policy.timeout, None
        return min(policy.timeout, timeout), None

    def _check_step(self, batching: SequenceBatching, step: SequenceStep | None, rows: int) -> None:
        if (step is None or not step.id) and not batching.iterative:
            raise InvalidRequest(
                f"inference request to model {self.name!r} must specify a non-zero or non-empty"
                " correlation ID"
            )
        if rows > 1:
            raise InvalidRequest(
                f"inference request to model {self.name!r} must specify batch-size 1 due to"
                " requirements of sequence batcher"
            )
        if step is not None and self.sequence_inputs is not None:
            self.sequence_inputs.refuse(step)

    def as_declared(self, response: InferResponse) -> InferResponse:
        """The response for a pipeline's code: what is annotated as a tensor is one, also of a
        worker."""
        outputs = response.outputs
        for spec in self._tensors:
            if spec.name in outputs:
                outputs[spec.name] = as_declared(outputs[spec.name], spec)
        return response

    def submit(self, requests: Sequence[InferRequest], *, looked_up: bool = False) -> None:
        """Queue requests. Never blocks; any thread. A refused one is settled with the error.

        `looked_up`: the cache has no answer to any of them."""
        if self.cache is not None and not looked_up:
            missed = partial(self.submit, looked_up=True)
            self.cache.answer(requests, missed, self.runner.statistics, self._clock)
            return
        if self._held is not None:
            requests = [r for r in requests if self._has_room(self._held, r)]
        for request in requests:
            if request.rows > self._most_rows:
                requests = self._in_parts(requests)
                break
        self.runner.submit(requests)

    def _in_parts(self, requests: Sequence[InferRequest]) -> list[InferRequest]:
        return [
            part
            for request in requests
            if not request.reply.settled
            for part in (
                (request,)
                if request.rows <= self._most_rows
                else split(request, self._most_rows, self.runner.cancel, self._count)
            )
        ]

    def _has_room(self, held: Budget, request: InferRequest) -> bool:
        """Take the request's bytes from the model's budget; if they do not fit, settle it with
        TooManyBytes and return False."""
        if request.follows:
            return True  # a pipeline's call: its pipeline was admitted
        count = bytes_of(request.inputs) if request.nbytes is None else request.nbytes
        with self._holding:
            if held.take(count):
                request.reservations = (*request.reservations, Reservation(held, count))
                return True
        if request.reply.claim():
            error = TooManyBytes(
                f"model {self.name!r}", "its max_queue_bytes", held.held, held.limit, count
            )
            self.runner.statistics.failed(error, 0.0)
            request.reply.deliver(error)
        return False

    def cancel(self, request: InferRequest) -> bool:
        """Settle a request with Cancelled, and its parts. False if it was settled already."""
        if not request.parts:
            return self.runner.cancel(request)
        cancelled = request.reply.claim()
        if cancelled:
            outcome = Cancelled("the request was cancelled")
            self._count(request, outcome)
            request.reply.deliver(outcome)
        for part in list(request.parts):
            self.runner.cancel(part)
        return cancelled

    def _count(self, request: InferRequest, outcome: InferResponse | Exception) -> None:
        """Count a request that was split as one, at its end."""
        error = None
        if isinstance(outcome, Exception):
            error = outcome if isinstance(outcome, WherryError) else ModelFailed(str(outcome))
        self.runner.statistics.joined(request, error, self._clock())

    def not_ready_reason(self) -> str:
        return self.runner.not_ready_reason()

    def is_row(self, row: Any) -> bool:
        """Whether this is a dict of inputs, and not the value of the only input."""
        names = {spec.name for spec in self.signature.inputs}
        return isinstance(row, Mapping) and set(row) <= names

    def size_of(self, columns: Columns, rows: int) -> float:
        """The size of the largest of these rows, as a request's `cost`. Raises ModelFailed."""
        if self._size is None:
            return 1.0
        try:
            return self._size(columns, rows)
        except Exception as error:  # the user's code: anything may come
            text = f"model {self.name!r}: cost() failed: {type(error).__name__}: {error}"
            self.runner.failures.log(text, "".join(traceback.format_exception(error)))
            raise ModelFailed(text) from error


class InputRows:
    """Makes columns of one model's inputs. `is_here`: its code runs in this process, and could
    change objects of its caller; a worker gets copies anyway. InvalidRequest."""

    def __init__(self, signature: Signature, config: ModelConfig, *, is_here: bool) -> None:
        self._signature, self._config = signature, config
        #: Inputs that a request has by their defaults if it leaves them out, so that all that go
        #: into a batch have the same. Code that takes one row has them from Python.
        self.filled = [
            spec for spec in signature.inputs if spec.default is not None and not signature.row_wise
        ]
        json = [spec.name for spec in signature.inputs if spec.form is Form.JSON]
        #: Inputs of which `of` makes copies, and of which it does not.
        self._objects, self._others = (json, []) if is_here else ([], json)

    def of(self, args: tuple[Any, ...], inputs: dict[str, Any]) -> Columns:
        """One row from a caller's arguments."""
        if args:
            specs = self._signature.inputs
            if len(args) > len(specs):
                raise InvalidRequest(
                    f"model {self._config.name!r} has {len(specs)} inputs, not {len(args)}"
                )
            inputs = {
                **{spec.name: arg for spec, arg in zip(specs, args, strict=False)},
                **inputs,
            }
        columns = columns_of_row(self._signature, self._config, inputs)
        for name in self._objects:
            self._copy(columns, name)
        return columns

    def kept(self, args: tuple[Any, ...], inputs: dict[str, Any]) -> Columns:
        """The same of a caller that may change its row before the code runs."""
        columns = self.of(args, inputs)
        for name, column in columns.items():
            if isinstance(column, np.ndarray):
                columns[name] = column.copy()
            elif not isinstance(column, list):
                columns[name] = own(column, lent=False)
            elif is_tensor(column[0]):
                columns[name] = [own(column[0], lent=False)]
            elif isinstance(column[0], np.ndarray):
                columns[name] = [column[0].copy()]
        for name in self._others:
            self._copy(columns, name)
        return columns

    def of_columns(self, columns: Mapping[str, Any]) -> tuple[Columns, int]:
        checked, rows = columns_of_rows(self._signature, self._config, columns)
        for name in self._objects:
            self._copy(checked, name)
        return checked, rows

    def _copy(self, columns: Columns, name: str) -> None:
        """Make rows of any objects what a worker would get."""
        if name in columns:
            try:
                columns[name] = copied(columns[name])
            except UNSENDABLE as error:
                reason = why_not_sent(columns[name]) or str(error)
                raise InvalidRequest(
                    f"model {self._config.name!r}: input {name!r}: {reason}", field=name
                ) from error


class OutputRow:
    """Makes what a caller in this program has of one row of outputs: what the code returns for
    it."""

    def __init__(self, signature: Signature, *, batched: bool) -> None:
        self._made = [(spec.name, _maker(spec)) for spec in signature.outputs]
        self._only = self._made[0] if signature.returns == "single" else None
        #: Of several outputs. None: a dict.
        self._class = signature.returned
        if batched and not signature.row_wise and self._class is not tuple:
            self._class = None  # it holds columns

    def of(self, outputs: Columns) -> Any:
        """The only output, or the object or dict of several; a model.py may leave some out."""
        if self._only is not None:
            name, made = self._only
            value = outputs[name][0]
            return value if made is None or value is None else made(value)
        row = {name: outputs[name][0] for name, _ in self._made if name in outputs}
        for name, made in self._made:
            if made is not None and row.get(name) is not None:
                row[name] = made(row[name])
        if self._class is tuple:
            return tuple(row.values())
        return row if self._class is None else from_fields(self._class, row)


def _response_bytes(response: InferResponse) -> int:
    return bytes_of(response.outputs)


def values_of(loaded: LoadedModel, outputs: Columns) -> Columns:
    """Columns of outputs with images, audio, files and objects as the caller has them."""
    for spec in loaded.signature.outputs:
        made = None if spec.form is Form.SCALARS else _maker(spec)
        if made is not None and spec.name in outputs:
            column = outputs[spec.name]
            outputs[spec.name] = [None if value is None else made(value) for value in column]
    return outputs


def _maker(spec: TensorSpec) -> Callable[[Any], Any] | None:
    """What makes the caller's value of an output's row; None: the row is it."""
    media = spec.media
    if media is not None and is_converted(media):
        return lambda value: (
            [to_caller(one, media) for one in value]
            if isinstance(value, list)
            else to_caller(value, media)
        )
    if spec.json_type is not None:
        kind: Any = spec.json_type
        return restorer(list[kind] if spec.shape else kind)
    return methodcaller("item") if spec.form is Form.SCALARS else None
