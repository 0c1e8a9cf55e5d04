"""What does a runner have to do at one moment, and when would it answer a row that comes then?"""

from __future__ import annotations

import msgspec


class Load(msgspec.Struct, frozen=True):
    """What one runner has to do at a moment, and how long it takes. Seconds that are not known yet
    are 0.0.
    """

    #: Does it take requests, and is an instance up?
    ready: bool = False
    #: Instances that are up, and those of them that run something. 0: a pipeline has none.
    instances: int = 0
    busy: int = 0
    #: Rows that wait, and rows that run. With `joins`: without and with a first response, if the
    #: model streams.
    queued_rows: int = 0
    running_rows: int = 0
    #: Seconds until an instance has run everything assigned to it.
    free_after: float = 0.0
    #: Rows of a full batch; seconds of a batch of one row and of a full one.
    full_rows: int = 1
    one_seconds: float = 0.0
    full_seconds: float = 0.0
    #: Whether a new row joins those that run and shares their time, as in a model of steps. Then
    #: `full_rows` are the most that run at once on one instance, and the seconds are those in which
    #: that number of rows has its first responses.
    joins: bool = False

    @property
    def free_slots(self) -> int:
        """Rows that could come now and be in the next batches: one that each instance can begin
        when it is free, or the places of a model of steps."""
        ahead = self.queued_rows + (self.running_rows if self.joins else 0)
        return max(0, self.full_rows * self.instances - ahead)

    @property
    def busy_share(self) -> float:
        """The share of the instances that run something; with `joins`, of the slots in use."""
        if not self.instances:
            return 0.0
        if self.joins:
            return (self.running_rows + self.queued_rows) / (self.full_rows * self.instances)
        return self.busy / self.instances

    @property
    def row_seconds(self) -> float:
        """What one row takes of the time of all instances, in full batches."""
        return self.full_seconds / (self.full_rows * self.instances or 1)

    @property
    def wait_seconds(self) -> float:
        """Seconds until a row that comes now runs; with `joins`, by which others delay its first
        response."""
        if self.joins:
            return self.first_seconds(self.queued_rows, 0)
        return self.free_after + self.waiting_seconds(self.queued_rows)

    def batch_seconds(self, rows: float) -> float:
        if self.full_rows <= 1:
            return rows * self.one_seconds
        each = (self.full_seconds - self.one_seconds) / (self.full_rows - 1)
        return self.one_seconds + (rows - 1) * each

    def waiting_seconds(self, rows_ahead: float) -> float:
        """Seconds, once an instance is free, for the whole batches among `rows_ahead` rows."""
        return rows_ahead // self.full_rows * self.full_seconds / (self.instances or 1)

    def first_seconds(self, rows_ahead: float, rows: int) -> float:
        """With `joins`: seconds until `rows` have their first response, with `rows_ahead` that have
        none. The others slow it down a little: an instance full of them counts as one row."""
        ahead = (rows_ahead + self.running_rows / self.full_rows) / (self.instances or 1)
        return self.one_seconds * (ahead + rows)

    def answer_seconds(self, rows: int = 1) -> float:
        """Seconds until `rows` that come now are answered: after the rest of what runs, the whole
        batches of what waits, and the batch that they are in."""
        if self.joins:
            return self.first_seconds(self.queued_rows, rows)
        own = self.queued_rows % self.full_rows + rows
        return self.free_after + self.waiting_seconds(self.queued_rows) + self.batch_seconds(own)
