"""How do the values of a form, by name and as text or bytes, become columns?

A field that is repeated is several rows, or the elements of a row that is a list; one that is
sent once beside others with several rows holds for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from wherry.core.api import (
    AudioSpec,
    Buffer,
    Columns,
    Form,
    ImageSpec,
    InvalidRequest,
    UnsupportedMediaType,
)
from wherry.server.calls.parameters import checked_parameters
from wherry.server.content.media_types import FORM, JSON, quoted
from wherry.server.content.multipart import NamedValue, begins_json, named_values
from wherry.server.content.urls import is_url
from wherry.server.http.exchange import RequestHead
from wherry.server.v2.json_elements import explain, parse_element
from wherry.server.v2.model_tensors import DecodedRequest, ModelTensors
from wherry.server.v2.row_values import RowValues

#: Words that a form may use beside JSON's, in any case, by the kind of the datatype: those of
#: Python clients, and of a browser's checkbox.
_WORDS: Final[Mapping[str, Mapping[str, bool | float]]] = {
    "b": {
        **dict.fromkeys(("true", "on", "yes", "1"), True),
        **dict.fromkeys(("false", "off", "no", "0"), False),
    },
    "f": {"nan": math.nan, "inf": math.inf, "-inf": -math.inf},
}


class FormCodec:
    def __init__(self, tensors: ModelTensors) -> None:
        self._tensors = tensors
        self._model = tensors.model
        self.rows = {
            name: RowValues(codec.spec, tensors.model, tensors.urls, tensors.most_bytes)
            for name, codec in tensors.inputs.items()
        }
        #: A row may be at a URL.
        self.fetches = tensors.urls.fetches and any(
            rows.spec.media is not None for rows in self.rows.values()
        )
        files = [rows for rows in self.rows.values() if rows.spec.form is Form.BYTES]
        required = [rows for rows in files if not rows.spec.optional]
        #: The input that a body without a name is for.
        candidates = required if len(required) == 1 else files
        self.file_input = candidates[0] if len(candidates) == 1 else None
        texts = [rows for rows in self.rows.values() if rows.spec.form is Form.TEXT]
        self._text_input = texts[0] if len(texts) == 1 else None

    def values(self, head: RequestHead, body: Buffer) -> list[NamedValue] | None:
        """Return `named_values`; None, too, for JSON that is labelled as another type, if it cannot
        be a file: a browser's fetch sends every string as text/plain."""
        values = named_values(head, body)
        if values and not values[0].name and begins_json(body):
            reader, text = self.file_input, (values[0].media_type or "").startswith("text/")
            if reader is None or (text and isinstance(reader.spec.media, ImageSpec | AudioSpec)):
                return None
        return values

    def decode(self, values: Sequence[NamedValue]) -> DecodedRequest:
        """Decode a generate request: values that are not inputs are its parameters."""
        columns, rows, others = self.columns(values)
        request_id, parameters = "", {}
        for value in others:
            text = self._text(value.data, value.name)
            if value.name == "id":
                request_id = text
            else:
                parameters[value.name] = _scalar(text)
        return DecodedRequest(columns, rows, request_id, checked_parameters(parameters))

    def columns(self, values: Sequence[NamedValue]) -> tuple[Columns, int, list[NamedValue]]:
        """The columns, their rows, and the values that are not inputs. InvalidRequest."""
        by_name: dict[str, list[NamedValue]] = {}
        others: list[NamedValue] = []
        for value in values:
            name = value.name or self._name_of_file(value)
            if name in self.rows:
                by_name.setdefault(name, []).append(value)
            else:
                others.append(value)
        rows = {
            name: found for name, several in by_name.items() if (found := self._rows(name, several))
        }
        return *self.columns_of_rows(rows), others

    def columns_of_rows(self, by_name: dict[str, list[Any]]) -> tuple[Columns, int]:
        count = max(map(len, by_name.values()), default=1)
        for name, found in by_name.items():
            if len(found) not in (1, count):
                raise InvalidRequest(
                    f"input '{name}' of model '{self._model}' has {len(found)} rows, others have"
                    f" {count}",
                    field=name,
                )
        self._tensors.check_rows(count)
        columns: Columns = {
            name: self.rows[name].column(found)
            if len(found) == count
            else self.rows[name].repeated(found[0], count)
            for name, found in by_name.items()
        }
        return self._tensors.complete(columns), count

    def _rows(self, name: str, values: list[NamedValue]) -> list[Any]:
        """What each row of an input is; none if its fields are empty, as a browser sends them."""
        reader = self.rows[name]
        spec = reader.spec
        if all(not len(one.data) and not (one.filename or one.name == "") for one in values) and (
            spec.form not in (Form.TEXT, Form.BYTES) or values[0].is_file
        ):
            return []
        if not spec.shape and not spec.holds_lists:
            return [self._value(reader, one) for one in values]
        if spec.form in (Form.TEXT, Form.BYTES) or get_args(spec.json_type)[:1] == (str,):
            elements = [
                one.data if spec.form is Form.BYTES else self._text(one.data, name)
                for one in values
            ]
            if len(elements) > 1 or not str(elements[0]).startswith("["):
                return [elements]
        found = [self._value(reader, one) for one in values]
        return found if all(isinstance(one, list) for one in found) else [found]

    def _value(self, reader: RowValues, value: NamedValue) -> Any:
        data, spec = value.data, reader.spec
        if spec.form is Form.TEXT and not spec.shape:
            return self._text(data, reader.name)
        if spec.media is not None and (value.is_file or not is_url(_begin(data))):
            if isinstance(data, str):
                data = data.encode("utf-8", "surrogateescape")
            return reader.named_file(data, value.filename, value.media_type)
        if spec.media is not None:
            return self._text(data, reader.name)
        if spec.form is Form.BYTES and not spec.shape:
            return data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
        text = self._text(data, reader.name)
        kind: str = "b" if get_args(spec.json_type)[:1] == (bool,) else spec.datatype.dtype.kind
        word = _WORDS.get(kind, {}).get(text.strip().lower())
        if word is not None:
            return word
        try:
            return parse_element(text)
        except InvalidRequest:
            raise  # it is too large or too deep
        except (ValueError, RecursionError) as error:
            kind = "JSON" if spec.form is Form.JSON else f"{spec.datatype} as JSON"
            raise reader.invalid(
                f"expected {kind}, got {quoted(text)} ({explain(error)})"
            ) from None

    def _text(self, data: str | Buffer, name: str) -> str:
        try:
            if isinstance(data, str):
                data.encode()
                return data
            return str(data, "utf-8")
        except UnicodeError:
            raise InvalidRequest(
                f"field {quoted(name)} for model '{self._model}' is not UTF-8 text"
            ) from None

    def _name_of_file(self, value: NamedValue) -> str:
        """The input that a body of one file is for. UnsupportedMediaType if there is none."""
        of_text = (value.media_type or "").startswith("text/")
        reader = self.file_input or (self._text_input if of_text else None)
        if reader is not None:
            return reader.name
        takes = ", ".join(f"{rows.name} ({rows.spec.datatype})" for rows in self.rows.values())
        raise UnsupportedMediaType(
            f"model '{self._model}' has no single input that a body of type {value.media_type}"
            f" could be; its inputs are {takes}: send {JSON} or {FORM}"
        )


def _begin(data: str | Buffer) -> str:
    return data[:16] if isinstance(data, str) else str(data[:16], "latin-1")


def _scalar(text: str) -> str | int | float | bool:
    try:
        value = parse_element(text)
    except (ValueError, RecursionError):
        return text
    number = isinstance(value, int | float) and math.isfinite(value)  # a bool is an int
    return value if number else text
