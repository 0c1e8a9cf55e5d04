"""Which errors can a caller see, who must act, and which codes do they carry on the wire?

A frontend reads the codes from the class and never looks at types. Messages name the model, the
field and the remedy; they hold no paths and no tracebacks.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any


class Tag(Enum):
    """What an error is about, where other servers have another code for that than its class has."""

    #: A request's JSON, or the kind of a value in it.
    JSON = auto()
    #: What tritonserver calls a failure of its own.
    INTERNAL = auto()


#: Seconds after which a refused client may try again, where nothing is known of when.
SOON = 1.0


class WherryError(Exception):
    """Base class of all errors that wherry raises deliberately."""

    http_status = 500
    grpc_code = "INTERNAL"
    #: Seconds to wait before a retry (the Retry-After header); None: unknown.
    retry_after: float | None = None
    #: The reason of the failure in the metrics: one of Triton's four.
    reason = "OTHER"
    tag: Tag | None = None
    #: How the message ends: the place of the fault, and what to do about it.
    more = ""

    def __init__(self, *args: object, tag: Tag | None = None, more: str = "") -> None:
        if more:
            self.more = more
            args = (f"{args[0]}{more}",)
        super().__init__(*args)
        if tag is not None:
            self.tag = tag

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the constructor, which makes the message of several classes: a process pool that
        # cannot read an error back breaks, or waits for ever.
        return _restored, (type(self), self.args, self.__dict__)


class ConfigError(WherryError, ValueError):
    """A model, a configuration or an option is wrong: its author must change it."""

    http_status = 400
    grpc_code = "INVALID_ARGUMENT"


class InvalidRequest(WherryError, ValueError):
    """The request is malformed. A model's own code may raise it too: its caller gets status 400."""

    http_status = 400
    grpc_code = "INVALID_ARGUMENT"

    def __init__(
        self,
        *args: object,
        field: str | None = None,
        tag: Tag | None = None,
        more: str = "",
    ) -> None:
        super().__init__(*args, tag=tag, more=more)
        #: The input or parameter at fault, if it is a single one.
        self.field = field


class RequestTooLarge(InvalidRequest):
    """The request, once decoded, is larger than the server accepts."""

    http_status = 413


class UnsupportedMediaType(InvalidRequest):
    """The body is of a media type from which this model can take nothing."""

    http_status = 415


class NotAcceptable(InvalidRequest):
    """The answer has no form that the caller accepts."""

    http_status = 406


class PromptTooLong(InvalidRequest):
    """A language model's context does not hold the prompt and at least one token more."""


class AdapterNotFound(InvalidRequest):
    """The language model has no adapter of this name: to its callers that is a model's name."""

    http_status = 404
    grpc_code = "NOT_FOUND"


class AlreadyRegistered(InvalidRequest):
    """A shared memory region of this name is registered; unregister it first."""

    grpc_code = "ALREADY_EXISTS"


class AccessDenied(WherryError):
    """This part of the server requires a header that the request lacks."""

    http_status = 403
    grpc_code = "PERMISSION_DENIED"


class Unsupported(WherryError):
    """The model or the protocol has no such feature."""

    http_status = 501
    grpc_code = "UNIMPLEMENTED"


class ModelNotFound(WherryError, LookupError):
    """No model of that name (and version) is loaded."""

    http_status = 404
    grpc_code = "NOT_FOUND"


class RegionNotFound(WherryError, LookupError):
    """No shared memory region of that name is registered."""

    http_status = 404
    grpc_code = "NOT_FOUND"


class Overloaded(WherryError):
    """The server or model is overloaded; the request was refused before it was queued."""

    http_status = 429
    grpc_code = "RESOURCE_EXHAUSTED"
    reason = "REJECTED"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = SOON if retry_after is None else retry_after


class QueueFull(Overloaded):
    """The model's queue has `max_queue_size` requests; this one was not queued."""

    def __init__(self, model: str, size: int, retry_after: float | None = None) -> None:
        super().__init__(
            f"model {model!r}: queue is full ({size} requests waiting);"
            " retry later, or raise max_queue_size or the instance count",
            retry_after,
        )


class QueueLimitExceeded(QueueFull):
    """The model's queue is full, with Triton's status and message."""

    http_status = 503
    grpc_code = "UNAVAILABLE"

    def __init__(self, id: str, model: str, size: int, retry_after: float | None = None) -> None:
        super().__init__(model, size, retry_after)
        self.args = (f"[request id: {id or '<id_unknown>'}] Exceeds maximum queue size",)


