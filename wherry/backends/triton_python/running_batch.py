"""What is the outcome of each request of the batch in execute()?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wherry.instances.executable import Execution, Outcome
from wherry.values.request import InferRequest


class RunningBatch:
    """A batch and the outcomes of its requests so far.

    `members` are the positions and numbers of the requests that were sent; `later` those that have
    no outcome after execute() and are answered by response senders.
    """

    __slots__ = ("later", "members", "outcomes", "parameters", "requests")

    def __init__(self, requests: Sequence[InferRequest] = ()) -> None:
        self.requests = requests
        self.members: list[tuple[int, int]] = []
        self.outcomes: list[Outcome] = [{} for _ in requests]
        self.later: set[InferRequest] = set()
        self.parameters: dict[InferRequest, Mapping[str, Any]] = {}

    def sent(self, index: int, number: int) -> None:
        """Note that the request at this position is about to be sent under this number."""
        self.members.append((index, number))
        self.later.add(self.requests[index])

    def settle(self, index: int, outcome: Outcome) -> None:
        """Set the outcome of the request at this position."""
        self.outcomes[index] = outcome
        self.later.discard(self.requests[index])

    def execution(self, input_ns: int, infer_ns: int, output_ns: int) -> Execution:
        rows = sum(self.requests[index].rows for index, _ in self.members)
        return Execution(
            self.outcomes,
            max(0, input_ns),
            infer_ns,
            max(0, output_ns),
            [rows],
            later=self.later,
            parameters=self.parameters,
        )
