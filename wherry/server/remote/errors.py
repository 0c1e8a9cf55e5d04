"""How does an error of the owner become the same error in a front?"""

from __future__ import annotations

from typing import Final

from wherry.core.api import InvalidRequest, WherryError, WorkerDied, errors
from wherry.server.remote.link_protocol import RowsRefused

#: The classes that every version of wherry knows, by name.
CLASSES: Final[dict[str, type[WherryError]]] = {
    name: cls
    for name, cls in vars(errors).items()
    if isinstance(cls, type) and issubclass(cls, WherryError)
}


def refused(model: int, ids: list[int], error: Exception) -> RowsRefused:
    """The message that these requests end with this error. Of another class than ours it is a
    defect: its text stays here."""
    if not isinstance(error, WherryError):
        error = WherryError("internal error; see the server's log")
    name = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in CLASSES)
    known = CLASSES[name]
    return RowsRefused(
        model,
        ids,
        name,
        str(error),
        error.retry_after,
        error.field if isinstance(error, InvalidRequest) else None,
        error.reached if isinstance(error, WorkerDied) else True,
        0 if error.http_status == known.http_status else error.http_status,
        "" if error.grpc_code == known.grpc_code else error.grpc_code,
    )


def error_of(message: RowsRefused) -> WherryError:
    """The error that a message tells of; a WherryError if its class is not known here."""
    cls = CLASSES.get(message.error, WherryError)
    error = cls.__new__(cls)  # each constructor has arguments of its own
    error.args = (message.text,)
    error.retry_after = message.retry_after
    if message.http_status:
        error.http_status = message.http_status
    if message.grpc_code:
        error.grpc_code = message.grpc_code
    if isinstance(error, InvalidRequest):
        error.field = message.field
    elif isinstance(error, WorkerDied):
        error.reached = message.reached
    return error
