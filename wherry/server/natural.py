"""Which model answers at a path of its own, as models come and go?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
import numpy as np

from wherry.core.api import (
    BadModelOutput,
    Buffer,
    Column,
    Form,
    InferResponse,
    InvalidRequest,
    ModelNotFound,
    Signature,
)
from wherry.server.calls.client_text import encode_json
from wherry.server.content.media_types import EVENT_STREAM, JSON_LINES, preferred
from wherry.server.content.multipart import NamedValue
from wherry.server.http.answers import EventStream, JsonLines
from wherry.server.http.exchange import Exchange, RequestHead
from wherry.server.http.route import Route
from wherry.server.v2.http.entry import HttpEntry, ModelPath
from wherry.server.v2.http.form_codec import FormCodec
from wherry.server.v2.http.generate import GenerateCall, StreamCall
from wherry.server.v2.http.generate_codec import (
    AnswerBody,
    OutputFiles,
    OutputFormat,
    not_acceptable,
)
from wherry.server.v2.http.infer_codec import ModelCodec
from wherry.server.v2.json_elements import decoded_again
from wherry.server.v2.long_arrays import check_values
from wherry.server.v2.model_tensors import DecodedRequest, ModelTensors, tensors_of
from wherry.server.v2.row_values import in_base64, kind_of, rows_with_files

_decode: Final = msgspec.json.Decoder().decode


class NaturalCodec:
    def __init__(self, tensors: ModelTensors, signature: Signature) -> None:
        self._tensors = tensors
        self._model = tensors.model
        self._streams = signature.streams
        self._unnamed = signature.returns == "single"
        self._forms = FormCodec(tensors)
        self.fetches = self._forms.fetches
        self._files = OutputFiles(tensors)
        inputs = signature.inputs
        #: The input whose row is the whole object.
        self._whole = inputs[0].name if len(inputs) == 1 and inputs[0].holds_objects else None
        self._file_inputs = {spec.name for spec in inputs if spec.form is Form.BYTES}
        self._required = {spec.name for spec in inputs if not spec.optional}
        self._defaults = {
            spec.name: spec.default
            for spec in inputs
            if spec.default is not None and spec.form is not Form.BYTES
        }

    def output_format(self, head: RequestHead) -> OutputFormat:
        accept = head.headers.get("accept")
        if self._streams:
            offers = [EVENT_STREAM, JSON_LINES]
            found = preferred(accept, offers)
            if found is None:
                raise not_acceptable(self._model, accept or "", offers)
            return OutputFormat(lines=found == JSON_LINES)
        return self._files.output_format(accept, natural=True)

    def read(self, head: RequestHead, body: Buffer) -> DecodedRequest:
        values = self._forms.values(head, body)
        decoded = self._of_json(body) if values is None else self._of_values(values)
        priority = head.headers.get("x-request-priority")
        if priority is not None:
            if not (priority.isascii() and priority.isdigit() and len(priority) < 10):
                raise InvalidRequest("X-Request-Priority must be a whole number from 0 up")
            decoded.parameters = {"priority": int(priority)}
        return decoded

    def answer(self, response: InferResponse, output_format: OutputFormat) -> AnswerBody:
        if output_format.file:
            return self._files.answer(response.outputs, output_format)
        named = {
            name: self._rows(codec.spec.form, response.outputs[name])
            for name, codec in self._tensors.outputs.items()
            if name in response.outputs
        }
        rows: Sequence[Any]
        if self._unnamed:
            (rows,) = named.values()
        else:
            rows = [dict(zip(named, row, strict=True)) for row in zip(*named.values(), strict=True)]
        try:
            return AnswerBody(encode_json(rows if output_format.several else rows[0]))
        except (TypeError, ValueError, RecursionError) as error:
            raise BadModelOutput(f"model '{self._model}': an output is not JSON: {error}") from None

    # The request

    def _of_values(self, values: list[NamedValue]) -> DecodedRequest:
        unknown = {value.name for value in values if value.name} - self._tensors.inputs.keys()
        if unknown:  # reported before what is missing, which may be the same under a wrong name
            raise self._unknown(sorted(unknown))  # they are a form's, of a thousand fields
        columns, rows, _ = self._forms.columns(values)
        return DecodedRequest(columns, rows, several=rows > 1)

    def _of_json(self, body: Buffer) -> DecodedRequest:
        check_values(body)
        value = rows_with_files(body, self._file_inputs) if self._file_inputs else None
        if value is None:
            try:
                value = _decode(body)
            except (ValueError, RecursionError) as error:
                value = decoded_again(_decode, body, error)
        several = type(value) is list
        objects = value if several else [value]
        if not objects:
            raise InvalidRequest(f"model '{self._model}': a request needs at least one row, got []")
        for index, one in enumerate(objects):
            if type(one) is not dict:
                where = f"row {index} of the body" if several else "the body"
                raise InvalidRequest(
                    f"model '{self._model}': {where} must be an object with the members"
                    f" {self._names()}, got {kind_of(one)}"
                )
        if self._whole is not None:
            by_input = {self._whole: objects}
        else:
            by_input = self._by_input(objects, several=several)
        columns, rows = self._forms.columns_of_rows(by_input)
        return DecodedRequest(columns, rows, several=several)

    def _by_input(self, objects: list[dict[str, Any]], *, several: bool) -> dict[str, list[Any]]:
        """The rows of each input, from objects with the inputs as members."""
        known = self._tensors.inputs
        for one in objects:
            if not one.keys() <= known.keys():
                raise self._unknown(name for name in one if name not in known)
        by_input: dict[str, list[Any]] = {}
        for name in known:
            rows = [one[name] for one in objects if one.get(name) is not None]
            if name in self._defaults and 0 < len(rows) < len(objects):
                default = self._defaults[name]
                rows = [default if one.get(name) is None else one[name] for one in objects]
            if len(rows) == len(objects):
                by_input[name] = rows
            elif rows or name in self._required:
                index = next(i for i, one in enumerate(objects) if one.get(name) is None)
                where = f" in row {index}" if several else ""
                why = "; send it in all rows or in none" if rows else ""
                raise InvalidRequest(
                    f"input '{name}' of model '{self._model}' is missing{where}{why}", field=name
                )
        return by_input

    def _unknown(self, names: Iterable[str]) -> InvalidRequest:
        listed = ", ".join(f"'{name[:100]}'" for name in islice(names, 10))
        return InvalidRequest(
            f"model '{self._model}' has no input {listed}; its inputs are {self._names()}"
        )

    def _names(self) -> str:
        return ", ".join(f"'{name}'" for name in self._tensors.inputs)

    # The answer

    def _rows(self, form: Form, column: Column) -> Sequence[Any]:
        if isinstance(column, np.ndarray):
            rows: list[Any] = column.tolist()
            return rows
        if form is Form.BYTES:
            return [_base64(row) for row in column]
        if form is Form.ARRAYS or form is Form.ARRAY:
            return [row if row is None else row.tolist() for row in column]
        return column


def _base64(row: Any) -> Any:
    """Bytes, or lists of them, as JSON has them."""
    if row is None:
        return None
    if isinstance(row, list):
        return [_base64(one) for one in row]
    return in_base64(row)


class NaturalRoutes:
    def __init__(self, entry: HttpEntry) -> None:
        self._entry = entry
        self._generation = -1
        self._models: dict[str, NaturalModel] = {}
        self._routes: dict[str, Route] = {}

    def route(self, path: str) -> Route | None:
        """The route at this path as the models are now; it must be looked up for each request."""
        generation = self._entry.registry.generation
        if generation != self._generation:
            self._look_again()
            self._generation = generation  # as it was before: what changes meanwhile is seen next
        return self._routes.get(path)

    def _look_again(self) -> None:
        kept, self._models, self._routes = self._models, {}, {}
        for route, name in self._entry.registry.routes().items():
            old = kept.get(route)
            model = old if old is not None and old.name == name else NaturalModel(self._entry, name)
            self._models[route] = model
            self._routes[route] = Route({"POST": model}, "inference")


class NaturalModel:
    """The highest version of a model at its route: called with each exchange."""

    def __init__(self, entry: HttpEntry, name: str) -> None:
        self._path = ModelPath(entry, name, None)
        #: The codec of the version that was called last, and its natural codec.
        self._codecs: tuple[ModelCodec, NaturalCodec] | None = None

    @property
    def name(self) -> str:
        return self._path.name

    def __call__(self, exchange: Exchange) -> None:
        entry = self._path.entry
        entry.admission.check()
        try:
            loaded, codec = self._path.find()
        except ModelNotFound:
            raise ModelNotFound("Not Found") from None  # it has gone just now
        known = self._codecs
        if known is None or known[0] is not codec:
            natural = NaturalCodec(tensors_of(loaded, entry.common), loaded.signature)
            known = self._codecs = codec, natural
        call = NaturalStream if loaded.signature.streams else GenerateCall
        call(entry, loaded, known[1], exchange).begin()


class NaturalStream(StreamCall):
    """A call of a generator at its natural route: events, or lines of JSON."""

    def events(self, exchange: Exchange) -> EventStream:
        self.output_format = self.codec.output_format(exchange.request.head)
        return (JsonLines if self.output_format.lines else EventStream)(exchange)
