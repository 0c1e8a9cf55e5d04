"""How does the body of a generate request become columns, and columns an answer's body?

A JSON object whose members are inputs or outputs by name; the others are parameters. A form has
the same by its fields, and any other body is the model's only file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from wherry.core.api import (
    BadModelOutput,
    Buffer,
    Columns,
    FileBytes,
    FileSpec,
    Form,
    InferResponse,
    InvalidRequest,
    NotAcceptable,
    Tag,
    media_type_of,
)
from wherry.server.calls.client_text import encode_json
from wherry.server.calls.parameters import checked_parameters
from wherry.server.content.media_types import (
    OCTET_STREAM,
    names_type,
    preferred,
    quoted,
)
from wherry.server.http.exchange import JSON, Headers, RequestHead
from wherry.server.v2.http.form_codec import FormCodec
from wherry.server.v2.json_elements import parse_object
from wherry.server.v2.long_arrays import check_values
from wherry.server.v2.model_tensors import DecodedRequest, ModelTensors
from wherry.server.v2.row_values import rows_with_files


class OutputFormat(msgspec.Struct):
    """The requested form of the answer to a generate call, or to one to a natural route."""

    #: The media type of the model's only file, sent as itself in place of JSON.
    file: str | None = None
    #: The Accept header, if there is a file.
    accept: str | None = None
    #: Many values as lines of JSON, and not as events.
    lines: bool = False
    id: str = ""
    #: A list with an element for each row, also for a single one.
    several: bool = False
    json: bool = True

    def decoded(self, request: DecodedRequest) -> None:
        self.id, self.several = request.id, request.several
        if self.file and (request.rows > 1 or request.several):
            if not self.json:
                raise NotAcceptable(
                    f"the request has {request.rows} rows, and a file answers one; accept"
                    " application/json, or send each row for itself"
                )
            self.file = None


class AnswerBody(msgspec.Struct):
    """The body of an answer to infer, generate or a natural route."""

    body: bytes | Sequence[Buffer]
    content_type: str = JSON
    headers: Headers = ()
    #: Compressed already, as far as its client accepts that.
    is_packed: bool = False


#: A model's output is data: no browser runs it as a page of this server, or guesses its type.
SAFE: Final = (("Content-Security-Policy", "default-src 'none'; sandbox"),)
#: Types that a browser shows; it saves all others.
_SHOWN: Final = ("image/", "audio/", "video/")


class OutputFiles:
    """Chooses the form of a model's answers: JSON, or its only output of bytes as a file."""

    def __init__(self, tensors: ModelTensors) -> None:
        self._model = tensors.model
        files = [
            codec.spec
            for codec in tensors.outputs.values()
            if codec.spec.form is Form.BYTES and not codec.spec.shape
        ]
        #: The output that may be sent as a file.
        self.spec = files[0] if len(files) == 1 else None
        media = None if self.spec is None else self.spec.media
        self._type = media_type_of(media, None)
        #: Each row has its own media type.
        self._any_type = isinstance(media, FileSpec)
        #: The answer is nothing but a file that has a type.
        self._only = media is not None and len(tensors.outputs) == 1

    def output_format(self, accept: str | None, *, natural: bool = False) -> OutputFormat:
        """Choose by an Accept header. NotAcceptable if it accepts no available form.

        Without Accept, or if it takes anything, the answer is JSON, but at a natural route, if it
        is nothing but a file. Elsewhere Accept is for files alone: it was ignored before.
        """
        if self.spec is None and not natural:
            return OutputFormat()
        offers = [*self._offered(accept, by_default=natural and self._only), JSON]
        found = preferred(accept, offers)
        json = preferred(accept, [JSON]) is not None
        if found is None and self._any_type:
            found = self._type  # the row may be of a type that is accepted
        if found is None:
            offers = offers if natural else [self._type, JSON]
            raise not_acceptable(self._model, accept or "", offers)
        if found == JSON:
            return OutputFormat()
        return OutputFormat(file=found, accept=accept, json=json)

    def _offered(self, accept: str | None, *, by_default: bool) -> list[str]:
        """The types of the file, if it may be the answer at all."""
        if self.spec is None:
            return []
        types = dict.fromkeys((self._type, OCTET_STREAM))
        named = [one for one in types if names_type(accept, one)]
        return named or ([self._type] if by_default else [])

    def answer(self, outputs: Columns, output_format: OutputFormat) -> AnswerBody:
        """The file of an answer of one row. NotAcceptable if its type is not accepted."""
        assert self.spec is not None
        row, content_type = outputs[self.spec.name][0], output_format.file or OCTET_STREAM
        name = row.name if isinstance(row, FileBytes) else None
        if content_type == self._type:
            content_type, accept = media_type_of(self.spec.media, row), output_format.accept
            if content_type != self._type and preferred(accept, [content_type]) is None:
                raise not_acceptable(self._model, accept or "", [content_type])
        data = row.encode() if isinstance(row, str) else row
        # A transport knows plain bytes alone, and views.
        body = data if type(data) is bytes else [memoryview(data)]
        return AnswerBody(body, content_type, (*SAFE, disposition(content_type, name)))


