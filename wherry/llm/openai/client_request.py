"""How is a request of OpenAI's or Anthropic's clients read, and answered in its protocol's form?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from wherry.core.api import Buffer
from wherry.llm.openai.errors import BadField, ErrorForm, described, error_object
from wherry.llm.openai.generation_request import ModelCall
from wherry.llm.openai.reading import header_of
from wherry.server.api import (
    JSON,
    SMALL_BODY,
    EventStream,
    Exchange,
    Headers,
    HttpEntry,
    request_id_of,
    respond,
)

T = TypeVar("T")
Call = TypeVar("Call", bound=ModelCall)
HEADER: Final = "X-Wherry-Ignored"


@dataclass(frozen=True, slots=True)
class ClientForm:
    """A protocol's form of an error, and the headers of its answers that hold the request's id.
    The first is X-Request-Id."""

    error: ErrorForm
    ids: Sequence[str] = ("X-Request-Id",)


OPENAI: Final = ClientForm(error_object)


class ClientRequest:
    """One request and its one answer."""

    __slots__ = ("_id", "entry", "exchange", "form", "ignored")

    def __init__(self, entry: HttpEntry, exchange: Exchange, form: ClientForm = OPENAI) -> None:
        self.entry = entry
        self.exchange = exchange
        self.form = form
        #: Names of the unknown fields that were ignored; None: such fields are refused.
        self.ignored: list[str] | None = None if entry.common.openai.strict_fields else []
        self._id = ""

    @property
    def id(self) -> str:
        """The client's X-Request-Id, or a new one."""
        if not self._id:
            self._id = request_id_of(self.exchange)
        return self._id

    def read(self, read: Reader[T], start: Start[T]) -> None:
        """Have `read` decode the body, here or in another thread, and then call `start` here.

        Errors of both are the answer.
        """
        entry = self.entry
        try:
            if entry.admission.max_in_flight is not None:
                entry.admission.check()
            body = entry.small_body(self.exchange)
            if body is not None:
                start(self, read(self, body))
            else:
                self.off_loop(
                    lambda: read(self, entry.body(self.exchange)),
                    lambda parsed: start(self, parsed),
                    reads=True,
                )
        except Exception as error:  # noqa: BLE001 - any error is the client's answer
            self._refuse(error)

    def checked(self, call: Call, body: Buffer) -> Call:
        """The call, measured if its body is large. Schema parts that no grammar can follow are
        ignored; BadField if nothing may be ignored."""
        if call.not_followed:
            if self.ignored is None:
                problem = "calls cannot be made to follow it: leave it out"
                raise BadField(call.not_followed[0], problem)
            self.ignored += call.not_followed
        if call.nbytes is None and len(body) > SMALL_BODY:
            call.measure()
        return call

    def off_loop(self, work: Callable[[], T], done: Callable[[T], None], *, reads: bool) -> None:
        """`HttpEntry.off_loop` for this request."""
        fail = self._refuse if reads else self.fail
        self.entry.off_loop(self.exchange, work, done, lambda _, e: fail(e), reads=reads)

    def headers(self) -> Headers:
        """The headers of each answer. A client's own id is sent back in the first one anyway."""
        form, own_id = self.form, self.exchange.request.own_id
        ids = form.ids if self.id == own_id else form.ids[1:]
        headers = [(name, self.id) for name in ids]
        return [(HEADER, header_of(self.ignored)), *headers] if self.ignored else headers

    def respond(self, body: bytes, content_type: str = JSON) -> None:
        respond(self.exchange, body, content_type=content_type, headers=self.headers())

    def events(self) -> EventStream:
        return EventStream(self.exchange, headers=self.headers())

    def described(
        self, error: Exception, named: Callable[[str], str] = str
    ) -> tuple[int, bytes, Headers]:
        """Status, body and headers of an error. `named` is as for `errors.described`."""
        status, body, headers = described(self.exchange, error, named, self.form.error)
        there = {name for name, _ in headers}
        return status, body, [*headers, *(one for one in self.headers() if one[0] not in there)]

    def fail(self, error: Exception, named: Callable[[str], str] = str) -> None:
        status, body, headers = self.described(error, named)
        self.exchange.respond(status, body, headers=headers)

    def _refuse(self, error: Exception) -> None:
        """Answer with an error of the request, without a list of ignored fields."""
        self.ignored = None
        self.fail(error)


#: Decodes a body: in another thread if it is large.
Reader = Callable[[ClientRequest, Buffer], T]
#: Starts what was decoded.
Start = Callable[[ClientRequest, T], None]
