"""How is an answer of KServe V2 made Triton's to the letter, for `--triton-strict`?"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from wherry.frontends.compression import MAX_BYTES_IN_LOOP
from wherry.frontends.http.answers import packed
from wherry.frontends.http.exchange import (
    JSON,
    Application,
    Body,
    Exchange,
    Headers,
    PassedOn,
    error_body,
)
from wherry.frontends.v2.rapidjson import refusal
from wherry.frontends.v2.triton_words import JSON_OF_INFER, ToldError, in_tritons_words

TEXT: Final = "text/plain"
_READY: Final = re.compile(r"/v2/models/[^/]+(/versions/\d+)?/ready")
_INFER: Final = re.compile(r"/v2/models/[^/]+(/versions/\d+)?/(infer|generate|generate_stream)")
#: The JSON objects in server-sent events.
_EVENTS: Final = re.compile(rb"(?<=^data: )\{.*\}$", re.MULTILINE)
#: Of larger bodies that are refused it is not found out where their JSON is wrong, nor their id.
_MOST_BYTES: Final = 2**20
NO_INPUTS: Final = "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"
_HEALTH: Final = frozenset(("/v2/health/live", "/v2/health/ready"))


class StrictHttp:
    """Another application; below /v2 its errors are those of Triton."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        if not request.path.startswith("/v2"):
            self._application(exchange)
            return
        strict = StrictExchange(exchange)
        if request.method == "HEAD" and request.path in _HEALTH:
            exchange.respond(405, content_type=TEXT)
        elif "/generate" in request.path and _coded(exchange):
            text = "Unsupported content-encoding, only 'identity' is supported."
            exchange.respond(400, error_body(text))
        else:
            self._application(strict)


class StrictExchange(PassedOn):
    """An exchange whose answer gets Triton's status, text, type and coding."""

    __slots__ = ("_body",)

    def __init__(self, inner: Exchange) -> None:
        super().__init__(inner)
        self._body = self.request.body

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        path = self.request.path
        if status >= 400:
            status, text = self._told(status, body)
            body, content_type = error_body(text), TEXT if self._is_plain(text) else JSON
        elif path in _HEALTH or _READY.fullmatch(path):
            body, content_type = b"", TEXT
        elif path.endswith("/generate"):
            body = _sorted(body)
        elif "accept-encoding" in self.request.headers and path.endswith("/infer"):
            names = {name.lower() for name, _ in headers}
            if "content-encoding" not in names:
                accepts = self.request.headers["accept-encoding"]
                body, more = packed(body, accepts, MAX_BYTES_IN_LOOP, least=0)
                headers = (*headers, *more)
        self._inner.respond(status, body, content_type=content_type, headers=headers)

    def _told(self, status: int, body: Body) -> tuple[int, str]:
        text = _text_of(body)
        path = self.request.path
        if _READY.fullmatch(path) and status in (404, 503):
            return 400, "Model version not ready"
        status = 400 if status == 499 else status
        if text.startswith("Unable to parse Inference-Header"):
            given = self.request.headers.get("inference-header-content-length")
            span = f"(0, {len(self._body)}), got: {given}"
            return 400, f"inference header size should be in range {span}"
        if status == 400 and not text.startswith("inference header") and self._takes_json():
            if refused := refusal(self._json()):
                return 500, f"failed to parse the request JSON buffer: {refused}"
            if text.startswith("attempt to get members") and path.endswith("/infer"):
                return 500, NO_INPUTS
        told = in_tritons_words(ToldError(status, "", text), self._request_id())
        return told.status, told.text

    def _takes_json(self) -> bool:
        path = self.request.path
        return path.startswith("/v2/repository") or _INFER.fullmatch(path) is not None

    def _is_plain(self, text: str) -> bool:
        path = self.request.path
        if path.endswith("/infer"):
            return JSON_OF_INFER.match(text) is None
        return path in _HEALTH or text in ("Not Found", "Model version not ready")

    def send(self, chunk: bytes) -> None:
        if "/generate" in self.request.path:
            chunk = _EVENTS.sub(lambda event: _sorted(event[0]), chunk)
        self._inner.send(chunk)

    def _request_id(self) -> str:
        """The id in the body's JSON, if that has one."""
        if not _INFER.fullmatch(self.request.path):
            return ""
        try:
            found = msgspec.json.decode(self._json())
        except ValueError:
            return ""
        given = found.get("id") if isinstance(found, dict) else None
        return given if isinstance(given, str) else ""

    def _json(self) -> bytes:
        """The JSON of the request's body."""
        headers = self.request.headers
        coded = headers.get("content-encoding", "identity") != "identity"
        if coded or len(self._body) > _MOST_BYTES:
            return b"{}"
        size = headers.get("inference-header-content-length", "")
        whole = bytes(self._body)
        if size.isdecimal():
            whole = whole[: int(size)]
        if not whole and not self.request.path.endswith("/generate"):
            return b"{}"  # a raw request, or one that says nothing
        return whole


def _sorted(body: Body) -> bytes:
    """A JSON object with its members in the order of their names."""
    whole = body if isinstance(body, bytes) else b"".join(body)
    members = msgspec.json.decode(whole, type=dict[str, msgspec.Raw])
    return msgspec.json.encode(dict(sorted(members.items())))


def _coded(exchange: Exchange) -> bool:
    return exchange.request.headers.get("content-encoding", "identity") != "identity"


def _text_of(body: Body) -> str:
    whole = body if isinstance(body, bytes) else b"".join(body)
    try:
        found = msgspec.json.decode(whole)
    except ValueError:
        return ""
    text = found.get("error") if isinstance(found, dict) else ""
    return text if isinstance(text, str) else ""