def disposition(content_type: str, name: str | None) -> tuple[str, str]:
    """The header that has browsers show what cannot do harm, and save everything else."""
    runs = "svg" in content_type or "xml" in content_type
    kind = "inline" if content_type.startswith(_SHOWN) and not runs else "attachment"
    named = f"; filename*=UTF-8''{quote(name, safe='')}" if name else ""
    return "Content-Disposition", kind + named


def not_acceptable(model: str, accept: str, offers: Sequence[str]) -> NotAcceptable:
    return NotAcceptable(
        f"model '{model}' can answer as {' or '.join(offers)}, and Accept is {quoted(accept)}"
    )


class GenerateCodec:
    def __init__(self, tensors: ModelTensors) -> None:
        self._tensors = tensors
        self._model = tensors.model
        self._forms = FormCodec(tensors)
        self.fetches = self._forms.fetches
        self._files = OutputFiles(tensors)
        self._file_inputs = frozenset(
            name for name, codec in tensors.inputs.items() if codec.spec.form is Form.BYTES
        )

    def output_format(self, head: RequestHead) -> OutputFormat:
        return self._files.output_format(head.headers.get("accept"))

    def read(self, head: RequestHead, body: Buffer) -> DecodedRequest:
        values = self._forms.values(head, body)
        return self.decode(body) if values is None else self._forms.decode(values)

    def answer(self, response: InferResponse, output_format: OutputFormat) -> AnswerBody:
        if output_format.file:
            return self._files.answer(response.outputs, output_format)
        return AnswerBody(self.encode(response.outputs, output_format.id, response.parameters))

    def decode(self, body: Buffer) -> DecodedRequest:
        """A JSON object whose members are inputs by name; the others are parameters."""
        inputs = self._tensors.inputs
        check_values(body)
        members = rows_with_files(body, self._file_inputs) if self._file_inputs else None
        if type(members) is not dict:
            members = parse_object(body)
        if "parameters" in members and "parameters" not in inputs:
            if not isinstance(parameters := members.pop("parameters"), dict):
                raise InvalidRequest("parameters must be an object", tag=Tag.JSON)
            members = {**parameters, **members}
        request_id = "" if "id" in inputs else members.pop("id", "")
        if type(request_id) is not str:
            raise InvalidRequest("id: expected str", tag=Tag.JSON)
        columns: Columns = {}
        rows = 0
        for name in [name for name in members if name in inputs]:  # as the client wrote them
            if (value := members.pop(name)) is None:
                continue
            codec = inputs[name]
            elements = codec.elements.of(value)
            shape = codec.shape_of(len(elements))
            count = codec.rows_of(shape)
            if rows and count != rows:
                raise InvalidRequest(
                    f"input '{name}' of model '{self._model}' has {count} rows, others have {rows}"
                )
            rows = count
            if codec.spec.media is not None:
                columns[name] = self._forms.rows[name].column(elements)
            elif codec.spec.form is Form.BYTES and not {*map(type, elements)} <= {str}:
                files = [self._forms.rows[name].bytes_of(element) for element in elements]
                columns[name] = codec.from_elements(files, count, shape)
            else:
                columns[name] = codec.from_values(elements, count, shape)
        parameters = checked_parameters(members)
        columns = self._tensors.complete(columns, members)
        return DecodedRequest(columns, rows or 1, request_id, parameters)

    def encode(
        self, outputs: Columns, id: str = "", parameters: Mapping[str, Any] | None = None
    ) -> bytes:
        answer: dict[str, Any] = {"id": id} if id else {}
        answer["model_name"], answer["model_version"] = self._model, self._tensors.version
        if parameters:
            answer.update(parameters)
        for name, codec in self._tensors.outputs.items():
            if name in outputs:
                answer[name] = codec.values(outputs[name])
        try:
            return encode_json(answer)
        except (TypeError, ValueError, RecursionError) as error:
            raise BadModelOutput(f"model '{self._model}': an output is not JSON: {error}") from None
