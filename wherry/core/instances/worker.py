"""What does a worker process do, from its start to its end?

    python -m wherry.core.instances.worker NAME SOURCE TARGET SLAB PARENT

SOURCE, TARGET and SLAB are descriptors of the sockets to receive from and to send to, and of the
memory that is shared with the parent.

It imports the model as its parent did, loads it, and runs one batch after the other until its
parent stops it or ends. A large input array lies in memory that is shared with the parent, which
writes there again once the model has released it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
import traceback
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import perf_counter_ns
from typing import Any

from wherry.core.instances import worker_protocol
from wherry.core.instances.device_use import (
    allocated_bytes,
    is_used,
    make_current,
    own_stream,
    pinned,
)
from wherry.core.instances.executable import Executable
from wherry.core.instances.model_errors import model_errors, parent_decides
from wherry.core.instances.own_rows import unsendable
from wherry.core.instances.source import import_model, received
from wherry.core.instances.step_loop import StepLoop
from wherry.core.instances.thread import stream
from wherry.core.instances.worker_protocol import (
    Cancel,
    Execute,
    Generate,
    Move,
    Respond,
    Share,
    Start,
    may_hold_arrays,
)
from wherry.core.models.model import Device, Model
from wherry.core.models.step_model import StepModel
from wherry.core.observability.otel.providers import WorkerSpans
from wherry.core.values.execution import (
    BatchParts,
    Failure,
    Outcome,
    SharedOutcome,
    sendable,
    text_of,
)
from wherry.core.values.request import Columns
from wherry.core.workers.encoding import UNSENDABLE, why_not_sent, with_blobs
from wherry.core.workers.log import PipeHandler
from wherry.core.workers.message_socket import MessageSocket
from wherry.core.workers.process import DEVICE_LOST
from wherry.core.workers.shared_memory import Slab

_PR_SET_PDEATHSIG = 1


def main() -> None:
    name = sys.argv[1]
    source, target, slab, parent = map(int, sys.argv[2:])
    gc.freeze()  # what is imported by now stays: neither a collection nor the end walks it
    end_with(parent)
    faulthandler.enable()
    try:
        surroundings = Surroundings()
        run_instance(source, target, slab, surroundings)
        surroundings.spans.close()
    except (EOFError, ConnectionError):
        os._exit(1)  # the parent has ended
    except model_errors():
        logging.getLogger("wherry").exception("worker failed", extra={"worker": name})
        sys.exit(1)


class Surroundings:
    """What an instance finds in its process: here, all of it is for this one alone. `imports` is
    held while the model is imported, `running` while its code runs."""

    imports: AbstractContextManager[Any] = nullcontext()
    running: AbstractContextManager[Any] = nullcontext()
    is_shared = False

    def __init__(self) -> None:
        self.spans = WorkerSpans()

    def set_up(self, start: Start) -> None:
        """Give the user's module the paths, arguments and loggers that it would have in the
        parent."""
        sys.path[:] = map(received, start.path)
        set_up(start)
        # Line by line, as on a terminal, although it is a pipe.
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        logging.getLogger().handlers[:] = [PipeHandler(sys.stderr.fileno())]

    def give_back(self) -> None:
        """The model is unloaded."""


def run_instance(source: int, target: int, slab: int, surroundings: Surroundings) -> None:
    """Load the model that the parent names, and run it until the parent stops it. Raises EOFError
    or ConnectionError once the parent is gone."""
    memory = Slab.open(slab)
    os.close(slab)
    connection = _connect(source, target, memory)
    try:
        start = connection.receive()
        if not isinstance(start, Start):
            return
        executable = _load(connection, start, surroundings)
        if executable is not None:
            surroundings.spans.set_up()
            with pinned(memory.inputs, start.device):
                if isinstance(executable, StepLoop):
                    _serve_steps(connection, executable, surroundings.running, start.device)
                else:
                    connection.takes_files = may_hold_arrays(executable.signature.inputs)
                    _serve(connection, executable, surroundings, start.device)
            with surroundings.running:
                executable.unload()
        del executable
        surroundings.give_back()
    finally:
        connection.close()
        memory.close()


def _connect(source: int, target: int, memory: Slab) -> MessageSocket:
    ends = socket.socket(fileno=source), socket.socket(fileno=target)
    for end in ends:
        end.set_inheritable(False)  # or the parent would not see us end while a child of ours lives
    connection = MessageSocket(*ends, worker_protocol.ToWorker, copies=False)
    connection.use(memory, memory.outputs)
    return connection


def end_with(parent: int) -> None:
    """End when the parent does, even within the model's code, and ignore signals that a service
    manager sends to all processes of a server: the parent drains, and decides when to stop."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, parent_decides)
    # What the model forks is ended by it: multiprocessing sends SIGTERM, and waits.
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def set_up(start: Start) -> None:
    sys.argv[:] = map(received, start.argv)
    os.environ.pop("PYTHONPATH", None)
    if start.python_path is not None:
        os.environ["PYTHONPATH"] = received(start.python_path)
    for logger, level in start.log_levels.items():
        logging.getLogger(logger).setLevel(level)


