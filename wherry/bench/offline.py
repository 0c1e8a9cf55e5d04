"""How fast is a model's own code, without callers, batcher or server?

`Offline` measures it on ready batches, over batch sizes and lengths: the limit for a server with
one such instance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any

import msgspec

from wherry.bench.inputs import Row
from wherry.core.api import (
    Columns,
    ConfigError,
    Device,
    Executable,
    Model,
    ModelConfig,
    concatenate,
    gather_rows,
)

#: A batch size is good if it reaches this share of the best one's rows/s.
GOOD = 0.95


class Cell(msgspec.Struct, kw_only=True):
    """The result of a batch size, for rows of one kind in one order."""

    batch_size: int
    #: Where the rows come from: a distribution of lengths, or the model's examples.
    rows: str
    order: str
    seconds_per_row: float
    #: Rows that were run, and the standard error over passes; None if there was only one.
    measured: int
    error: float | None = None

    @property
    def rows_per_second(self) -> float:
        return 1 / self.seconds_per_row


class OfflineReport(msgspec.Struct, kw_only=True):
    """Everything that one `wherry bench --offline` has measured."""

    schema: int = 1
    tool: str = "wherry bench --offline"
    version: str = ""
    started: str = ""
    command: list[str] = []
    machine: dict[str, Any] = {}
    model: str
    instances: int
    cells: list[Cell] = []
    interrupted: bool = False


def recommended(cells: Sequence[Cell]) -> Cell:
    """The smallest batch size that is nearly as fast as the best: a larger one only waits."""
    best = min(cell.seconds_per_row for cell in cells)
    return min(
        (cell for cell in cells if cell.seconds_per_row * GOOD <= best),
        key=lambda cell: cell.batch_size,
    )


def length_of(row: Row) -> float:
    """The key that rows are sorted by: characters of texts, elements of arrays."""
    return sum(
        len(value) if isinstance(value, str | bytes) else getattr(value, "size", 1)
        for value in row.values()
    )


def batches(rows: Sequence[Row], size: int, *, in_order: bool) -> list[list[Row]]:
    """All rows in batches of `size`, the last one perhaps smaller; `in_order`: by length."""
    if in_order:
        rows = sorted(rows, key=length_of)
    return [list(rows[n : n + size]) for n in range(0, len(rows), size)]


class Offline:
    """A model that is loaded in this process and measured cell by cell.

    with Offline(model, Device()) as offline: ...
    """

    def __init__(self, model: Model, config: ModelConfig, device: Device) -> None:
        self._executable = Executable(model, config)
        if self._executable.signature.streams:
            raise ConfigError(f"model {config.name!r} streams: it has no seconds per row")
        self._device = device
        self._name = config.name

    def __enter__(self) -> Offline:
        self._executable.load(self._device)
        return self

    def __exit__(self, *exc: object) -> None:
        self._executable.unload()

    def measure(
        self,
        rows: Sequence[Row],
        size: int,
        *,
        name: str,
        in_order: bool,
        seconds: float,
        interrupted: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> Cell | None:
        """Run all rows in batches of `size`, again and again for about `seconds`, but at
        least once: cells are comparable because they have done the same work. The first batch is
        run once before, unmeasured. None if it was interrupted before there was anything to say.
        """
        ready = [
            (concatenate([self._executable.columns_of(row) for row in batch]), len(batch))
            for batch in batches(rows, size, in_order=in_order)
        ]
        self._execute(*ready[0])
        passes: list[float] = []
        until = clock() + seconds
        while (not passes or clock() < until) and not interrupted():
            began = clock()
            for columns, count in ready:
                self._execute(columns, count)
                if interrupted() and not passes:
                    return None
            passes.append((clock() - began) / len(rows))
        if not passes:
            return None
        return Cell(
            batch_size=size,
            rows=name,
            order="sorted" if in_order else "as they come",
            seconds_per_row=fmean(passes),
            measured=len(rows) * len(passes),
            error=stdev(passes) / len(passes) ** 0.5 if len(passes) > 1 else None,
        )

    def _execute(self, columns: Columns, size: int) -> None:
        self._executable.execute(gather_rows([columns], once=False), size)
