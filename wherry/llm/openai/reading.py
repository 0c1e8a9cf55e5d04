"""How is a body read, here or in another thread, before its request begins?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from wherry.core.api import Buffer
from wherry.llm.openai.errors import ErrorForm, error_object, fail
from wherry.llm.openai.fields.decoding import header_of
from wherry.server.api import (
    JSON,
    Body,
    Exchange,
    Headers,
    HttpEntry,
    PassedOn,
    check_values,
    client_request_id,
    request_id_of,
)

HEADER: Final = "X-Wherry-Ignored"
ID: Final = "X-Request-Id"


def with_ignored_fields(
    exchange: Exchange, ignored: Sequence[str], ids: Sequence[str] = (ID,)
) -> Exchange:
    """The exchange, whose answer has these fields in a header, and the request's id in others:
    clients hand it to their callers."""
    headers = [(HEADER, header_of(ignored))] if ignored else []
    if client_request_id(exchange.request.headers):  # which comes back by itself in the first
        ids = ids[1:]
    return _Noting(exchange, headers, ids) if headers or ids else exchange


class _Noting(PassedOn):
    __slots__ = ("_ids", "_own")

    def __init__(self, inner: Exchange, own: Headers, ids: Sequence[str]) -> None:
        super().__init__(inner)
        self._own = own
        self._ids = ids

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        super().respond(status, body, content_type=content_type, headers=self._with(headers))

    def start(self, status: int, *, content_type: str = JSON, headers: Headers = ()) -> None:
        super().start(status, content_type=content_type, headers=self._with(headers))

    def _with(self, headers: Headers) -> Headers:
        """These headers and the own ones; an error has its id already."""
        names = {name for name, _ in headers}
        ids = [(name, request_id_of(self)) for name in self._ids]
        return (*headers, *(own for own in (*self._own, *ids) if own[0] not in names))


T = TypeVar("T")
#: Decodes a body, and appends the names of the fields that it ignores to a list; None: there are
#: none.
Reader = Callable[[Buffer, list[str] | None], T]
Start = Callable[[Exchange, T], None]


def read_and_start(
    entry: HttpEntry,
    read: Reader[T],
    start: Start[T],
    exchange: Exchange,
    form: ErrorForm = error_object,
    *,
    is_json: bool = True,
    ids: Sequence[str] = (ID,),
) -> None:
    """Have `read` decode the body, here or in another thread, and then call `start` here.

    Errors of both are answered in the protocol's `form`. `ids` are the headers with the request's
    id, of which the first is X-Request-Id.
    """
    ignored: list[str] | None = None if entry.common.openai.strict_fields else []

    def refuse(exchange: Exchange, error: Exception) -> None:
        fail(with_ignored_fields(exchange, (), ids), error, form=form)

    def read_large() -> T:
        body = entry.body(exchange)
        if is_json:
            check_values(body)
        return read(body, ignored)

    def begin(parsed: T) -> None:
        start(with_ignored_fields(exchange, ignored or (), ids), parsed)

    try:
        entry.admission.check()
        body = entry.small_body(exchange)
        if body is not None:
            begin(read(body, ignored))
        else:
            entry.off_loop(exchange, read_large, begin, refuse, reads=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
        refuse(exchange, error)
