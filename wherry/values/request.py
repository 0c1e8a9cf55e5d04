"""What travels through the core: a request, its answer, and the batch they run in?

A column holds all rows of one tensor: a list (text, bytes, JSON, arrays of different shapes) or
one array with the rows first. Row i of every output belongs to row i of every input.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from wherry.values.budget import Loan
from wherry.values.reply import Reply, StreamReply

Array = npt.NDArray[Any]
Column = list[Any] | Array
Columns = dict[str, Column]


class ShapedRows(list[Any]):
    """Rows of strings whose tensor has another shape than [rows, elements of each]."""

    def __init__(self, rows: Sequence[Any], shape: Sequence[int]) -> None:
        super().__init__(rows)
        self.shape = tuple(shape)


class ShapedRow(list[Any]):
    """One row of strings, flat, whose shape its elements alone do not tell."""

    def __init__(self, elements: Sequence[Any], shape: Sequence[int]) -> None:
        super().__init__(elements)
        self.shape = tuple(shape)


@dataclass(slots=True)
class InferResponse:
    """One answer (a stream has several): the rows of one caller."""

    outputs: Columns
    rows: int = 1
    #: What the model says beside its outputs.
    parameters: Mapping[str, Any] | None = None
    #: Of a stream: the model has said that nothing comes behind it.
    final: bool = False


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """Which of several requests of one conversation this is (Triton's correlation id)."""

    id: int | str
    start: bool = False
    end: bool = False


class Reader(Protocol):
    """An event loop that waits for a reply, and can read what a worker answers itself."""

    def watch(self, file: int, turn: Callable[[], None]) -> bool:
        """Call `turn` in the loop whenever `file` can be read, until `forget`. Any thread.

        False: it cannot, or not yet.
        """
        ...

    def forget(self, file: int) -> None:
        """Any thread; a `turn` that has begun goes on."""
        ...


class InferRequest:
    """One caller's rows on their way through one model.

    The scheduler reads `rows`, `priority`, `tenant`, `deadline` and `shape_key`; the shell keeps
    `queued` and `attempts`. Times are seconds of the runtime's clock.
    """

    __slots__ = (
        "attempts",
        "compute_ns",
        "cost",
        "deadline",
        "enqueued_at",
        "follows",
        "id",
        "inputs",
        "loans",
        "parameters",
        "parts",
        "priority",
        "queued",
        "reader",
        "reply",
        "rows",
        "run",
        "sequence",
        "shape_key",
        "span",
        "started_at",
        "tenant",
        "timeout",
        "wait_until",
        "wanted",
    )
    #: Of a Part: the request that it is one of, which is counted in its place.
    whole: InferRequest | None = None

    def __init__(
        self,
        inputs: Columns,
        rows: int,
        reply: Reply[InferResponse],
        *,
        id: str = "",
        priority: int = 5,
        deadline: float | None = None,
        shape_key: Hashable = None,
        parameters: Mapping[str, Any] | None = None,
        sequence: SequenceStep | None = None,
        wanted: Sequence[str] | None = None,
        tenant: str = "",
    ) -> None:
        self.inputs = inputs
        self.rows = rows
        self.reply = reply
        self.id = id
        #: 1 runs first.
        self.priority = priority
        #: A moment, not a length of time.
        self.deadline = deadline
        #: What its caller gave it, in seconds, whatever the model's policies made of that.
        self.timeout: float | None = None
        #: Until when it may wait for an instance; None: for ever.
        self.wait_until: float | None = None
        #: Requests with different keys never share a batch.
        self.shape_key = shape_key
        self.parameters = parameters
        self.sequence = sequence
        #: The open sequence that it is a step of, once it runs.
        self.run: object | None = None
        #: Names of the outputs that are asked for; None: all.
        self.wanted = wanted
        #: On whose behalf: within a priority tenants are served in turns.
        self.tenant = tenant
        #: Work in one of its rows (tokens, pixels), if the model tells: padded to the longest.
        self.cost = 1.0
        self.enqueued_at = 0.0
        #: When its batch was taken up, once that has run.
        self.started_at: float | None = None
        #: What its batch then took: input, inference, output.
        self.compute_ns: tuple[int, int, int] = (0, 0, 0)
        #: If a pipeline sent it: its branch in that pipeline's tree, a tracing.Span.
        self.span: object | None = None
        #: The event loop that waits for its reply, if one does.
        self.reader: Reader | None = None
        #: The lane of the queue in which it waits.
        self.queued: object | None = None
        #: No bound of the queue holds for it: what it belongs to was let in already (the first part
        #: of a request that was split, the request of the pipeline that sends it).
        self.follows = False
        #: If it has more rows than a batch holds: what it was split into, until all of that ended.
        self.parts: Sequence[Part] = ()
        #: What it holds of budgets, as long as it is there.
        self.loans: tuple[Loan, ...] = ()
        #: How often a worker died with this request in its batch.
        self.attempts = 0

    @property
    def streams(self) -> bool:
        return isinstance(self.reply, StreamReply)

    def __repr__(self) -> str:
        state = "settled" if self.reply.settled else "queued" if self.queued else "running"
        return f"<InferRequest {self.id or '?'}: {self.rows} rows, {state}>"


class Part(InferRequest):
    """Some rows of a request that has more of them than a batch holds."""

    __slots__ = ("whole",)


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests that one instance executes together, and why the batch was cut there."""

    requests: tuple[InferRequest, ...]
    rows: int
    reason: str


#: What an object of Python costs besides its contents, roughly, and its place in a list.
OBJECT_BYTES = 56 + 8


def bytes_of(columns: Columns) -> int:
    """The memory that the values of these columns take."""
    return sum(
        [
            column.nbytes if isinstance(column, np.ndarray) else _bytes_of(column)
            for column in columns.values()
        ]
    )


def _bytes_of(value: Any) -> int:
    """Bytes of a Python value, with what is in it."""
    if isinstance(value, np.ndarray):
        return OBJECT_BYTES + value.nbytes
    size = 8 + getsizeof(value)
    if isinstance(value, list | tuple):
        kinds = set(map(type, value))
        if kinds <= _FLAT:
            return size + sum(map(getsizeof, value))
        return size + sum([_bytes_of(one) for one in value])
    if isinstance(value, Mapping):
        return size + sum([_bytes_of(k) + _bytes_of(v) for k, v in value.items()])
    return size


_FLAT = {str, bytes, int, float, bool, type(None)}


def gather(parts: Sequence[Columns]) -> Columns:
    """The rows of several requests after each other, in arrays that a model may write to.

    One request's arrays are copied only if they are foreign memory (a request's body, a
    local caller's array) or not aligned.
    """
    if len(parts) > 1:
        return concatenate(parts)
    return {
        name: column if isinstance(column, list) or column.flags.behaved else column.copy()
        for name, column in parts[0].items()
    }


def concatenate(parts: Sequence[Columns]) -> Columns:
    """Put the rows of several requests after each other."""
    return {name: concatenate_column([part[name] for part in parts]) for name in parts[0]}


def concatenate_column(columns: Sequence[Column]) -> Column:
    if isinstance(columns[0], list):
        return [value for column in columns for value in column]
    return np.concatenate(columns)


def rows_of(columns: Columns, start: int, stop: int) -> Columns:
    """Rows `start` to `stop` of every column; arrays are views."""
    return {name: column[start:stop] for name, column in columns.items()}
