"""What is the result of a batch: an outcome for each caller, and where the time went?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import msgspec

from wherry.core.values.errors import BY_NAME, InvalidRequest, ModelFailed, WherryError
from wherry.core.values.request import Columns, InferRequest

#: The `error` of a Failure that is not an error: the model reschedules this request for its next
#: batch (iterative sequences).
RESCHEDULED = "Rescheduled"

#: The most of an error's text, and of its traceback, that is passed on.
MAX_ERROR_CHARS = 2**16


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """An error as a value; `without_exception` crosses to another process."""

    error: str
    message: str
    traceback: str = ""
    #: In the same process: what the model raised.
    exception: BaseException | None = None
    #: Of an InvalidRequest: what of the request is to blame.
    field: str | None = None

    def without_exception(self) -> Failure:
        return msgspec.structs.replace(self, exception=None)

    @property
    def is_the_models(self) -> bool:
        """Must the model's author act, and not the caller?"""
        return issubclass(BY_NAME.get(self.error, ModelFailed), ModelFailed)

    def as_exception(self) -> WherryError:
        error = BY_NAME.get(self.error, ModelFailed)(self.message)
        if isinstance(error, InvalidRequest):
            error.field = self.field
        error.__cause__ = self.exception
        if self.traceback and self.exception is None:  # it was raised in another process
            error.add_note(self.traceback)
        return error


Outcome = Columns | Failure


class SharedOutcome(msgspec.Struct, frozen=True, array_like=True):
    """The result of one call of the model for neighbours in a batch, `counts[i]` rows each."""

    outcome: dict[str, Any] | Failure
    counts: Sequence[int]

    def scatter(self) -> list[Outcome]:
        outputs = self.outcome
        if isinstance(outputs, Failure) or len(self.counts) == 1:
            return [outputs] * len(self.counts)
        answers: list[Outcome] = []
        start = 0
        for count in self.counts:
            stop = start + count
            answers.append({name: column[start:stop] for name, column in outputs.items()})
            start = stop
        return answers


class Execution(msgspec.Struct, eq=False):
    """The result of one batch: an outcome for each caller, and where the time (ns) went."""

    outcomes: list[Outcome] = []
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    #: Rows of each call of the model; more than one if a failed batch was tried in parts.
    executed_rows: list[int] = []
    #: The smallest number of rows for which memory did not suffice; 0: it did.
    out_of_memory_rows: int = 0
    #: Requests that outlive the batch: they are answered later, and without outcomes here.
    later: Set[InferRequest] = frozenset()
    #: Response parameters, which the model sets beside the outputs.
    parameters: Mapping[InferRequest, Mapping[str, Any]] = {}


@dataclass(slots=True)
class BatchParts:
    """The result of a batch for which the model failed: outcomes of neighbours, in order."""

    outcomes: list[SharedOutcome]
    #: How long the model was called in all, and the rows of each call.
    infer_ns: int
    executed_rows: list[int]
    #: The smallest number of rows for which memory did not suffice; 0: it did.
    out_of_memory_rows: int = 0
    #: How long images, audio and files were decoded before the model was called.
    decode_ns: int = 0

    def add(self, part: BatchParts) -> None:
        self.outcomes += part.outcomes
        self.infer_ns += part.infer_ns
        self.executed_rows += part.executed_rows
        self.out_of_memory_rows = max(self.out_of_memory_rows, part.out_of_memory_rows)

    def execution(self) -> Execution:
        return Execution(
            [outcome for part in self.outcomes for outcome in part.scatter()],
            self.decode_ns,
            self.infer_ns,
            executed_rows=self.executed_rows,
            out_of_memory_rows=self.out_of_memory_rows,
        )


def text_of(error: BaseException) -> str:
    """Its text, as a worker can send it."""
    try:
        return sendable(str(error))
    except Exception:  # noqa: BLE001 - the user's own __str__: a bug there costs no instance
        return "<its str() raised>"


def sendable(text: str) -> str:
    """What a worker can send, whatever an error quotes: lone surrogates are not UTF-8, and an input
    may be large."""
    if len(text) > MAX_ERROR_CHARS:
        text = f"{text[:MAX_ERROR_CHARS]}... ({len(text)} characters)"
    return text.encode(errors="replace").decode()
