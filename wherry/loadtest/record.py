"""What happened to each request? (A row for each, kept as columns of numbers.)

Times are seconds of one monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

#: The outcome of a request that was answered as it should be.
OK = "ok"

#: Columns and their array type codes. `first`: the first piece of a stream (else as `ended`);
#: `gaps`: how many of the row's inter-token times stand in `Recorder.gap_seconds`.
COLUMNS: Mapping[str, str] = {
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


class Recorder:
    """Rows of one thread or process, in the order in which they ended.

    `ramp` knows how many callers were at work: a (moment, callers) each time that changes.
    """

    def __init__(self) -> None:
        self.intended = array("d")
        self.sent = array("d")
        self.first = array("d")
        self.ended = array("d")
        self.outcome = array("H")
        self.rows = array("I")
        self.tokens_in = array("I")
        self.tokens_out = array("I")
        self.gaps = array("I")
        self.gap_seconds = array("f")
        self.outcomes: dict[str, int] = {OK: 0}

    def __len__(self) -> int:
        return len(self.ended)

    def __repr__(self) -> str:
        return f"<Recorder: {len(self)} requests, {self.failures} failed>"

    @property
    def failures(self) -> int:
        return len(self.outcome) - self.outcome.count(0)

    def add(
        self,
        intended: float,
        sent: float,
        first: float,
        ended: float,
        outcome: str,
        rows: int,
        tokens_in: int = 0,
        tokens_out: int = 0,
        gaps: Iterable[float] = (),
    ) -> None:
        """One request has ended, in whichever way."""
        self.intended.append(intended)
        self.sent.append(sent)
        self.first.append(first)
        self.ended.append(ended)
        index = self.outcomes.get(outcome)
        if index is None:
            index = self._new_outcome(outcome)
        self.outcome.append(index)
        self.rows.append(rows)
        self.tokens_in.append(tokens_in)
        self.tokens_out.append(tokens_out)
        before = len(self.gap_seconds)
        if gaps:
            self.gap_seconds.extend(gaps)
        self.gaps.append(len(self.gap_seconds) - before)

    def _new_outcome(self, outcome: str) -> int:
        # A server may put a new text into each error: beyond so many kinds they are one.
        if len(self.outcomes) >= 200:
            outcome = "other errors"
        return self.outcomes.setdefault(outcome, len(self.outcomes))

    def merge(self, other: Recorder) -> None:
        """Take over another one's rows."""
        names = list(other.outcomes)
        index = [self._new_outcome(name) for name in names]
        for name in COLUMNS:
            if name != "outcome":
                getattr(self, name).extend(getattr(other, name))
        self.outcome.extend(index[number] for number in other.outcome)
        self.gap_seconds.extend(other.gap_seconds)

    def packed(self) -> dict[str, Any]:
        """Itself as bytes, to cross to another process."""
        columns = {name: getattr(self, name).tobytes() for name in COLUMNS}
        return {
            **columns,
            "gap_seconds": self.gap_seconds.tobytes(),
            "outcomes": list(self.outcomes),
        }

    @classmethod
    def unpacked(cls, packed: Mapping[str, Any]) -> Recorder:
        made = cls()
        for name in (*COLUMNS, "gap_seconds"):
            getattr(made, name).frombytes(packed[name])
        made.outcomes = {name: index for index, name in enumerate(packed["outcomes"])}
        return made
