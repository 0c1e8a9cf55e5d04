"""How does an instance run in a thread of this process?

For work that releases the GIL (ONNX Runtime, torch, I/O) and for calls from the user's own
program: nothing is copied, and an idle instance may lend itself to the caller's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from time import perf_counter_ns

from wherry.core.instances.device_use import allocated_bytes, is_used, own_stream
from wherry.core.instances.executable import Executable
from wherry.core.instances.instance import Instance
from wherry.core.instances.model_errors import model_errors
from wherry.core.instances.own_rows import gather_rows
from wherry.core.instances.reruns import Sent
from wherry.core.instances.stream_run import StreamRun
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device, Model
from wherry.core.observability.otel.context import within
from wherry.core.observability.otel.following import begun
from wherry.core.scheduler.instance_table import BatchRun
from wherry.core.values.execution import Execution, Failure, Outcome
from wherry.core.values.request import Batch, Columns, InferRequest, concatenate, rows_of
from wherry.core.values.tensors import for_code

#: Called for each response of a stream: the request's index in the batch, and its rows. False: its
#: caller is gone, spare the rest.
Respond = Callable[[int, Columns], bool]


class ThreadInstance(Instance):
    """A model that the thread of `serve` calls, one batch after the other."""

    def __init__(self, name: str, device: Device, model: Model, config: ModelConfig) -> None:
        super().__init__(name, device)
        self.executable = Executable(model, config)
        signature = self.executable.signature
        self.runs_in_caller = config.run_in_caller and not signature.is_async
        self._streams = signature.streams
        specs = (*signature.inputs, *signature.outputs)
        #: Does it hand tensors over? Then it works in the stream that all such instances are in.
        self._has_tensors = any(spec.library for spec in specs)
        gives_tensors = any(spec.library for spec in signature.outputs)
        self._keeps_tensors = gives_tensors and not config.response_cache
        encodes = self.executable.encodes and not self._streams
        self._gives_media = encodes and not config.response_cache
        self._inbox: SimpleQueue[Batch | None] = SimpleQueue()

    def load(self) -> None:
        before = allocated_bytes(self.device)
        self.executable.load_on(self.device)
        stream = own_stream(self.device, shared=self._has_tensors)
        if stream is not None:
            run = self.run_in_caller

            def in_stream(columns: Columns) -> Columns | Failure:
                with stream():
                    return run(columns)

            self.run_in_caller = in_stream  # type: ignore[method-assign]
        self.executable.warm_up(self.device)
        self.uses_device = is_used(self.device, before)

    def give(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._inbox.put(batch)

    def stop(self) -> None:
        self._inbox.put(None)

    def serve(self) -> None:
        while (batch := self._inbox.get()) is not None:
            self.run(batch)
            del batch  # nothing of it is to live on until the next one comes

    def run(self, batch: Batch) -> None:
        answers, stream = self.answers, None
        try:
            run = BatchRun(batch, answers.prepared(batch), answers.now())
            requests = run.requests
            for request in requests:
                if request.trace is not None:
                    run.trace = begun(requests, batch, self, run.started)
                    break
            if self._streams and requests:
                stream = answers.stream_run(self, run)
                outcomes = within(run.trace, self._stream, requests, stream)
            elif run.trace is not None:
                run.execution = within(run.trace, self.execute, requests)
            elif requests:
                run.execution = self.execute(requests)
        except BaseException:  # noqa: BLE001 - our own bug: it is logged, and the requests fail
            answers.crashed(self, batch)
            return
        if stream is None:
            answers.finished(self, (run,))
        else:
            answers.streamed(stream, outcomes)

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        """Run the rows of these requests; what the model raises is an outcome."""
        started = perf_counter_ns()
        inputs = [request.inputs for request in requests]
        columns = gather_rows(inputs, device=self.executable.device)
        gathered = perf_counter_ns()
        counts = [request.rows for request in requests]
        sent = partial(concatenate, inputs, self.executable.device)
        if self._gives_media:
            lossless = all(request.takes_values for request in requests)
            self.executable.outputs.lossless = lossless
        if self._keeps_tensors:
            execution = self._with_tensors(columns, counts, sent, requests)
        else:
            execution = self.executable.run(columns, counts, sent)
        execution.input_ns += gathered - started
        return execution

    def _with_tensors(
        self, columns: Columns, counts: Sequence[int], sent: Sent, requests: Sequence[InferRequest]
    ) -> Execution:
        """Tensors for the callers that take them, whatever the others in the batch do. If none
        does, all of it comes to the host at once."""
        outputs = self.executable.outputs
        outputs.keeps_tensors = keeps = any(request.takes_tensors for request in requests)
        execution = self.executable.run(columns, counts, sent)
        outputs.keeps_tensors = False  # a row that runs in its caller's thread is for the caller
        if keeps:
            for place, outcome in enumerate(execution.outcomes):
                if not (requests[place].takes_tensors or isinstance(outcome, Failure)):
                    found = {name: for_code(column, "") for name, column in outcome.items()}
                    execution.outcomes[place] = found
        return execution

    def not_ready_reason(self) -> str:
        return lost_in_thread(self.executable.broken_device)

    def _stream(self, requests: Sequence[InferRequest], run: StreamRun) -> list[Outcome | None]:
        """Run a generator model to its end, at the pace of a reader that is alone in its batch."""

        def respond(index: int, rows: Columns) -> bool:
            run.wait_for_room()
            return run.respond(index, rows)

        columns = gather_rows([r.inputs for r in requests], device=self.executable.device)
        return stream(self.executable, columns, [r.rows for r in requests], respond)

    def run_in_caller(self, columns: Columns) -> Columns | Failure:
        if self._gives_media:
            self.executable.outputs.lossless = True
        try:
            if self.executable.takes_arrays:
                columns = gather_rows([columns])
        except MemoryError as error:
            return self.executable.failure(error)
        if self.executable.decodes:
            return self.executable.run_decoded(columns, [1], lambda: columns).outcomes[0].outcome
        return self.executable.outcome(columns, 1)

    def to_host(self) -> bool:
        return self.executable.model.to_host()

    def to_device(self) -> None:
        self.executable.model.to_device(self.device)

    def unload(self) -> None:
        try:
            self.executable.unload()
        finally:
            self.executable.model.give_back()


def lost_in_thread(broken_device: str) -> str:
    """Why an instance in a thread makes no progress any more; "" if its device is not broken."""
    if not broken_device:
        return ""
    return (
        "its device cannot be used any more in the server's process, which must be restarted"
        f" (isolation='process' restarts only a worker): {broken_device}"
    )


def stream(
    executable: Executable,
    columns: Columns,
    counts: Sequence[int],
    respond: Respond,
    after_each: Callable[[], None] = lambda: None,
) -> list[Outcome | None]:
    """Run a generator model and hand each caller its rows, until it ends or all are gone.

    `after_each` is called when all have their rows of one item, before the next one is requested.
    """
    ends: list[Outcome | None] = [None] * len(counts)
    for part in executable.parts(columns, counts):
        for index, error in part.refused.items():
            ends[index] = executable.failure(error)
        live = set(part.callers)
        if not live:
            continue
        rows = sum([counts[index] for index in part.callers])
        try:
            for item in executable.stream(part.columns, rows):
                start = 0
                for index in part.callers:
                    stop = start + counts[index]
                    own = rows_of(item, start, stop)
                    start = stop
                    if index in live and not _empty(own) and not respond(index, own):
                        live.discard(index)
                after_each()
                if not live:
                    break
        except model_errors() as error:
            failure = executable.failure(error)
            for index in part.callers:
                ends[index] = failure
    return ends


def _empty(rows: Columns) -> bool:
    """A generator yields None for a row that has no response this time."""
    return all(
        isinstance(column, list) and all(row is None for row in column) for column in rows.values()
    )
