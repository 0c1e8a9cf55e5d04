"""What happened to each request? (A row for each, kept as packed numbers.)

Times are seconds of one monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from wherry.bench.answers import AnswerReader

#: The outcome of a request that was answered as it should be.
OK = "ok"

#: Columns of a row and their type codes. `first`: the first piece of a stream (else as `ended`);
#: `gaps`: how many of the row's inter-token times stand in `Recorder.gap_seconds`.
COLUMNS: Final[Mapping[str, str]] = {
    "intended": "d",
    "sent": "d",
    "first": "d",
    "ended": "d",
    "outcome": "H",
    "rows": "I",
    "tokens_in": "I",
    "tokens_out": "I",
    "gaps": "I",
}

_ROW: Final = Struct("=" + "".join(COLUMNS.values()))
_TIMES: Final = Struct("=4d")  # a row begins with them, its outcome follows
_OUTCOME: Final = Struct("=H")


class Recorder:
    """Rows of one thread or process, in the order in which they ended."""

    def __init__(self) -> None:
        #: One packed row after the other: a single call writes one, which the client pays for.
        self.rows = bytearray()
        self.gap_seconds = array("f")
        self.outcomes: dict[str, int] = {OK: 0}
        self.failures = 0

    def __len__(self) -> int:
        return len(self.rows) // _ROW.size

    def add(
        self,
        intended: float,
        sent: float,
        ended: float,
        outcome: str,
        rows: int,
        answer: AnswerReader | None = None,
    ) -> None:
        """Add a request that has ended. `answer`: its pieces and tokens, if they were read."""
        index = 0
        if outcome != OK:
            self.failures += 1
            index = self._index(outcome)
        if answer is None:
            self.rows += _ROW.pack(intended, sent, ended, ended, index, rows, 0, 0, 0)
            return
        first, gaps = answer.first, answer.gaps
        if first is None:
            first = ended
        if gaps:
            self.gap_seconds.extend(gaps)
        self.rows += _ROW.pack(
            intended, sent, first, ended, index, rows,
            answer.tokens_in, answer.tokens_out, len(gaps),
        )  # fmt: skip

    def _index(self, outcome: str) -> int:
        # A server may put a new text into each error: beyond 200 kinds they are one.
        if len(self.outcomes) >= 200 and outcome not in self.outcomes:
            outcome = "other errors"
        return self.outcomes.setdefault(outcome, len(self.outcomes))

    def latencies(self, start: int, most: int) -> list[float]:
        """Latencies of the rows from `start` on, at most `most`, evenly chosen."""
        step = max(1, -(-(len(self) - start) // most))
        found = []
        for n in range(start, len(self), step):
            intended, _, _, ended = _TIMES.unpack_from(self.rows, n * _ROW.size)
            found.append(ended - intended)
        return found

    def merge(self, other: Recorder) -> None:
        """Add the rows of another recorder, which may go on recording."""
        rows = bytearray(other.rows)  # first: what belongs to a row is there before the row
        index = [self._index(name) for name in list(other.outcomes)]
        gaps = sum(row[-1] for row in _ROW.iter_unpack(rows)) if other.gap_seconds else 0
        if index != list(range(len(index))):
            for at in range(_TIMES.size, len(rows), _ROW.size):
                (theirs,) = _OUTCOME.unpack_from(rows, at)
                _OUTCOME.pack_into(rows, at, index[theirs])
        self.rows += rows
        self.gap_seconds.extend(other.gap_seconds[:gaps])
        self.failures += other.failures

    def packed(self) -> dict[str, Any]:
        """This recorder as bytes, for another process."""
        return {
            "rows": bytes(self.rows),
            "gap_seconds": self.gap_seconds.tobytes(),
            "outcomes": list(self.outcomes),
            "failures": self.failures,
        }

    @classmethod
    def unpacked(cls, packed: Mapping[str, Any]) -> Recorder:
        made = cls()
        made.rows += packed["rows"]
        made.gap_seconds.frombytes(packed["gap_seconds"])
        made.outcomes = {name: index for index, name in enumerate(packed["outcomes"])}
        made.failures = packed["failures"]
        return made
