"""How does a model's code call other models, load or unload them, or read a metric?

Calls pass through the Runtime and the called model's batcher, as any caller's do. Nothing here
waits: answers arrive in any thread and are passed to `post`, which sends them.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Protocol

from wherry.core.api import (
    Columns,
    InferRequest,
    InferResponse,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    ModelNotReady,
    Reply,
    RequestTimeoutExpired,
    SequenceStep,
    Signature,
    StreamReply,
    Unsupported,
    WherryError,
    are_large,
    trace_below,
)
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.python.request_codec import code_of, fits, get, put
from wherry.triton.python.stub.pb_utils import TritonError
from wherry.triton.python.stub.wire import Incoming, Outgoing

_SEQUENCE_START, _SEQUENCE_END = 1, 2


class Host(Protocol):
    """The parts of the Runtime that Python models use. `control` is its ModelControl, if it has
    one; `ports.workers` knows the event loop of worker processes."""

    control: Any
    ports: Any
    clock: Callable[[], float]

    def model(self, name: str, version: str | None = None) -> Any: ...
    def models(self) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """A message that answers a call.

    `body(out)` builds the response with its tensors; None: an end without a response. `large`:
    building it takes long.
    """

    key: int
    final: bool
    body: Callable[[Outgoing], list[Any]] | None
    large: bool = False

    def build(self, out: Outgoing) -> list[Any]:
        return ["answer", self.key, self.final, None if self.body is None else self.body(out)]

    def refused(self, error: Exception) -> CallAnswer:
        """The message to send instead if `build` raised `error`."""
        text = f"the answer cannot be sent: {error}"
        return CallAnswer(self.key, True, lambda _: [[TritonError.INTERNAL, text], "{}", []])


@dataclass(frozen=True, slots=True)
class Called:
    loaded: Any
    columns: Columns
    rows: int


@dataclass(slots=True)
class _Ended:
    by_response: bool = False


class Calls:
    """The unanswered calls of one instance."""

    def __init__(self, host: Host, model: str, post: Callable[[CallAnswer], None]) -> None:
        self._host = host
        self._model = model
        self._post = post
        self._lock = threading.Lock()
        self._open: dict[int, tuple[Any, InferRequest]] = {}
        #: The models that the running execute() waits for, by call.
        self._awaited: dict[int, str] = {}

    @property
    def awaited(self) -> Counter[str]:
        """The models that the running execute() waits for, with counts."""
        with self._lock:
            return Counter(self._awaited.values())

    def decoded(
        self, what: Sequence[Any], inputs: Sequence[Any], incoming: Incoming
    ) -> Called | WherryError:
        """The call of a message, or why it fails. In any thread."""
        name, version, *_ = what
        try:
            loaded = self._called(name, None if version < 0 else str(version))
            batched = loaded.config.max_batch_size > 0
            return Called(loaded, *_columns(loaded, inputs, incoming, batched))
        except WherryError as error:
            return error
        except (ValueError, TypeError, OverflowError) as error:
            return InvalidRequest(f"model {name!r}: {error}")

    # Requests of the model. In the event loop of its process.

    def begin(
        self,
        key: int,
        what: Sequence[Any],
        called: Called | WherryError,
        traced: InferRequest | None = None,
    ) -> None:
        """Run another model, as part of the trace of the request `traced`, if there is one."""
        try:
            if isinstance(called, WherryError):
                raise called
            self._begin(key, what, called, traced)
        except WherryError as error:
            self._fail(key, error)
        except (ValueError, TypeError, OverflowError) as error:
            self._fail(key, InvalidRequest(f"model {what[0]!r}: {error}"))

    def control(
        self, key: int, what: str, model: str, version: str, files: Any, incoming: Incoming
    ) -> None:
        if what == "ready":
            self.answer(key, self._is_ready(model, version))
            return
        thread = threading.Thread(
            target=self._control, args=(key, what, model, version, files, incoming), daemon=True
        )
        thread.start()

    def cancel(self, key: int) -> None:
        """Cancel a call. A Python model that runs it is notified and decides how it ends, as in
        Triton; the last response of any other is the error CANCELLED."""
        with self._lock:
            loaded, request = self._open.get(key, (None, None))
        if loaded is None:
            return
        if not any(instance.cancel(request) for instance in loaded.runner.instances):
            loaded.cancel(request)

    def drop(self, key: int) -> None:
        loaded, request = self._forget(key)
        if loaded is not None:
            loaded.cancel(request)

    @property
    def are_open(self) -> bool:
        return bool(self._open)

    def drop_all(self) -> None:
        """Cancel all calls: the instance has ended."""
        for key in list(self._open):
            self.drop(key)

    # Parts

    def _called(self, name: str, version: str | None) -> Any:
        try:
            return self._host.model(name, version)
        except (ModelNotFound, ModelNotReady) as error:
            text = f"Failed for execute the inference request. Model '{name}' is not ready."
            raise type(error)(f"{text} Error when running inference: {error}") from None

    def _reply(self, key: int, loaded: Any, names: Any) -> Reply[InferResponse]:
        if not loaded.signature.streams:
            return Reply(lambda done: self._done(key, loaded, done, names))
        ended = _Ended()
        return StreamReply(
            lambda stream, response: self._response(key, loaded, response, names, stream, ended),
            lambda done: self._ended(key, done, ended),
        )

    def _begin(
        self, key: int, what: Sequence[Any], called: Called, traced: InferRequest | None
    ) -> None:
        (
            name,
            _,
            id,
            correlation_id,
            flags,
            timeout,
            parameters,
            requested_outputs,
            streams,
            *more,
        ) = what
        waits, made, _ = more
        loaded = called.loaded
        _check_call(name, loaded.signature, requested_outputs, streams=streams)
        if timeout and perf_counter_ns() - made > timeout * 1000:  # the way here counts
            raise RequestTimeoutExpired(name, timeout * 1e-6)
        names = requested_outputs or None
        request = loaded.request(
            called.columns,
            called.rows,
            self._reply(key, loaded, names),
            id=id,
            timeout=timeout * 1e-6 if timeout else None,
            parameters=json.loads(parameters) or None,
            sequence=_step(correlation_id, flags),
            requested_outputs=names,
        )
        if traced is not None:
            trace_below(traced, request, loaded, self._host.clock)
        with self._lock:
            self._open[key] = (loaded, request)
            if waits:
                self._awaited[key] = name
        if waits and not self._can_answer(name):
            with self._lock:
                del self._open[key], self._awaited[key]
            raise ModelNotReady(
                f"model {self._model!r} calls model {name!r}, which would never answer: all its"
                " instances wait for an answer of their own calls; give it more instances, or"
                " break the circle"
            )
        loaded.submit([request])

    def _can_answer(self, name: str) -> bool:
        """Whether this model has an instance, now or later, that is not in a deadlock.

        An instance is in a deadlock if every model that it waits for has no instance that could
        answer.
        """
        waiting: dict[str, list[Counter[str]]] = {}
        for loaded in self._host.models():
            waiting.setdefault(loaded.name, []).extend(_waits_of(loaded))
        answering = {
            name for name, instances in waiting.items() if not instances or not all(instances)
        }
        while True:
            more = {
                name
                for name, instances in waiting.items()
                if name not in answering
                and any(answering.issuperset(awaited) for awaited in instances)
            }
            if not more:  # a model that is gone by now gives its own error
                return name in answering or name not in waiting
            answering |= more

    def _response(
        self,
        key: int,
        loaded: Any,
        response: InferResponse,
        requested_outputs: Sequence[str] | None,
        stream: StreamReply[InferResponse],
        ended: _Ended,
    ) -> None:
        ended.by_response = response.final

        def body(out: Outgoing) -> list[Any]:
            stream.consumed()
            return _body(out, loaded, response, requested_outputs)

        self._post(CallAnswer(key, False, body, are_large([response.outputs])))

    def _ended(self, key: int, reply: Reply[InferResponse], ended: _Ended) -> None:
        self._forget(key)
        if isinstance(reply.outcome, Exception):
            self._fail(key, reply.outcome)
        elif ended.by_response:
            self._post(CallAnswer(key, True, None))
        else:  # as in Triton, a final flag alone is a response without outputs
            self.answer(key, "{}")

    def _done(
        self,
        key: int,
        loaded: Any,
        reply: Reply[InferResponse],
        requested_outputs: Sequence[str] | None,
    ) -> None:
        self._forget(key)
        outcome = reply.outcome
        if isinstance(outcome, Exception):
            self._fail(key, outcome)
        else:
            large = are_large([outcome.outputs])
            answer = CallAnswer(
                key, True, lambda out: _body(out, loaded, outcome, requested_outputs), large
            )
            self._post(answer)

    def _forget(self, key: int) -> tuple[Any, InferRequest | None]:
        with self._lock:
            self._awaited.pop(key, None)
            return self._open.pop(key, (None, None))

    def _fail(self, key: int, error: Exception) -> None:
        self._post(CallAnswer(key, True, lambda _: [[code_of(error), str(error)], "{}", []]))

    def answer(self, key: int, value: Any) -> None:
        """Answer a call that is not an infer request."""
        self._post(CallAnswer(key, True, lambda _: [None, value, []]))

    def _control(
        self, key: int, what: str, model: str, version: str, sent: Any, incoming: Incoming
    ) -> None:
        try:
            files = {name: bytes(incoming.get(*where)) for name, _, _, *where in sent}
            control = self._host.control
            if control is None:
                raise ModelNotReady("this server has no model repository to load from")
            if what == "load":
                config = files.pop("config", None)
                named = {name.removeprefix("file:"): data for name, data in files.items()}
                changes = None if config is None else json.loads(config)
                control.load(model, changes, files=named or None)
            else:
                control.unload(model, dependents=bool(version))
        except WherryError as error:
            self._fail(key, error)
        except Exception as error:  # noqa: BLE001 - reported to the calling model
            self._fail(key, ModelFailed(f"{type(error).__name__}: {error}"))
        else:
            self.answer(key, "")

    def _is_ready(self, model: str, version: str) -> bool:
        try:
            return not self._host.model(model, version or None).not_ready_reason()
        except (ModelNotFound, ModelNotReady):
            return False


def _waits_of(loaded: Any) -> Iterator[Counter[str]]:
    """For each instance of a model the models that it waits for. An ensemble counts as one that
    waits for its members."""
    model = loaded.model
    if isinstance(model, RepositoryModel) and model.triton.ensemble_scheduling is not None:
        yield Counter(step.model_name for step in model.triton.ensemble_scheduling.step)
    for instance in loaded.runner.instances:
        calls = getattr(instance, "calls", None)
        yield Counter() if calls is None else calls.awaited


def _columns(
    loaded: Any, inputs: Sequence[Any], incoming: Incoming, batched: bool
) -> tuple[Columns, int]:
    signature: Signature = loaded.signature
    _check_names(loaded.name, signature, [descriptor[0] for descriptor in inputs])
    columns: Columns = {}
    rows = 0
    for descriptor in inputs:
        name = descriptor[0]
        spec = signature.input(name)
        assert spec is not None
        if descriptor[1] != spec.datatype.name:
            raise InvalidRequest(
                f"inference input {name!r} data-type is '{descriptor[1]}', but model"
                f" {loaded.name!r} expects '{spec.datatype.name}'"
            )
        try:
            column, count = get(descriptor, incoming, spec, batched=batched)
        except ValueError as error:
            raise InvalidRequest(f"input {name!r} of model {loaded.name!r}: {error}") from None
        if not fits(column, spec) or not count:
            raise InvalidRequest(
                f"unexpected shape for input {name!r} for model {loaded.name!r}. Expected"
                f" {[*([-1] if batched else []), *spec.shape]}, got {descriptor[2]}"
            )
        if columns and rows != count:
            raise InvalidRequest(
                f"input {name!r} of model {loaded.name!r} has {count} rows, others have {rows}"
            )
        rows = count
        columns[name] = column
    return columns, rows


def _check_names(model: str, signature: Signature, names: Sequence[str]) -> None:
    for name in names:
        if signature.input(name) is None:
            raise InvalidRequest(f"unexpected inference input {name!r} for model {model!r}")
    required = [spec.name for spec in signature.inputs if not spec.optional]
    missing = [name for name in required if name not in names]
    if missing or not names:
        raise InvalidRequest(
            f"expected {len(required)} inputs but got {len(names)} inputs for model '{model}'. Got"
            f" input(s) {list(names)}, but missing required input(s)"
            f" {missing or [spec.name for spec in signature.inputs]}. Please provide all required"
            " input(s)."
        )


def _body(
    out: Outgoing, loaded: Any, response: InferResponse, requested_outputs: Sequence[str] | None
) -> list[Any]:
    batched = loaded.config.max_batch_size > 0
    try:
        outputs = [
            put(out, spec, response.outputs[spec.name], spec.shape, batched=batched)
            for spec in loaded.signature.outputs
            if spec.name in response.outputs
            and (requested_outputs is None or spec.name in requested_outputs)
        ]
    except (ValueError, TypeError) as error:  # rows of different shapes do not form a tensor
        problem = f"model {loaded.name!r}: its outputs are not tensors: {error}"
        return [[code_of(error), problem], "{}", []]
    return [None, json.dumps(dict(response.parameters or {})), outputs]


def _check_call(
    name: str, called: Signature, requested_outputs: Sequence[str], *, streams: bool
) -> None:
    """Raise InvalidRequest for an output that the model has not, and Unsupported for one response
    of a model that streams."""
    for output in requested_outputs:
        if called.output(output) is None:
            raise InvalidRequest(
                f"unexpected inference output {output!r} for model {name!r}; it has"
                f" {', '.join(spec.name for spec in called.outputs)}"
            )
    if called.streams and not streams:
        raise Unsupported(
            f"model {name!r} is decoupled: call it with exec(decoupled=True) or"
            " async_exec(decoupled=True)"
        )


def _step(correlation_id: int | str, flags: int) -> SequenceStep | None:
    if not correlation_id:
        return None
    return SequenceStep(
        correlation_id, start=bool(flags & _SEQUENCE_START), end=bool(flags & _SEQUENCE_END)
    )