def _load(
    connection: MessageSocket, start: Start, surroundings: Surroundings
) -> Executable | StepLoop | None:
    try:
        with surroundings.imports, surroundings.running:
            surroundings.set_up(start)
            model = import_model(start.source, partial(make_current, start.device))
        with surroundings.running:
            before = allocated_bytes(start.device)
            executable: Executable | StepLoop
            if isinstance(model, StepModel):
                executable = StepLoop(model, start.config, _device_lost, in_worker=True)
            else:
                executable = Executable(model, start.config, _device_lost, in_worker=True)
            executable.load(start.device)
            if surroundings.is_shared and isinstance(executable, Executable):
                own_stream(start.device, shared=False)
    except model_errors() as error:
        text = sendable("".join(traceback.format_exception(error)))
        connection.send(worker_protocol.NotLoaded(type(error).__name__, text_of(error), text))
        return None
    connection.send(worker_protocol.Ready(is_used(start.device, before)))
    return executable


def _device_lost(why: str) -> None:
    """End at once, with what runs unanswered: only a new process can use the device again. What
    ran is run again there, alone, to find out which request is to blame."""
    logging.getLogger("wherry").error(
        "device cannot be used any more, the worker ends", extra={"why": why}, exc_info=True
    )
    sys.stdout.flush()
    os._exit(DEVICE_LOST)


def _move(model: Model, message: Move, device: Device) -> worker_protocol.Moved:
    try:
        if not message.to_host:
            model.to_device(device)
        elif not model.to_host():
            return worker_protocol.Moved("it has nothing that can be moved")
    except model_errors() as error:
        return worker_protocol.Moved(f"{type(error).__name__}: {text_of(error)}")
    return worker_protocol.Moved()


def _serve(
    connection: MessageSocket, executable: Executable, surroundings: Surroundings, device: Device
) -> None:
    # Each answer is sent before the next batch runs: if this process dies, the oldest batch without
    # an answer is the one that ran.
    early: deque[Any] = deque()
    execute = partial(_execute, early)
    running = surroundings.running
    while True:
        message = early.popleft() if early else connection.receive()
        if isinstance(message, Execute | Generate):
            run: Any = execute if isinstance(message, Execute) else _generate
            with running:
                if message.trace is None:
                    run(connection, executable, message)
                else:
                    surroundings.spans.run(message.trace, run, connection, executable, message)
                connection.answer()
        elif isinstance(message, Move):
            with running:
                moved = _move(executable.model, message, device)
            connection.send(moved)
        elif isinstance(message, worker_protocol.Stop):
            return
        # A Cancel that crossed the end of its stream is late, not wrong.


