"""Which rows of a batch run again after the model has failed, and with what?

The halves of the batch, and so on: a bad row fails alone, and a batch that was too large for the
memory is run in parts.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from time import perf_counter_ns

from wherry.core.instances.device_errors import out_of_memory
from wherry.core.instances.model_outputs import WrongColumn
from wherry.core.values.execution import BatchParts, Failure, Outcome, SharedOutcome
from wherry.core.values.request import Columns, concatenate, rows_of

#: How often parts of a failed batch are run again, at most: finding one bad request among 256
#: takes 2 * log2(256) = 16 runs.
MAX_RERUNS = 48

#: Returns the rows of a batch as their callers have sent them: the code may have changed what it
#: was called with.
Sent = Callable[[], Columns]


class Reruns:
    """The runs of one batch after its first. `outcome(columns, rows)` calls the model with copies
    of some rows of `sent()`, which is called once if there is anything to run.

    `isolate`: halves run also after an error; if the model ran out of memory they run in any case.
    `once`: nothing runs twice.
    """

    # A class, not functions within one: what a model has failed on is freed when this is.

    def __init__(
        self, outcome: Callable[[Columns, int], Outcome], sent: Sent, *, isolate: bool, once: bool
    ) -> None:
        self._outcome = outcome
        self._sent = sent
        self._once = once
        self._left = MAX_RERUNS if isolate and not once else 0
        self._columns: Columns | None = None

    def run(self, counts: Sequence[int], failure: Failure, infer_ns: int) -> BatchParts:
        """The batch's outcomes in the end. The first run, of all rows, has failed after
        `infer_ns`."""
        self._found = BatchParts([], infer_ns, [sum(counts)])
        self._found.outcomes = self._halves(0, counts, failure)
        return self._found

    def _halves(
        self, start_row: int, counts: Sequence[int], failure: Failure
    ) -> list[SharedOutcome]:
        out_of_memory = _ran_out_of_memory(failure)
        if out_of_memory:
            self._found.out_of_memory_rows = sum(counts)
            self._left = max(self._left, 0 if self._once else 2)
        again = not isinstance(failure.exception, WrongColumn)
        rows, one_caller = sum(counts), len(counts) == 1
        if self._left < 2 or not again or (one_caller and (rows == 1 or not out_of_memory)):
            return [SharedOutcome(failure, counts)]
        self._left -= 2
        half = len(counts) // 2
        first, second = counts[:half], counts[half:]
        if one_caller:
            first, second = [rows // 2], [rows - rows // 2]
        parts = self._part(start_row, first) + self._part(start_row + sum(first), second)
        return [_joined(parts, counts)] if one_caller else parts

    def _part(self, start_row: int, counts: Sequence[int]) -> list[SharedOutcome]:
        rows = sum(counts)
        if self._columns is None:
            self._columns = self._sent()
        part = rows_of(self._columns, start_row, start_row + rows)
        started = perf_counter_ns()
        outcome = self._outcome(part, rows)
        self._found.infer_ns += perf_counter_ns() - started
        self._found.executed_rows.append(rows)
        if isinstance(outcome, Failure):
            return self._halves(start_row, counts, outcome)
        return [SharedOutcome(outcome, counts)]


def _joined(parts: Sequence[SharedOutcome], counts: Sequence[int]) -> SharedOutcome:
    """The parts of one caller's rows as one part again; the first failure is the whole's."""
    outputs: list[Columns] = []
    for part in parts:
        if isinstance(part.outcome, Failure):
            return SharedOutcome(part.outcome, counts)
        outputs.append(part.outcome)
    return SharedOutcome(concatenate(outputs), counts)


def _ran_out_of_memory(failure: Failure) -> bool:
    """If so, free what the failed call still holds, so that smaller batches find room."""
    error = failure.exception
    if error is None or not out_of_memory(error):
        return False
    traceback.clear_frames(error.__traceback__)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return True
