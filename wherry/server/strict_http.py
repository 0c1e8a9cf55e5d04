"""How is an answer of KServe V2 made Triton's to the letter, for `--triton-strict`?"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from typing import Any, Final

import msgspec

from wherry.frontends.compression import MAX_BYTES_IN_LOOP, decompressed
from wherry.frontends.http.answers import packed
from wherry.frontends.http.exchange import (
    JSON,
    Application,
    Body,
    Exchange,
    Headers,
    HttpRequest,
    PassedOn,
    error_body,
)
from wherry.frontends.offload import LARGE_BYTES
from wherry.frontends.v2.http.triton_admin import read_as_triton
from wherry.frontends.v2.http.triton_forgiving import (
    as_triton_takes_it,
    generate_as_triton_takes_it,
)
from wherry.frontends.v2.http.triton_generate import generate_fault
from wherry.frontends.v2.http.triton_head import (
    CODINGS,
    head_as_triton_reads_it,
    without_coding,
)
from wherry.frontends.v2.rapidjson import refusal
from wherry.frontends.v2.triton_core import CoreView, ViewOf, raw_fault
from wherry.frontends.v2.triton_reading import first_fault
from wherry.frontends.v2.triton_words import JSON_OF_INFER, ToldError, in_tritons_words
from wherry.frontends.v2.whole_numbers import number_before
from wherry.values.errors import InvalidRequest, RequestTooLarge

TEXT: Final = "text/plain"
_READY: Final = re.compile(r"/v2/models/[^/]+(/versions/\d+)?/ready")
_READY_OF_ANY: Final = re.compile(r"/v2/models/[^/]+(/versions/[^/]+)?/ready")
_INFER: Final = re.compile(
    r"/v2/models/(?P<model>[^/]+)(/versions/(?P<version>\d+))?/(?P<way>infer|generate|generate_stream)"
)
_REGION_STATUS: Final = re.compile(r"/v2/(system|cuda)sharedmemory/region/[^/]+/status")
#: A version that no whole number of 64 bits holds.
_VERSION: Final = re.compile(r"/v2/models/[^/]+/versions/(\d+)(/.*)?")
_MOST: Final = 2**63 - 1
#: A body for which the application refuses the request, once it has checked the key.
_NO_JSON: Final = b"!"
#: Where Triton has nothing.
_OWN_PAGES: Final = frozenset(("/", "/v2/models"))
#: Triton has no route for them.
_NO_METHODS: Final = frozenset(("HEAD", "OPTIONS"))
#: What is wrong before Triton looks at a body.
_BEFORE_THE_BODY: Final = (
    "Request for unknown model", "inference header", "HTTP end point doesn't",
    "failed to get model version", "the compressed body", "Unable to parse Inference-Header",
)  # fmt: skip
#: What is not there before a model runs.
_NOT_THERE: Final = ("Request for unknown model", "Unable to find", "Not Found")
#: A parameter of generate, by itself or within `parameters`.
_PARAMETER: Final = re.compile(r"parameter '(.*)' has invalid type")
#: The JSON objects in server-sent events.
_EVENTS: Final = re.compile(rb"(?<=^data: )\{.*\}$", re.MULTILINE)
#: Of larger bodies that are refused it is not found out where their JSON is wrong, nor their id.
_MOST_BYTES: Final = 2**20
_HEALTH: Final = frozenset(("/v2/health/live", "/v2/health/ready"))


class StrictHttp:
    """Another application; below /v2 its errors are those of Triton."""

    def __init__(self, application: Application, view_of: ViewOf) -> None:
        self._application = application
        self._view_of = view_of

    def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        request.head = head_as_triton_reads_it(request.head)
        if _INFER.fullmatch(request.path) and request.path.endswith("/infer"):
            _unpack(request)
        strict = StrictExchange(exchange, self._application, self._view_of)
        if request.method == "POST" and not _coded(exchange):
            strict.read_as_triton()
        asked = _INFER.fullmatch(request.path)
        if asked and asked["way"] != "infer" and _coded(exchange) and strict.view(asked):
            text = "Unsupported content-encoding, only 'identity' is supported."
            exchange.respond(400, error_body(text))
        else:
            self._application(strict)


class StrictExchange(PassedOn):
    """An exchange whose answer gets Triton's status, text, type and coding."""

    __slots__ = ("_again", "_body", "_refused", "_view_of")

    def __init__(self, inner: Exchange, application: Application, view_of: ViewOf) -> None:
        super().__init__(inner)
        #: Answers a request that Triton would take; None once it was asked again.
        self._again: Application | None = application
        self._view_of = view_of
        self._body = self.request.body
        #: What Triton's reading of the body ends with, where that was looked at before.
        self._refused: ToldError | None = None

    def view(self, asked: re.Match[str]) -> CoreView | None:
        """The model that the path of an inference names; None if it is not loaded."""
        return self._view_of(asked["model"], asked["version"] or "")

    def read_as_triton(self) -> None:
        """Give the application what Triton would take of the body of a request that is no
        inference."""
        read = read_as_triton(self.request.path, self._body)
        if isinstance(read, ToldError):
            self._refused = read
            self.request.body = _NO_JSON
        elif read is not None:
            self.request.body = read

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        path = self.request.path
        if _lacks(path, self.request.method, status, body):
            status, body = 404, error_body("Not Found")
        is_there = status < 400 or (status == 404 and _REGION_STATUS.fullmatch(path))
        if self.request.method in _NO_METHODS and is_there and path.startswith("/v2"):
            status, body = 405, error_body("Method Not Allowed")
        if status == 400 and _INFER.fullmatch(path) and self._asked_again(_text_of(body)):
            return
        if status >= 400 and path.startswith("/v2"):
            status, text = self._told(status, body)
            body, content_type = error_body(text), TEXT if self._is_plain(text) else JSON
        elif status == 404 and _text_of(body) == "Not Found":
            content_type = TEXT
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

    def _asked_again(self, told: str) -> bool:
        """Have a request answered that Triton would take where it was refused with `told`."""
        again, text, asked = self._again, self._json(), _INFER.fullmatch(self.request.path)
        self._again = None
        if again is None or not text or asked is None:
            return False
        text, size = text.removeprefix(BOM_UTF8), self._json_bytes()
        binary = self._body[size:]
        if asked["way"] == "infer":
            sized = "inference-header-content-length" in self.request.headers
            taken = as_triton_takes_it(text, told, length=size if sized else None)
        else:
            view = self.view(asked)
            datatypes = {name: one.datatype for name, one in view.inputs.items()} if view else {}
            taken = generate_as_triton_takes_it(text, told, datatypes)
        if taken is None or self._fault() is not None:
            return False
        self._body = self.request.body = taken + bytes(binary)
        again(self)
        return True

    def _told(self, status: int, body: Body) -> tuple[int, str]:
        text = _text_of(body)
        path = self.request.path
        if _READY_OF_ANY.fullmatch(path) and self.request.method in _NO_METHODS:
            return 405, "Method Not Allowed"
        version = _VERSION.fullmatch(path)
        if version and (number_before(version[1]) or 0) > _MOST and status in (400, 404):
            return 400, (
                f"failed to get model version from specified version string '{version[1]}'"
                " (details: stol), version should be an integral value > 0"
            )
        if _READY.fullmatch(path) and status in (404, 503):
            return 400, "Model version not ready"
        if self._refused and status == 400 and not text.startswith("Request for unknown model :"):
            return self._refused.status, self._refused.text
        status = 400 if status == 499 else status
        coding = self.request.headers.get("content-encoding", "identity")
        if path.endswith("/infer") and coding not in CODINGS and status in (400, 415):
            return 501, "Unsupported compression type"
        models_own = status == 404 and not text.startswith(_NOT_THERE)
        if "/generate" in path and (models_own or text.startswith("Failed to process the request")):
            status = 400
        given = self.request.headers.get("inference-header-content-length", "")
        if given and text.startswith(("Unable to parse Inference-", "inference header size")):
            span = f"(0, {len(self._body)}), got: {given}"
            return 400, f"inference header size should be in range {span}"
        if status in (400, 404) and not text.startswith(_BEFORE_THE_BODY):
            fault = self._fault()
            if fault is not None:
                return fault.status, fault.text
        told = in_tritons_words(ToldError(status, "", text), self._request_id())
        named = _PARAMETER.match(told.text) if "/generate" in path else None
        within = self._members().get("parameters") if named else None
        if named and isinstance(within, dict) and named[1] in within:
            return told.status, f"Converting keyword: 'parameters': {told.text}"
        return told.status, told.text

    def _fault(self) -> ToldError | None:
        """What Triton's reading of the request's JSON ends with."""
        asked = _INFER.fullmatch(self.request.path)
        if asked is None:
            return None
        text = self._json()
        if text is None:
            return self._raw_fault(asked)
        if refused := refusal(text):
            return ToldError(500, "", f"failed to parse the request JSON buffer: {refused}")
        text, view = text.removeprefix(BOM_UTF8), self.view(asked)
        if asked["way"] != "infer":
            return None if view is None else generate_fault(text, view)
        binary = memoryview(self._body)[self._json_bytes() :]
        return first_fault(text, binary, asked["model"], view)

    def _raw_fault(self, asked: re.Match[str]) -> ToldError | None:
        """The fault of a body that is data without JSON."""
        headers, view = self.request.headers, self.view(asked)
        length = headers.get("inference-header-content-length", "0" if not self._body else "1")
        if view is None or "content-encoding" in headers or number_before(length):
            return None
        fault = raw_fault(view, len(self._body))
        return ToldError(400, "", fault) if fault else None

    def _is_plain(self, text: str) -> bool:
        path = self.request.path
        if path.endswith("/infer"):
            return JSON_OF_INFER.match(text) is None
        if path in _HEALTH or _READY_OF_ANY.fullmatch(path):
            return True
        return text == "Not Found"

    def start(self, status: int, *, content_type: str = JSON, headers: Headers = ()) -> None:
        """Begin a stream of events: its status is 400 if a model fails at once."""
        status = 400 if status >= 400 else status
        self._inner.start(status, content_type=content_type, headers=headers)

    def send(self, chunk: bytes) -> None:
        if "/generate" in self.request.path:
            chunk = _EVENTS.sub(lambda event: _event(event[0]), chunk)
        self._inner.send(chunk)

    def _request_id(self) -> str:
        """The id in the body's JSON, if that has one."""
        if not _INFER.fullmatch(self.request.path):
            return ""
        given = self._members().get("id")
        return given if isinstance(given, str) else ""

    def _members(self) -> dict[str, Any]:
        """Of the body's JSON; none if that is no object."""
        try:
            found = msgspec.json.decode(self._json() or b"{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _json_bytes(self) -> int:
        """How much of the body is JSON, by the headers."""
        size = self.request.headers.get("inference-header-content-length")
        if not self.request.path.endswith("/infer"):
            size = None
        return len(self._body) if size is None else max(0, number_before(size) or 0)

    def _json(self) -> bytes | None:
        """The JSON of the request's body; None if it is large or packed, or if there is none."""
        headers = self.request.headers
        coded = headers.get("content-encoding", "identity") != "identity"
        if coded or len(self._body) > _MOST_BYTES:
            return None
        if not self._json_bytes() and self.request.path.endswith("/infer"):
            return None  # a raw request
        return bytes(self._body[: self._json_bytes()]).partition(b"\0")[0]  # as a C string


def _event(data: bytes) -> bytes:
    """An event of a stream, its error in Triton's words."""
    text = _text_of(data)
    told = in_tritons_words(ToldError(500, "", text)).text if text else text
    return error_body(told) if told != text else _sorted(data)


def _lacks(path: str, method: str, status: int, body: Body) -> bool:
    """Whether Triton has nothing where this server has."""
    if path in _OWN_PAGES:
        return status < 400 or (status == 405 and method not in _NO_METHODS)
    return status < 400 and _lists_nothing(path, body)


def _unpack(request: HttpRequest) -> None:
    """Undo the coding of a small body, so that its faults are found. To Triton what cannot be
    unpacked is empty."""
    coding = request.headers.get("content-encoding", "")
    if coding not in ("gzip", "deflate") or len(request.body) > LARGE_BYTES:
        return
    try:
        request.body = decompressed(request.body, coding, LARGE_BYTES)
    except RequestTooLarge:
        return
    except InvalidRequest:
        request.body = b""
    request.head = without_coding(request.head)


def _sorted(body: Body) -> bytes:
    """A JSON object with its members in the order of their names."""
    whole = body if isinstance(body, bytes) else b"".join(body)
    members = msgspec.json.decode(whole, type=dict[str, msgspec.Raw])
    return msgspec.json.encode(dict(sorted(members.items())))


def _lists_nothing(path: str, body: Body) -> bool:
    """Whether it is OpenAI's list of models where there are none for its clients."""
    return path == "/v1/models" and b'"data":[]' in (body if isinstance(body, bytes) else b"")


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
