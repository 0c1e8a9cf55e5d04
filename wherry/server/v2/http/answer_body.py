"""What does a call want of its answers, and what is one of them?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from wherry.core.api import Buffer, NotAcceptable
from wherry.server.http.exchange import JSON, Headers
from wherry.server.v2.decoded import DecodedRequest


class OutputFormat(msgspec.Struct):
    """How a generate call, or one to a natural route, wants to be answered."""

    #: The media type of the model's only file, sent as itself in place of JSON.
    file: str | None = None
    #: The Accept header, if there is a file.
    accept: str | None = None
    #: Many values as lines of JSON, and not as events.
    lines: bool = False
    #: The request's id.
    id: str = ""
    #: A list with an element for each row, also for a single one.
    several: bool = False
    #: JSON would be taken, too.
    json: bool = True

    def decoded(self, request: DecodedRequest) -> None:
        """Take over what the body says of its answer. NotAcceptable."""
        self.id, self.several = request.id, request.several
        if self.file and (request.rows > 1 or request.several):
            if not self.json:
                raise NotAcceptable(
                    f"the request has {request.rows} rows, and a file answers one; accept"
                    " application/json, or send each row for itself"
                )
            self.file = None


class TypedAnswer(msgspec.Struct):
    """The body of an answer."""

    body: bytes | Sequence[Buffer]
    content_type: str = JSON
    headers: Headers = ()
    #: Compressed already, as far as its client accepts that.
    packed: bool = False