class TooManyBytes(Overloaded):
    """Waiting and running requests hold as many bytes as allowed; this one was not queued."""

    http_status = 503
    grpc_code = "UNAVAILABLE"

    def __init__(self, owner: str, setting: str, held: int, limit: int, more: int) -> None:
        super().__init__(
            f"{owner}: the requests that wait or run hold {held} of {limit} bytes ({setting}), this"
            f" one would need {more} more; retry later, or raise {setting}",
            1.0,
        )


class ServerBusy(Overloaded):
    """Large bodies being read or written hold as many bytes as allowed; retry later."""

    http_status = 503
    grpc_code = "UNAVAILABLE"


class QueueTimeout(Overloaded):
    """The request waited as long as `queue_policies` allow and was not run."""

    def __init__(self, model: str, seconds: float) -> None:
        super().__init__(
            f"model {model!r}: no instance was free within {seconds:.3f} s (queue_policies);"
            " retry later, or add instances"
        )


class RequestTimeoutExpired(QueueTimeout):
    """The request waited too long, with Triton's status and message."""

    http_status = 503
    grpc_code = "UNAVAILABLE"

    def __init__(self, model: str, seconds: float) -> None:
        super().__init__(model, seconds)
        self.args = ("Request timeout expired",)


class ModelNotReady(WherryError):
    """The model is loading, unloading or has failed; which of them is in the message."""

    http_status = 503
    grpc_code = "UNAVAILABLE"
    #: The default: a load may end at any moment.
    retry_after: float | None = SOON


class LoadFailed(ModelNotReady):
    """The model could not be loaded; in-process, `__cause__` is what its code raised."""

    retry_after = None


class SequenceLost(WherryError):
    """An earlier request of the sequence was not run, or its worker has died; start the sequence
    again."""

    http_status = 503
    grpc_code = "UNAVAILABLE"
    retry_after = SOON


class DeadlineExceeded(WherryError, TimeoutError):
    """The request was not finished within its timeout."""

    http_status = 504
    grpc_code = "DEADLINE_EXCEEDED"
    reason = "REJECTED"


class Cancelled(WherryError):
    """The caller cancelled the request or disconnected."""

    http_status = 499
    grpc_code = "CANCELLED"
    reason = "CANCELED"


class ModelFailed(WherryError):
    """The model's own code raised; in-process, `__cause__` is its exception."""

    reason = "BACKEND"


class BadModelOutput(ModelFailed):
    """The model returned something other than its signature declares."""


class WorkerDied(WherryError):
    """The worker process that ran the request ended before it answered."""

    http_status = 503
    grpc_code = "UNAVAILABLE"
    reason = "BACKEND"
    retry_after: float | None = SOON
    #: Whether the worker may have received the request. If not, to run it elsewhere is not a retry.
    reached = True
    #: An instance of another model has ended the process that they share: nothing is held against
    #: this one or its requests.
    innocent = False
    #: No other instance that shares the process may have ended it.
    alone = True
    #: The cause in the metrics: a signal's name, or one word.
    cause = "exit"


class MayHaveRun(WorkerDied):
    """The worker died with a request of a model with `run_again=False`: whether it has run is not
    known. Proxies and clients do not retry this status by themselves."""

    http_status = 500
    grpc_code = "INTERNAL"
    retry_after = None


class PoisonRequest(WorkerDied):
    """The request has crashed the workers that ran it and is refused for a while."""

    http_status = 422
    grpc_code = "FAILED_PRECONDITION"
    reason = "REJECTED"
    retry_after = None


class ExecutionTimeout(WorkerDied):
    """The batch ran longer than the model's `execution_timeout`."""

    http_status = 504
    grpc_code = "DEADLINE_EXCEEDED"
    retry_after = None


def _restored(cls: type[WherryError], args: tuple[Any, ...], state: dict[str, Any]) -> WherryError:
    error = cls.__new__(cls, *args)
    error.args = args  # a TimeoutError's are set by its constructor
    error.__dict__.update(state)
    return error


#: Errors that worker processes report by name; others arrive as ModelFailed.
BY_NAME: dict[str, type[WherryError]] = {
    cls.__name__: cls
    for cls in (
        InvalidRequest,
        RequestTooLarge,
        PromptTooLong,
        AdapterNotFound,
        Unsupported,
        ModelFailed,
        BadModelOutput,
    )
}
