"""`wherry` whose schedulers wait, as Triton's do for its tests, until so many requests have come.

TRITONSERVER_DELAY_SCHEDULER is the number of requests that a model's scheduler has before its
first batch; TRITONSERVER_BACKLOG_DELAY_SCHEDULER that of requests of sequences that have no slot,
beside them. It has the backends of samples.py, too.
"""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

from wherry.__main__ import main
from wherry.core.scheduler.dynamic_batcher import DynamicBatcher
from wherry.core.scheduler.policy import Wait
from wherry.core.scheduler.self_tuning_batcher import SelfTuningBatcher
from wherry.core.scheduler.sequence_batcher import SequenceBatcher
from wherry.triton.backends.load import BACKENDS

QUEUED = int(os.environ.get("TRITONSERVER_DELAY_SCHEDULER", "0"))
IN_BACKLOG = int(os.environ.get("TRITONSERVER_BACKLOG_DELAY_SCHEDULER", "0"))

for sample in ("Identity", "Repeat", "Square"):
    BACKENDS.own[sample.lower()] = f"samples:{sample}Model"

begun: WeakSet[Any] = WeakSet()


def after_end(steps: list[Any]) -> int:
    """Count the steps of another sequence of the same id: Triton has them in its backlog."""
    ends = [number for number, request in enumerate(steps) if request.sequence.end]
    return len(steps) - 1 - ends[0] if ends else 0


def may_begin(batcher: Any) -> bool:
    """Whether enough requests have come; from then on always. A model that forms no batches does
    not wait."""
    if batcher in begun or (batcher.max_batch_size == 1 and isinstance(batcher, DynamicBatcher)):
        return True
    queued, backlog = batcher.queued_requests, 0
    if isinstance(batcher, SequenceBatcher):
        sequences = batcher.sequences
        backlog = sum(len(sequence.waiting) for sequence in sequences._backlog)
        for place in sequences._places.values():
            backlog += sum(after_end(list(each.waiting)) for each in place.taken.values())
    if queued - backlog < QUEUED or backlog < IN_BACKLOG:
        return False
    begun.add(batcher)
    return True


def delay(kind: Any) -> None:
    """Have all batchers of this class wait."""
    action, alone = kind.next_action, kind.may_run_alone

    def next_action(self: Any, now: float, instance: int = 0, *, ahead: bool = False) -> Any:
        return action(self, now, instance, ahead=ahead) if may_begin(self) else Wait(now + 0.01)

    def may_run_alone(self: Any, now: float) -> bool:
        return may_begin(self) and bool(alone(self, now))

    kind.next_action, kind.may_run_alone = next_action, may_run_alone


if QUEUED or IN_BACKLOG:
    for each in (DynamicBatcher, SelfTuningBatcher, SequenceBatcher):
        delay(each)
if __name__ == "__main__":
    main()
