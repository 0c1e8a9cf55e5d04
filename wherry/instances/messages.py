"""What crosses between this process and a worker process?

msgpack, both ways. A column is what it is in the core: a list as such, an array as an extension
that `workers.encoding` knows. Nothing is pickled but the arguments in `Source`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from wherry.instances.executable import Failure
from wherry.instances.source import Source
from wherry.models.config import ModelConfig
from wherry.models.model import Device


class WorkerMessage(msgspec.Struct, array_like=True, tag=True):
    """Tagged with its class name, its fields in order."""


# To the worker


class Start(WorkerMessage):
    """The first message."""

    source: Source
    config: ModelConfig
    device: Device
    #: Levels of the parent's loggers: what it would drop is not sent.
    log_levels: dict[str, int]
    #: The parent's sys.path, sys.argv and PYTHONPATH: what the user's module may look at.
    path: list[str]
    argv: list[str]
    python_path: str | None


class Execute(WorkerMessage):
    """A batch: `counts[i]` rows belong to its request i."""

    columns: dict[str, Any]
    counts: list[int]
    #: The answer may use the slab: no other batch was with the worker when this one was sent.
    slab: bool


class Generate(WorkerMessage):
    """A batch for a model that streams."""

    columns: dict[str, Any]
    counts: list[int]


class Cancel(WorkerMessage):
    """Send no more responses to this request of the running stream."""

    index: int


class Join(WorkerMessage):
    """Let a request join a model that works in steps; later messages name it by `key`."""

    key: int
    columns: dict[str, Any]


class Leave(WorkerMessage):
    """Forget a request that has joined."""

    key: int


class Stop(WorkerMessage):
    """Unload the model and end."""


# From the worker


class Ready(WorkerMessage):
    """Loaded and warm."""


class NotLoaded(WorkerMessage):
    """The model's import, load or warm-up raised."""

    error: str
    message: str
    traceback: str


class Failed(msgspec.Struct, array_like=True):
    """A Failure without its exception."""

    error: str
    message: str
    traceback: str
    field: str | None = None

    @classmethod
    def of(cls, failure: Failure) -> Failed:
        return cls(failure.error, failure.message, failure.traceback, failure.field)

    def failure(self) -> Failure:
        return Failure(self.error, self.message, self.traceback, field=self.field)


class Answer(msgspec.Struct, array_like=True):
    """What one call of the model gave: the rows of as many requests as there are counts."""

    counts: list[int]
    outcome: dict[str, Any] | Failed


class Result(WorkerMessage):
    """The answer to Execute."""

    answers: list[Answer]
    #: When the model was called, by perf_counter_ns(), and how long it took.
    started_at: int
    infer_ns: int
    executed_rows: list[int]
    out_of_memory_rows: int = 0


class Respond(WorkerMessage):
    """One response of a stream to one request."""

    index: int
    columns: dict[str, Any]


class GenerateEnd(WorkerMessage):
    """The answer to Generate: how the stream ended for each request."""

    failures: list[Failed | None]


class SharedOut(msgspec.Struct, array_like=True):
    """What a step did for one request."""

    key: int
    responses: list[dict[str, Any]]
    done: bool
    failed: Failed | None


class Stepped(WorkerMessage):
    """A step is done, or requests have joined and left."""

    shares: list[SharedOut]
    active_requests: int
    step_ns: int
    gauges: dict[str, float]


ToWorker = Start | Execute | Generate | Cancel | Join | Leave | Stop
FromWorker = Ready | NotLoaded | Result | Respond | GenerateEnd | Stepped
