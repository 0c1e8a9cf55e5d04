"""What passes through the core: a request, its response, and the batch they run in?

A column holds all rows of one tensor: a list (text, bytes, JSON, arrays of different shapes) or one
array with the rows first. Row i of every output belongs to row i of every input.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from wherry.core.values.errors import InvalidRequest
from wherry.core.values.reply import Reply, StreamReply
from wherry.core.values.tensors import is_tensor, joined


class Reservation:
    """Bytes taken from a budget that are returned when this object is freed, in any thread.

    For memory that changes owners: it is counted as long as it exists.
    """

    __slots__ = ("_budget", "count")

    def __init__(self, budget: Budget, count: int) -> None:
        self._budget = budget
        self.count = count

    def __del__(self) -> None:
        self._budget.return_later(self.count)


class Budget:
    """Counts held bytes against a limit.

    For one thread (an event loop) or under one lock; only `return_later` is safe from any thread.
    Bytes taken here count in `within` too.
    """

    __slots__ = ("_returned", "limit", "refused", "taken", "within")

    def __init__(self, limit: int, *, within: Budget | None = None) -> None:
        self.limit = limit
        self.within = within
        #: Bytes held, including those returned by `return_later` but not subtracted yet.
        self.taken = 0
        self.refused = 0
        self._returned: deque[int] = deque()

    def __repr__(self) -> str:
        return f"<Budget: {self.held} of {self.limit} bytes held, {self.refused} refused>"

    @property
    def held(self) -> int:
        return self.taken - sum(list(self._returned))

    def take(self, count: int) -> bool:
        """Hold `count` more bytes. False, without a change, if that exceeds the limit."""
        if self._returned:
            self._count_returned()
        if self.taken + count > self.limit or (
            self.within is not None and not self.within.take(count)
        ):
            self.refused += 1
            return False
        self.taken += count
        return True

    def give_back(self, count: int) -> None:
        self.taken -= count
        if self.within is not None:
            self.within.give_back(count)

    def return_later(self, count: int) -> None:
        """Release `count` bytes from any thread; counted at the next `take`."""
        self._returned.append(count)

    def _count_returned(self) -> None:
        while self._returned:
            self.give_back(self._returned.popleft())


Array = npt.NDArray[Any]
Column = list[Any] | Array
Columns = dict[str, Column]


class ShapedRows(list[Any]):
    """Rows of strings whose tensor's shape is not [rows, elements of a row]."""

    def __init__(self, rows: Sequence[Any], shape: Sequence[int]) -> None:
        super().__init__(rows)
        self.shape = tuple(shape)


class ShapedRow(list[Any]):
    """One row of strings, flat, with a shape that its length does not determine."""

    def __init__(self, elements: Sequence[Any], shape: Sequence[int]) -> None:
        super().__init__(elements)
        self.shape = tuple(shape)


class InferResponse(msgspec.Struct):
    """One response (a stream has several): the output rows of one request."""

    outputs: Columns
    rows: int = 1
    #: Parameters that the model returns with its outputs.
    parameters: Mapping[str, Any] | None = None
    #: Whether the model marked it as the last response of a stream.
    final: bool = False


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """A request's position in a sequence (Triton's correlation id).

    For example:

        wherry.SequenceStep("alice", start=True).id  # -> 'alice'
    """

    #: A number of up to 64 bits, or text.
    id: int | str
    #: Whether this is the first request of its sequence.
    start: bool = False
    #: Whether this is its last request.
    end: bool = False


class InferRequest(msgspec.Struct, eq=False):
    """One caller's rows for one model.

    The scheduler reads `rows`, `priority`, `tenant`, `deadline` and `shape_key`. Times are seconds
    of the runtime's clock. Equal to itself only.
    """

    inputs: Columns
    rows: int
    reply: Reply[InferResponse]
    id: str = ""
    #: 1 is the highest.
    priority: int = 5
    #: Time by the runtime's clock.
    deadline: float | None = None
    #: Requests with different keys are never batched together.
    shape_key: Hashable = None
    parameters: Mapping[str, Any] | None = None
    sequence: SequenceStep | None = None
    requested_outputs: Sequence[str] | None = None
    #: The tenant: within a priority tenants take turns.
    tenant: str = ""
    #: The caller's timeout in seconds, before the model's policies.
    timeout: float | None = None
    enqueued_at: float = 0.0
    #: When its wait for an instance ends; None: no limit.
    wait_until: float | None = None
    #: Size of its largest row (tokens, pixels), if the model computes one.
    cost: float = 1.0
    #: The open sequence it belongs to, once it runs.
    run: object | None = None
    #: When its batch was started; set after the batch.
    started_at: float | None = None
    #: Durations of its batch: input, inference, output.
    compute_ns: tuple[int, int, int] = (0, 0, 0)
    queued: object | None = None
    #: Exempt from max_queue_size: what it belongs to was admitted already (the first part of a
    #: split request, a request of a pipeline). A part is exempt from queue policies, too.
    follows: bool = False
    #: A pipeline sent it, which may take tensors as answers.
    takes_tensors: bool = False
    #: Its caller is in this program: images and audio may come as they are, without a codec.
    takes_values: bool = False
    #: The parts of a request with more rows than a batch holds, until all have ended.
    parts: Sequence[Part] = ()
    #: The request that a Part belongs to, which is counted instead of it.
    whole: InferRequest | None = None
    #: Bytes of its inputs, if they were counted already.
    nbytes: int | None = None
    reservations: tuple[Reservation, ...] = ()
    attempts: int = 0
    trace: Any = None

    @property
    def streams(self) -> bool:
        return isinstance(self.reply, StreamReply)

    def __repr__(self) -> str:
        state = "settled" if self.reply.settled else "queued" if self.queued else "running"
        return f"<InferRequest {self.id or '?'}: {self.rows} rows, {state}>"


