"""What crosses between this process and a worker process?

msgpack, both ways. A column is what it is in the core: a list as such, an array as an extension
that `workers.encoding` knows. Nothing is pickled but the arguments in `Source`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import msgspec

from wherry.core.instances.own_rows import unsendable
from wherry.core.instances.source import AnyText, Source
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device
from wherry.core.values.datatypes import Form, TensorSpec
from wherry.core.values.execution import Execution, Failure, Outcome, SharedOutcome
from wherry.core.workers.encoding import Garbage


class WorkerMessage(msgspec.Struct, array_like=True, tag=True, gc=False):
    """Tagged with its class name, its fields in order. No message refers back to itself."""


# To the worker


class Start(WorkerMessage):
    """The first message."""

    source: Source
    config: ModelConfig
    device: Device
    #: Levels of the parent's loggers: what it would drop is not sent.
    log_levels: dict[str, int]
    #: The parent's sys.path, sys.argv and PYTHONPATH: what the user's module may look at.
    path: list[AnyText]
    argv: list[AnyText]
    python_path: AnyText | None


class Execute(WorkerMessage):
    """A batch: `counts[i]` rows belong to its request i."""

    columns: dict[str, Any]
    counts: list[int]
    #: The answer may use the slab: no other batch was with the worker when this one was sent.
    slab: bool
    #: The W3C's headers of its span; None: it is not traced.
    trace: dict[str, str] | None = None
    #: It answers a SendAgain: the model has failed for these rows, and may have changed them.
    again: bool = False
    #: Images and audio may come back without a codec.
    lossless: bool = False


class Generate(WorkerMessage):
    """A batch for a model that streams. `trace`: as that of Execute."""

    columns: dict[str, Any]
    counts: list[int]
    trace: dict[str, str] | None = None


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


class Move(WorkerMessage):
    """Move the model's weights, while nothing runs: to host memory, or back to the device."""

    to_host: bool


class Stop(WorkerMessage): ...


# From the worker


class Ready(WorkerMessage):
    uses_device: bool = True


class NotLoaded(WorkerMessage):
    """The model's import, load or warm-up raised."""

    error: str
    message: str
    traceback: str


class Moved(WorkerMessage):
    """The answer to Move. `error`: what the model raised, or that it cannot."""

    error: str = ""


class Result(WorkerMessage):
    """The answer to Execute: one call of the model gave all of these rows."""

    columns: dict[str, Any]
    #: When the model was called, by perf_counter_ns(), and how long it took.
    started_at: int
    infer_ns: int

    def execution(self, counts: Sequence[int], sent_at: int) -> Execution:
        """The outcomes of the batch with these `counts`, which was sent at `sent_at`. Raises
        Garbage if that is another batch."""
        rows = sum(counts)
        for column in self.columns.values():
            if len(column) != rows:
                raise Garbage("a Result for another batch")
        outcomes: list[Outcome] = [self.columns]
        if len(counts) > 1:
            outcomes = SharedOutcome(self.columns, counts).scatter()
        # The clock is the same in both processes. Handing over counts as input and as output.
        output_ns = perf_counter_ns() - self.started_at - self.infer_ns
        input_ns = self.started_at - sent_at
        return Execution(
            outcomes,
            input_ns if input_ns > 0 else 0,
            self.infer_ns,
            output_ns if output_ns > 0 else 0,
            [rows],
        )


class PartResults(WorkerMessage):
    """The answer to Execute if the model has failed, or was called for parts of the batch."""

    answers: list[SharedOutcome]
    #: When the model was first called, by perf_counter_ns(), and how long it took in all.
    started_at: int
    infer_ns: int
    executed_rows: list[int]
    out_of_memory_rows: int = 0

    def execution(self, counts: Sequence[int], sent_at: int) -> Execution:
        if [count for answer in self.answers for count in answer.counts] != list(counts):
            raise Garbage("a PartResults for another batch")
        outcomes: list[Outcome] = []
        for answer in self.answers:
            outcomes += answer.scatter()
        execution = _execution(
            outcomes, self.started_at, self.infer_ns, sent_at, self.executed_rows
        )
        execution.out_of_memory_rows = self.out_of_memory_rows
        return execution


def _execution(
    outcomes: list[Outcome], started_at: int, infer_ns: int, sent_at: int, executed_rows: list[int]
) -> Execution:
    """The clock is the same in both processes. Handing over counts as input and as output."""
    output_ns = perf_counter_ns() - started_at - infer_ns
    return Execution(
        outcomes, max(0, started_at - sent_at), infer_ns, max(0, output_ns), executed_rows
    )


