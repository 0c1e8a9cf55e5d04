"""How does the body of a generate request become columns, and columns an answer's body?

A JSON object whose members are inputs or outputs by name; the others are parameters. A form has
the same by its fields, and any other body is the model's only file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wherry.core.api import (
    BadModelOutput,
    Buffer,
    Columns,
    Form,
    InferResponse,
    InvalidRequest,
    Tag,
)
from wherry.server.calls.json_text import encode_json
from wherry.server.http.exchange import RequestHead
from wherry.server.v2.decoded import DecodedRequest, counted
from wherry.server.v2.http.answer_body import OutputFormat, TypedAnswer
from wherry.server.v2.http.form_codec import FormCodec
from wherry.server.v2.http.output_files import OutputFiles
from wherry.server.v2.json_elements import parse_object
from wherry.server.v2.json_files import members_with_files
from wherry.server.v2.long_arrays import check_values
from wherry.server.v2.model_tensors import ModelTensors
from wherry.server.v2.parameters import checked_parameters


class GenerateCodec:
    """The wire form of one model's generate requests and answers."""

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
        """How the request wants its answer. NotAcceptable."""
        return self._files.output_format(head.headers.get("accept"))

    def read(self, head: RequestHead, body: Buffer) -> DecodedRequest:
        """Decode a body of any type. InvalidRequest, UnsupportedMediaType."""
        values = self._forms.values(head, body)
        return self.decode(body) if values is None else self._forms.decode(values)

    def answer(self, response: InferResponse, output_format: OutputFormat) -> TypedAnswer:
        """Encode one response. Raises what the model's output is to blame for."""
        if output_format.file:
            return self._files.answer(response.outputs, output_format)
        return TypedAnswer(self.encode(response.outputs, output_format.id, response.parameters))

    def decode(self, body: Buffer) -> DecodedRequest:
        """A JSON object whose members are inputs by name; the others are parameters."""
        inputs = self._tensors.inputs
        check_values(body)
        members = None
        if self._file_inputs:
            members = members_with_files(body, self._file_inputs)
        if members is None:
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
            value, codec = members.pop(name), inputs[name]
            if value is None:
                continue
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
        columns = self._tensors.complete(columns)
        return DecodedRequest(columns, rows or 1, request_id, parameters)

    def read_large(self, head: RequestHead, body: Buffer) -> DecodedRequest:
        """Do what `read` does, in another thread. RequestTooLarge if JSON has too many values:
        these are built in one go, other than the data of an infer request."""
        return counted(self.read(head, body))

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
            raise BadModelOutput(f"model '{self._model}': an output is no JSON: {error}") from None
