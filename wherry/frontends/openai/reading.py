"""How is a body read, here or in another thread, before its request begins?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from wherry.frontends.http.exchange import Exchange
from wherry.frontends.openai.errors import ErrorForm, error_object, fail
from wherry.frontends.openai.ignored import ID, told
from wherry.frontends.v2.http.entry import HttpEntry
from wherry.frontends.v2.long_arrays import check_values
from wherry.values.buffer import Buffer

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
        fail(told(exchange, (), ids), error, form=form)

    def read_large() -> T:
        body = entry.body(exchange)
        if is_json:
            check_values(body)
        return read(body, ignored)

    def begin(wanted: T) -> None:
        start(told(exchange, ignored or (), ids), wanted)

    try:
        entry.admission.check()
        body = entry.small_body(exchange)
        if body is not None:
            begin(read(body, ignored))
        else:
            entry.off_loop(exchange, read_large, begin, refuse, reads=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
        refuse(exchange, error)
