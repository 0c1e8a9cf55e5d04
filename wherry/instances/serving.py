"""How does one thread run the batches of an instance?"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from wherry.instances.executable import Execution, Outcome
from wherry.instances.instance import BatchRun, Instance
from wherry.instances.stream_run import StreamRun
from wherry.values.errors import WorkerDied
from wherry.values.request import Batch, Columns, InferRequest

#: Called for each response of a stream: the request's index in the batch, and its rows. False: its
#: caller is gone, spare the rest.
Respond = Callable[[int, Columns], bool]


class ServedInstance(Instance):
    """An instance whose batches run in the thread that calls `serve`, one after the other.

    Everything but `give`, `stop` and `abort` is for that thread.
    """

    @abstractmethod
    def wait(self) -> Batch | None:
        """Block until a batch is given, or None after `stop`. Raises WorkerDied if the worker ends
        meanwhile."""

    @abstractmethod
    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        """Run a batch. Raises WorkerDied only; what the model raises is an outcome."""

    @abstractmethod
    def stream(self, requests: Sequence[InferRequest], respond: Respond) -> list[Outcome | None]:
        """Run a generator model to its end. The outcome of each request is None or a Failure."""

    def serve(self) -> None:
        while (batch := self.wait()) is not None:
            self.run(batch)
            del batch  # nothing of it is to live on until the next one comes

    def run(self, batch: Batch) -> None:
        """Run one batch and tell `answers` what came of it. Raises WorkerDied."""
        answers = self.answers
        assert answers is not None
        stream = None
        try:
            requests = answers.prepared(batch)
            started = answers.now()
            if requests and requests[-1].streams:
                stream = answers.stream_run(self, batch, requests, started)
                outcomes = self.stream(requests, _paced(stream))
            else:
                execution = self.execute(requests) if requests else Execution()
        except WorkerDied:
            raise
        except BaseException:  # noqa: BLE001 - our own bug: it is logged, and the requests fail
            answers.crashed(self, batch)
            return
        if stream is None:
            answers.finished(self, (BatchRun(batch, requests, execution, started),))
        else:
            answers.streamed(stream, outcomes)


def _paced(stream: StreamRun) -> Respond:
    """Hand on responses at the pace of a reader that is alone in its batch."""

    def respond(index: int, columns: Columns) -> bool:
        stream.wait_for_room()
        return stream.respond(index, columns)

    return respond