class Part(InferRequest, eq=False):
    """Some rows of a request that has more rows than a batch holds."""


class Batch(msgspec.Struct, frozen=True):
    """The requests that one instance executes together, and why the batch ended there."""

    requests: tuple[InferRequest, ...]
    rows: int
    reason: str


#: Approximate overhead of a Python object and its place in a list, in bytes.
OBJECT_BYTES = 56 + 8


def bytes_of(columns: Columns) -> int:
    return sum(
        [
            column.nbytes if isinstance(column, np.ndarray) else value_bytes(column)
            for column in columns.values()
        ]
    )


def value_bytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return OBJECT_BYTES + value.nbytes
    size = 8 + getsizeof(value)
    if isinstance(value, Mapping):
        holders: list[Collection[Any]] = [value, value.values()]
    elif isinstance(value, list | tuple):
        holders = [value]
    else:
        return size
    while holders:  # it may be nested deeper than Python can call
        values = holders.pop()
        if len(values) > _SLICE:  # one call for all would hold up other threads
            every = list(values)
            holders += [every[start : start + _SLICE] for start in range(0, len(every), _SLICE)]
            continue
        if set(map(type, values)) <= _FLAT:
            size += sum(map(getsizeof, values))
            continue
        for one in values:
            if isinstance(one, np.ndarray):
                size += OBJECT_BYTES + one.nbytes
                continue
            size += 8 + getsizeof(one)
            if isinstance(one, list | tuple):
                holders.append(one)
            elif type(one) not in _FLAT and isinstance(one, Mapping):
                holders += one, one.values()
    return size


_FLAT = {str, bytes, int, float, bool, type(None)}
#: Values that are measured in one go, which takes some 2 ms.
_SLICE = 2**14

MASKED = "a masked array; fill it (.filled(value))"


def is_masked(value: Any) -> bool:
    """Is it an array of which some elements may not count?"""
    # Only then numpy's module is imported.
    other = type(value) is not np.ndarray and isinstance(value, np.ndarray)
    return other and isinstance(value, np.ma.MaskedArray)


def check_timeout(seconds: Any) -> None:
    """InvalidRequest if a caller's timeout is not a length of time."""
    try:
        if seconds + 0.0 >= 0:  # nan is not
            return
    except (TypeError, OverflowError):
        pass
    raise InvalidRequest(f"timeout {seconds!r} is not a valid duration in seconds")


def shared(column: Column) -> Column:
    """Mark the arrays of a column as not owned by its request: a model that may write to them gets
    copies."""
    for array in column if isinstance(column, list) else [column]:
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return column


def concatenate(parts: Sequence[Columns], device: str = "") -> Columns:
    """Concatenate the rows of several requests; tensors on several devices, on this one."""
    return {name: concatenate_column([part[name] for part in parts], device) for name in parts[0]}


def concatenate_column(columns: Sequence[Column], device: str = "") -> Column:
    if isinstance(columns[0], list):
        return [value for column in columns for value in column]
    try:
        if isinstance(columns[0], np.ndarray):
            return np.concatenate(columns)
    except TypeError:  # of others' tensors
        if not any(map(is_tensor, columns)):
            raise
    return joined(columns, device)  # type: ignore[no-any-return]


def parted(columns: Columns, rows: int) -> list[Columns]:
    """The columns of each of `rows` rows; arrays are views."""
    if len(columns) == 1:
        ((name, column),) = columns.items()
        return [{name: column[row : row + 1]} for row in range(rows)]
    return [rows_of(columns, row, row + 1) for row in range(rows)]


def rows_of(columns: Columns, start: int, stop: int) -> Columns:
    """Rows `start` to `stop` of every column; arrays are views."""
    return {name: column[start:stop] for name, column in columns.items()}
