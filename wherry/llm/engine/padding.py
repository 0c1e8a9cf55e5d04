"""Which sequences of a step attend in one call, padded to the same size?

A call for each sequence would be too many for a device on which a call takes longer to start than
to run; one call for all would be as large as the longest makes it. So those of like size share one:
the number of calls depends on how different they are, and not on how many.

Pure: no tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

#: Tokens of context up to which contexts are padded to the same length.
SHORT_TOKENS: Final = 256
#: Memory that one call may take for what it pads: bytes.
MOST_BYTES: Final = 1 << 28


class RowSpan(NamedTuple):
    """Consecutive rows of one sequence in a step."""

    #: The place of the sequence among the step's.
    sequence: int
    first_row: int
    rows: int
    #: Length of the context in tokens, up to and including the last of the rows.
    context: int


@dataclass(frozen=True, slots=True)
class Room:
    """The memory that a call takes, in bytes."""

    #: For each token of a padded context: its keys and values.
    per_token: int
    #: For each padded row and token: whether the one attends to the other.
    per_pair: int
    most: int = MOST_BYTES

    def holds(self, sequences: int, rows: int, context: int) -> bool:
        """Whether one call has room for `sequences` of this size."""
        return sequences * context * (self.per_token + rows * self.per_pair) <= self.most

    def rows(self, context: int) -> int:
        """The most rows of one sequence in a call."""
        return max(1, (self.most // context - self.per_token) // self.per_pair)


def batches(spans: Iterable[RowSpan], room: Room) -> list[list[RowSpan]]:
    """The calls of a step. A sequence with many rows after a long context may be in several."""
    alike: dict[tuple[int, int], list[RowSpan]] = {}
    for span in spans:
        for part in _parts(span, room.rows(span.context)):
            size = (_size(part.rows), _size(-(-part.context // SHORT_TOKENS)))
            alike.setdefault(size, []).append(part)
    return [batch for same in alike.values() for batch in _within(same, room)]


def _size(count: int) -> int:
    """1, up to 4, up to 16, up to 64, ..."""
    return ((count - 1).bit_length() + 1) // 2


def _parts(span: RowSpan, most: int) -> Iterator[RowSpan]:
    for done in range(0, span.rows, most):
        rows = min(most, span.rows - done)
        context = span.context - span.rows + done + rows
        yield RowSpan(span.sequence, span.first_row + done, rows, context)


def _within(same: list[RowSpan], room: Room) -> Iterator[list[RowSpan]]:
    batch: list[RowSpan] = []
    rows = context = 0
    for span in same:
        rows, context = max(rows, span.rows), max(context, span.context)
        if batch and not room.holds(len(batch) + 1, rows, context):
            yield batch
            batch, rows, context = [], span.rows, span.context
        batch.append(span)
    yield batch
