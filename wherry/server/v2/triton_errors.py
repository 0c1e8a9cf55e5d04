"""How does an error of KServe V2 get the words of tritonserver, for `--triton-errors`?

By the error's class and tag. What is answered, and what is refused, is the same without it.
"""

from __future__ import annotations

from wherry.core.api import Tag, WherryError
from wherry.server.calls.client_text import text_for_clients
from wherry.server.http.exchange import JSON, Body, Exchange, Headers, PassedOn
from wherry.server.http.route import TEXT


def sentence_of(error: WherryError) -> str:
    """The text without the place and the remedy, which Triton leaves out."""
    return text_for_clients(type(error), str(error).removesuffix(error.more))


def code_and_sentence(error: WherryError) -> tuple[str, str]:
    code = "INTERNAL" if error.tag is Tag.INTERNAL else error.grpc_code
    return code, sentence_of(error)


class TritonErrors(PassedOn):
    """An exchange whose errors have Triton's status, Content-Type and sentence."""

    __slots__ = ("_type",)

    def __init__(self, inner: Exchange) -> None:
        super().__init__(inner)
        self._type = ""

    def outcome_of(self, error: WherryError) -> tuple[int, str]:
        path = self.request.path
        is_plain = path.endswith("/ready")
        if path.endswith("/infer"):
            # JSON of what is wrong with the request itself, text of what goes wrong around it.
            is_plain = error.tag is None and error.http_status != 400
        self._type = TEXT if is_plain else JSON
        return _status(error, path), sentence_of(error)

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        if status >= 400 and self._type:
            content_type = self._type
        self._inner.respond(status, body, content_type=content_type, headers=headers)


def _status(error: WherryError, path: str) -> int:
    if path.endswith("/ready") or error.http_status == 499:
        return 400
    if error.tag is not None:
        return 500
    if "/generate" in path and error.reason == "BACKEND":
        return 400
    return error.http_status
