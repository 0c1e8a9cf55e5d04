"""What does the process of a Python model do, from its start to its end?

It imports the model's file and completes its configuration. At the server's messages it initializes
the model and calls execute() with lists of requests, until "stop" or the server's end.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from mmap import mmap
from time import perf_counter_ns
from typing import Any, Iterator  # noqa: UP035 - for Python 3.8

from . import pb_utils
from .forks import end_forked_at_sigterm
from .link import Link
from .model_files import import_model
from .text import clean, received, write_record
from .wire import SLAB_BYTES, Channel

#: What `np.char` raises for the array of a string tensor.
_NO_STRINGS = "TypeError: string operation on non-string array"


def main(source: int, target: int, slab: int, parent: int) -> None:
    """Run a model: `source`, `target` and `slab` are descriptors of the sockets to receive from and
    to send to, and of the memory shared with the server, which is the process `parent`."""
    gc.freeze()  # as in wherry's own workers: no collection walks the imports, not even at exit
    _live_and_die_with(parent, source)
    faulthandler.enable()
    ends = [socket.socket(fileno=descriptor) for descriptor in (source, target)]
    for end in ends:
        end.set_inheritable(False)  # a child of the model must not keep the connection open
    channel = Channel(*ends)
    memory = mmap(slab, SLAB_BYTES)
    os.close(slab)
    try:
        ((message, _),) = channel.receive()
    except (EOFError, OSError):
        os._exit(1)
    worker = Worker(channel, memory, message[2])
    if worker.open():
        worker.serve()


def _live_and_die_with(parent: int, descriptor: int) -> None:
    """Ignore signals sent to the process group (Ctrl-C, a terminal's end, SIGTERM of a shell): the
    server drains and then sends "stop". End when the server ends, even during the model's code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A handler, not SIG_IGN, which children of the model would inherit.
        signal.signal(number, lambda *_: None)
    end_forked_at_sigterm()
    if os.getppid() != parent:
        os._exit(1)
    if hasattr(select, "POLLRDHUP"):
        # Not PR_SET_PDEATHSIG, which is sent when the thread that started us ends.
        threading.Thread(target=_end_with, args=(descriptor,), daemon=True).start()


def _end_with(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    poll.poll()
    os._exit(1)


class Worker:
    """One instance of one model, in its process."""

    def __init__(self, channel: Channel, memory: Any, start: dict[str, Any]) -> None:
        self._start = start
        self._link = Link(channel, memory, start["model"], received(start["model_dir"]))
        self._model: Any = None
        self._class: Any = None
        self._is_async = False
        self._decoupled = False
        self._instance = ""
        self._runner: Any = None

    # Before it serves

    def open(self) -> bool:
        _set_up(self._start)
        pb_utils._server = self._link
        for name in ("triton_python_backend_utils", "c_python_backend_utils"):
            sys.modules[name] = pb_utils
        completed: str | None = None
        try:
            start = self._start
            path = [received(folder) for folder in start["path"]]
            module = import_model(start["module"], received(start["file"]), path)
            if "logging" in sys.modules:
                _log_to_server(self._start["log_level"])
            self._class = getattr(module, "TritonPythonModel", None)
            if self._class is None:
                raise AttributeError("it has no class TritonPythonModel" + _hint())
            complete = getattr(self._class, "auto_complete_config", None)
            if self._start["config"] is not None and complete is not None:
                completed = _completed(complete, start["config"], start["model"])
        except BaseException as error:  # noqa: BLE001 - the model's code: a panic is not an Exception
            self._link.outbox.send(["failed", *_described(error)])
            return False
        self._link.outbox.send(["opened", completed])
        return True

    def _initialize(self, arguments: dict[str, str], output_names: list[str]) -> bool:
        config = json.loads(arguments["model_config"])
        arguments["model_repository"] = received(arguments["model_repository"])
        link = self._link
        link.decoupled = self._decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        link.output_names = output_names
        self._instance = arguments["model_instance_name"]
        try:
            self._model = self._class()
            execute = getattr(self._model, "execute", None)
            if execute is None:
                raise AttributeError("TritonPythonModel has no execute()")
            self._is_async = _is_coroutine_function(execute)
            initialize = getattr(self._model, "initialize", None)
            if initialize is not None:
                initialize(arguments)
            if "logging" in sys.modules:
                _log_to_server(self._start["log_level"])
        except BaseException as error:  # noqa: BLE001 - the model's code: a panic is not an Exception
            self._link.outbox.send(["failed", *_described(error)])
            return False
        self._link.serving = True
        self._link.outbox.send(["ready", hasattr(self._model, "is_ready"), _may_call()])
        return True

    # While it serves

    def serve(self) -> None:
        while True:
            if self._runner is not None and self._runner.busy():
                self._runner.run(self._go_on())
            message, incoming = self._link.next_work()
            kind = message[0]
            if kind == "initialize":
                if not self._initialize(message[2], message[3]):
                    return
            elif kind == "stop":
                break
            elif kind == "is_ready":
                self._send_readiness()
            elif kind == "execute":
                if self._is_async and self._decoupled:
                    self._link.work.appendleft((message, incoming))
                    self._run_in_loop(self._serve_loop())
                    continue  # the next message is why it ended
                self._execute(message, incoming)
            message = incoming = None  # type: ignore[assignment]
        self._finalize()
        if self._runner is not None:
            self._runner.close()

    def _run_in_loop(self, awaitable: Any) -> Any:
        if self._runner is None:
            self._runner = _Loop()
        return self._runner.run(awaitable)

    def _finalize(self) -> None:
        self._link.serving = False
        finalize = getattr(self._model, "finalize", None)
        if finalize is not None:
            try:
                finalize()
            except BaseException:  # noqa: BLE001 - the model's code
                sys.stderr.write("finalize() failed:\n" + traceback.format_exc())

    def _send_readiness(self) -> None:
        try:
            ready = self._model.is_ready()
            if hasattr(ready, "__await__"):
                ready = self._run_in_loop(ready)
            if not isinstance(ready, bool):
                raise TypeError(f"it must return a bool, not a {type(ready).__name__}")
        except BaseException:  # noqa: BLE001 - the model's code
            sys.stderr.write("is_ready() failed:\n" + traceback.format_exc())
            ready = False
        self._link.outbox.send(["is_ready", ready])

    def _execute(self, message: list[Any], incoming: Any) -> None:
        requests: Any = self._link.requests(message[2], incoming)
        started = perf_counter_ns()
        self._link.executing = True
        failure: list[str] | None = None
        outcomes: list[Any]
        try:
            result = self._model.execute(requests)
            if result.__class__ is not list and hasattr(result, "__await__"):
                result = self._run_in_loop(result)
            outcomes = self._outcomes(result, requests)
        except BaseException as error:  # noqa: BLE001 - the model's code: a panic is not an Exception
            failure = self._failure(error)
            outcomes = ["failed" if request._end() else None for request in requests]
        finally:
            self._link.executing = False
        ns = perf_counter_ns() - started
        requests = result = None
        try:
            self._link.executed(started, ns, failure, outcomes)
        except (ValueError, TypeError) as error:  # a response cannot be sent
            self._link.end(key for key, *_ in message[2])
            self._link.executed(started, ns, self._failure(error), ["failed"] * len(message[2]))

    def _failure(self, error: BaseException) -> list[str]:
        """The error message for the callers, beginning like Triton's, and the traceback."""
        kind, text, trace = _described(error)
        if not isinstance(error, _WrongAnswer):
            text = f"{kind}: {text}"
        if text == _NO_STRINGS:
            text += " (a tensor's strings are an array of objects: write .astype(bytes) before)"
        instance = f"model instance '{self._instance}'"
        return [f"Failed to process the request(s) for {instance}, message: {text}", trace]

    def _outcomes(self, result: Any, requests: list[Any]) -> list[Any]:
        if result is None:
            return [request._leave() for request in requests]
        if self._decoupled:
            raise _WrongAnswer(
                f"Python model '{self._instance}' is using the decoupled mode and the execute"
                " function must return None."
            )
        if not isinstance(result, (list, tuple)):
            raise _WrongAnswer(f"Expected a list in the execute return, found type {type(result)}")
        if len(result) != len(requests):
            raise _WrongAnswer(
                "Number of InferenceResponse objects do not match the number of InferenceRequest"
                f" objects: execute() returned {len(result)} for {len(requests)} requests"
            )
        for response in result:
            if response is not None and not isinstance(response, pb_utils.InferenceResponse):
                raise _WrongAnswer(
                    "Expected an 'InferenceResponse' object in the execute function return list,"
                    f" found type {type(response)}"
                )
        outcomes: list[Any] = []
        for request, response in zip(requests, result):  # noqa: B905 - Python 3.8 has no strict
            if response is None:
                outcomes.append(request._leave())
                continue
            if request._release == pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
                raise _WrongAnswer(  # Triton's spelling
                    "Expected a None object in the execute function return list for reschduled"
                    " request"
                )
            if not request._end():
                raise _WrongAnswer(
                    "execute() returned a response for a request that its response sender had"
                    " answered"
                )
            outcomes.append(response)
        return outcomes

    # async def execute

    @contextlib.contextmanager
    def _watching(self, loop: Any, arrived: Any) -> Iterator[None]:
        """Let the loop read the connection, and set `arrived` when there is work."""
        self._link.on_work = lambda: loop.call_soon_threadsafe(arrived.set)
        self._link.inbox.watch(loop)
        try:
            yield
        finally:
            self._link.on_work = None
            self._link.inbox.unwatch(loop)

    async def _go_on(self) -> None:
        """Run the tasks that execute() left in the loop, until there is work or all are done."""
        import asyncio

        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        with self._watching(loop, arrived):
            while not self._link.work:
                tasks = asyncio.all_tasks() - {asyncio.current_task()}
                if not tasks:
                    return
                arrived.clear()
                for task in tasks:
                    task.add_done_callback(lambda _: arrived.set())
                await arrived.wait()

    # Decoupled models: several lists of requests at a time

    async def _serve_loop(self) -> None:
        """Start each list of requests as a task, until another message comes."""
        import asyncio

        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        tasks: set[Any] = set()
        with self._watching(loop, arrived):
            while True:
                while self._link.work:
                    if self._link.work[0][0][0] != "execute":
                        if self._link.work[0][0][0] == "is_ready":
                            self._link.work.popleft()
                            self._send_readiness()
                            continue
                        if tasks:
                            await asyncio.wait(tasks)
                        return
                    task = loop.create_task(self._run(*self._link.work.popleft()))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                arrived.clear()
                if not self._link.work:
                    await arrived.wait()

    async def _run(self, message: list[Any], incoming: Any) -> None:
        requests = self._link.requests(message[2], incoming)
        incoming = None
        # Made here, before a cancellation may be forgotten.
        senders = [request.get_response_sender() for request in requests]
        started = perf_counter_ns()
        # Reported now, so that the server sends the next list.
        self._link.executed(started, 0, None, [None] * len(requests))
        try:
            outcomes = self._outcomes(await self._model.execute(requests), requests)
            if "again" in outcomes:
                raise _WrongAnswer(
                    "an `async def execute` of a decoupled model cannot reschedule a request"
                )
        except BaseException as error:  # noqa: BLE001 - the model's code: a panic is not an Exception
            text, trace = self._failure(error)
            sys.stderr.write(trace)
            failed = pb_utils.InferenceResponse(error=pb_utils.TritonError(text))
            for sender in senders:
                with contextlib.suppress(pb_utils.TritonModelException):  # it has ended
                    sender.send(failed, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class _Loop:
    def __init__(self) -> None:
        import asyncio

        self._loop = asyncio.new_event_loop()
        self._tasks = asyncio.all_tasks
        asyncio.set_event_loop(self._loop)

    def run(self, awaitable: Any) -> Any:
        return self._loop.run_until_complete(awaitable)

    def busy(self) -> bool:
        return bool(self._tasks(self._loop))

    def close(self) -> None:
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


def _hint() -> str:
    """A hint for users of Triton's experimental platform "pytorch"."""
    if "torch" not in sys.modules:
        return ""
    return (
        "; a torch.nn.Module alone cannot be served: wrap it in one, or save it as TorchScript or"
        " with torch.export, for the backend pytorch"
    )


def _may_call() -> bool:
    """Whether a module that imports ours refers to what calls other models. Not one that is
    imported later."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        if names is pb_utils.__dict__ or not any(value is pb_utils for value in names.values()):
            continue
        if names.get("__package__") == __package__:
            continue
        try:
            with open(names["__file__"], "rb") as file:
                if b"InferenceRequest" in file.read():
                    return True
        except (KeyError, TypeError, OSError):
            return True
    return False


def _is_coroutine_function(function: Any) -> bool:
    """inspect.iscoroutinefunction without importing inspect."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and bool(code.co_flags & 0x80)


class _WrongAnswer(Exception):
    """execute() returned something invalid."""


def _completed(complete: Any, config: str, model: str) -> str:
    completed = pb_utils.ModelConfig(config)
    returned = complete(completed)
    if not isinstance(returned, pb_utils.ModelConfig):
        raise TypeError(
            f"auto_complete_config function in model '{model}' must return a valid pb.ModelConfig"
            f" object: the one that it gets, not a {type(returned).__name__}"
        )
    return json.dumps(returned.as_dict())


def _described(error: BaseException) -> list[str]:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - from the user's __str__
        text = "<its str() raised>"
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return [type(error).__name__, clean(text), clean("".join(lines))]


def _set_up(start: dict[str, Any]) -> None:
    for name, value in start["variables"].items():  # restored for what the model starts
        os.environ.pop(name, None)
        if value:
            os.environ[name] = received(value)
    sys.argv[:] = [""]  # as in Triton; not the server's arguments
    # Line-buffered as on a terminal, although it is a pipe.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _log_to_server(level: int) -> None:
    """Send records of Python's logging to the server's log."""
    import logging

    if any(isinstance(handler, logging.StreamHandler) for handler in logging.root.handlers):
        return  # the model has configured logging

    class Handler(logging.Handler):
        def emit(self, record: Any) -> None:
            if _is_written(record.name):
                return
            text = ""
            if record.exc_info:
                text = logging.Formatter().formatException(record.exc_info)
            write_record(
                {
                    "level": record.levelno,
                    "logger": record.name,
                    "message": record.getMessage(),
                    "created": record.created,
                    "traceback": text,
                }
            )

    if not logging.root.handlers:
        logging.root.addHandler(Handler())
        logging.root.setLevel(level)


def _is_written(name: str) -> bool:
    """Whether the logger has a handler of its own, as libraries give theirs, whose lines the server
    logs as well."""
    import logging

    logger: Any = logging.getLogger(name)
    while logger is not None and logger is not logging.root:
        for handler in logger.handlers:
            if getattr(handler, "stream", None) in (sys.stderr, sys.stdout):
                return True
        logger = logger.parent
    return False