class Undecodable(WorkerMessage):
    """Stands for a Result that has come with rows that cannot be decoded."""

    failure: Failure
    started_at: int
    infer_ns: int

    def execution(self, counts: Sequence[int], sent_at: int) -> Execution:
        outcomes: list[Outcome] = [self.failure] * len(counts)
        return _execution(outcomes, self.started_at, self.infer_ns, sent_at, [sum(counts)])


class SendAgain(WorkerMessage):
    """Parts of the batch that was sent last are to run again."""


class Respond(WorkerMessage):
    """One response of a stream to one request."""

    index: int
    columns: dict[str, Any]


class GenerateEnd(WorkerMessage):
    """The answer to Generate: how the stream ended for each request."""

    failures: list[Failure | None]


class Share(msgspec.Struct, array_like=True):
    """What one step did for one request."""

    key: int
    responses: list[dict[str, Any]] = []
    done: bool = False
    failure: Failure | None = None


class Stepped(WorkerMessage, gc=True):
    """What a step gave, how many requests it was for and how long it took; the model's gauges after
    it. Also sent when requests have only joined and left."""

    shares: list[Share]
    active_requests: int = 0
    step_ns: int = 0
    gauges: Mapping[str, float] = {}


ToWorker = Start | Execute | Generate | Cancel | Join | Leave | Move | Stop
FromWorker = (
    Ready | NotLoaded | Result | PartResults | SendAgain | Respond | GenerateEnd | Stepped | Moved
)


# What of a message from the worker can be read if rows in it cannot: msgpack's encoder takes keys
# and depths that its decoder refuses.


class _RawResult(Result, tag="Result"):
    columns: dict[str, msgspec.Raw]


class _RawAnswer(SharedOutcome, frozen=True):
    outcome: dict[str, msgspec.Raw] | Failure


class _RawPartResults(PartResults, tag="PartResults"):
    answers: list[_RawAnswer]  # type: ignore[assignment] # a list of any is what is decoded


class _RawShare(Share):
    responses: list[dict[str, msgspec.Raw]]


class _RawStepped(Stepped, tag="Stepped"):
    shares: list[_RawShare]  # type: ignore[assignment] # as above


_RAW = msgspec.msgpack.Decoder(_RawResult | _RawPartResults | _RawStepped)
_ANSWER_TAGS = (msgspec.msgpack.encode("Result"), msgspec.msgpack.encode("PartResults"))


def salvaged(
    model: str, body: memoryview, error: Exception, decode: Callable[[Any], Any]
) -> Undecodable | PartResults | Stepped | None:
    """The answer in a body with rows that cannot be decoded, with failures in place of those rows;
    None if it holds no answer."""
    text = f"model {model!r} returned what cannot be sent: {error}"
    unknown = Failure("BadModelOutput", text)

    def decoded(columns: dict[str, msgspec.Raw] | Failure) -> dict[str, Any] | Failure:
        if isinstance(columns, Failure):
            return columns
        outputs: dict[str, Any] = {}
        for name, column in columns.items():
            try:
                outputs[name] = decode(column)
            except Exception as error:  # noqa: BLE001 - as in MessageDecoder.decode
                return Failure("BadModelOutput", str(unsendable(model, name, str(error))))
        return outputs

    try:
        raw = _RAW.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        is_answer = bytes(body[1:16]).startswith(_ANSWER_TAGS)
        return Undecodable(unknown, perf_counter_ns(), 0) if is_answer else None
    if isinstance(raw, _RawPartResults):
        answers = [SharedOutcome(decoded(one.outcome), one.counts) for one in raw.answers]
        return PartResults(
            answers, raw.started_at, raw.infer_ns, raw.executed_rows, raw.out_of_memory_rows
        )
    if isinstance(raw, _RawStepped):
        shares: list[Share] = []
        for share in raw.shares:
            responses = [decoded(columns) for columns in share.responses]
            good = [one for one in responses if not isinstance(one, Failure)]
            why = next((one for one in responses if isinstance(one, Failure)), share.failure)
            shares.append(Share(share.key, [] if why else good, share.done, why))
        return Stepped(shares, raw.active_requests, raw.step_ns, raw.gauges)
    failure = decoded(raw.columns)  # a part may be just shallow enough
    if not isinstance(failure, Failure):
        failure = unknown
    return Undecodable(failure, raw.started_at, raw.infer_ns)


#: The answers to Execute.
ANSWERS = (Result, PartResults, Undecodable)


def may_hold_arrays(specs: Iterable[TensorSpec]) -> bool:
    """Can a message with columns of these be so large that a memory file goes with it? Not with
    strings, which are always in the message itself; JSON can hold arrays."""
    return any(spec.form not in (Form.TEXT, Form.BYTES) for spec in specs)