def _execute(
    early: deque[Any], connection: MessageSocket, executable: Executable, batch: Execute
) -> None:
    # The answer reports whether the model has kept any of it: nothing else may then.
    columns, batch.columns = batch.columns, {}
    counts = batch.counts
    executable.outputs.lossless = batch.lossless

    def sent() -> Columns:
        connection.send(worker_protocol.SendAgain())
        while True:
            message = connection.receive()
            if isinstance(message, Execute) and message.again:
                return message.columns
            early.append(message)  # batches that were sent ahead

    started = perf_counter_ns()
    outcome: Outcome | None = None
    if executable.decodes:
        parts = executable.run_decoded(columns, counts, sent)
        started, infer_ns = started + parts.decode_ns, parts.infer_ns
        if len(parts.outcomes) == 1:
            outcome = parts.outcomes[0].outcome
    else:
        outcome = executable.outcome(columns, sum(counts))
        infer_ns = perf_counter_ns() - started
        if isinstance(outcome, Failure):
            parts = executable.run_again(sent, counts, outcome, infer_ns)
    if outcome is not None and not isinstance(outcome, Failure):
        try:
            rows = with_blobs(outcome) if batch.slab and executable.gives_bytes else outcome
            connection.add(worker_protocol.Result(rows, started, infer_ns), slab=batch.slab)
        except UNSENDABLE:
            parts = BatchParts([SharedOutcome(outcome, counts)], infer_ns, [sum(counts)])
        else:
            return
    try:
        connection.add(_part_results(parts, started), slab=batch.slab)
    except UNSENDABLE:  # find the requests whose rows cannot be sent
        name = executable.config.name
        parts.outcomes = [
            SharedOutcome(_checked(outcome, name), [count])
            for part in parts.outcomes
            for outcome, count in zip(part.scatter(), part.counts, strict=True)
        ]
        connection.add(_part_results(parts, started), slab=batch.slab)


def _part_results(parts: BatchParts, started: int) -> worker_protocol.PartResults:
    answers = [SharedOutcome(_to_send(part.outcome), part.counts) for part in parts.outcomes]
    return worker_protocol.PartResults(
        answers, started, parts.infer_ns, parts.executed_rows, parts.out_of_memory_rows
    )


def _to_send(outcome: Outcome) -> Outcome:
    return outcome.without_exception() if isinstance(outcome, Failure) else outcome


def _checked(outcome: Outcome, model: str) -> Outcome:
    for name, column in {} if isinstance(outcome, Failure) else outcome.items():
        if (reason := why_not_sent(column)) is not None:
            return Failure("BadModelOutput", str(unsendable(model, name, reason)))
    return outcome


def _generate(connection: MessageSocket, executable: Executable, batch: Generate) -> None:
    gone: set[int] = set()

    def respond(index: int, columns: Columns) -> bool:
        if index in gone:
            return False
        connection.add(Respond(index, columns))
        return True

    def after_each() -> None:
        connection.flush()
        while connection.readable():
            message = connection.receive()
            if isinstance(message, Cancel):
                gone.add(message.index)

    # Without the slab: the parent may read a response long after the next one is sent.
    columns, batch.columns = batch.columns, {}
    outcomes = stream(executable, columns, batch.counts, respond, after_each)
    ends = [o.without_exception() if isinstance(o, Failure) else None for o in outcomes]
    connection.add(worker_protocol.GenerateEnd(ends))


def _serve_steps(
    connection: MessageSocket,
    loop: StepLoop,
    running: AbstractContextManager[Any],
    device: Device,
) -> None:
    """Step while requests are active; between two steps requests join and leave."""
    connection.send(loop.progress(()))  # its gauges, before the first request
    while True:
        mail: list[worker_protocol.Join | worker_protocol.Leave] = []
        while connection.readable() or not (mail or loop.active_requests):
            message = connection.receive()
            if isinstance(message, worker_protocol.Stop):
                return
            if isinstance(message, Move):
                with running:
                    moved = _move(loop.model, message, device)
                connection.send(moved)
            elif isinstance(message, worker_protocol.Join | worker_protocol.Leave):
                mail.append(message)
        with running:
            progress = loop.progress(mail)
        for share in progress.shares:
            if share.failure is not None:
                share.failure = share.failure.without_exception()
        try:
            connection.send(progress)
        except UNSENDABLE:  # find the requests whose responses cannot be sent
            progress.shares = [_sendable(share, loop.config.name) for share in progress.shares]
            connection.send(progress)


def _sendable(share: Share, model: str) -> Share:
    for columns in share.responses:
        checked = _checked(columns, model)
        if isinstance(checked, Failure):
            return Share(share.key, failure=checked)
    return share


if __name__ == "__main__":
    main()
