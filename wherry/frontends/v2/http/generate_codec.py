"""How does the body of a generate request become columns, and columns an answer's body?

A JSON object whose members are inputs or outputs by name; the others are parameters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from wherry.frontends.json_text import encode_json
from wherry.frontends.v2.decoded import DecodedRequest, counted
from wherry.frontends.v2.json_elements import parse_object
from wherry.frontends.v2.long_arrays import check_values
from wherry.frontends.v2.model_tensors import ModelTensors
from wherry.frontends.v2.parameters import checked_parameters
from wherry.values.buffer import Buffer
from wherry.values.errors import BadModelOutput, InvalidRequest
from wherry.values.request import Columns


class GenerateCodec:
    """The wire form of one model's generate requests and answers."""

    def __init__(self, tensors: ModelTensors) -> None:
        self._tensors = tensors
        self._model = tensors.model

    def decode(self, body: Buffer) -> DecodedRequest:
        """A JSON object whose members are inputs by name; the others are parameters."""
        inputs = self._tensors.inputs
        members = parse_object(body)
        text = bytes(body)
        if isinstance(members.get("parameters"), dict) and "parameters" not in inputs:
            members = {**members.pop("parameters"), **members}
        request_id = "" if "id" in inputs else members.pop("id", "")
        if type(request_id) is not str:
            raise InvalidRequest("id: expected str")
        if any(text.count(encode_json(name)) > 1 for name in inputs):
            self._refuse_twice(text)
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
            columns[name] = codec.from_values(elements, count, shape)
        columns = self._tensors.complete(columns)
        return DecodedRequest(columns, rows or 1, request_id, checked_parameters(members), None)

    def decode_large(self, body: Buffer) -> DecodedRequest:
        """Decode in another thread. RequestTooLarge if the body has too many values: these are
        built in one go, other than the data of an infer request."""
        check_values(body)
        return counted(self.decode(body))

    def _refuse_twice(self, text: bytes) -> None:
        """InvalidRequest if an object of this JSON has an input twice: parsers keep the last."""

        def look(members: list[tuple[str, Any]]) -> None:
            seen: set[str] = set()
            for name, _ in members:
                if name in seen and name in self._tensors.inputs:
                    raise InvalidRequest(f"input '{name}' already exists in request")
                seen.add(name)

        json.loads(text, object_pairs_hook=look)

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
        except (TypeError, ValueError) as error:
            raise BadModelOutput(f"model '{self._model}': an output is no JSON: {error}") from None
