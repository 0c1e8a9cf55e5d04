"""How do the values of rows, each as JSON or a form has it, become a column?

One value is one row: a number where a row is a number, a list where a row is a list. Values in,
values out, no I/O. Every mistake of a client raises an InvalidRequest that names model, input, the
type that was expected and what came.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any, Final

import msgspec
import numpy as np

from wherry.core.api import (
    Array,
    Buffer,
    Column,
    Columns,
    FileBytes,
    FileSpec,
    Form,
    InvalidRequest,
    RequestTooLarge,
    ShapedRow,
    Tag,
    TensorSpec,
    bytes_of,
)
from wherry.server.content.urls import (
    MAX_URLS,
    Fetched,
    Fetching,
    InputUrls,
    b64decode,
    decoded,
    is_url,
)
from wherry.server.v2.element_bytes import dims_text
from wherry.server.v2.json_elements import NON_FINITE, element_type, explain


class InBase64(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The object that stands for bytes in JSON."""

    b64: msgspec.Raw

    def content(self) -> bytes:
        """ValueError if it is not base64, or has escapes, which `decoded` reads."""
        text = memoryview(self.b64)
        if text[0] != ord('"'):
            raise ValueError
        return b64decode(text[1:-1])


_Members = dict[str, msgspec.Raw]
_OneOrMore = InBase64 | str | list[InBase64 | str]

_decode_some: Final = msgspec.json.Decoder(_Members | list[_Members]).decode
_decode_files: Final = msgspec.json.Decoder(_OneOrMore).decode
_decode_any: Final = msgspec.json.Decoder().decode


def rows_with_files(body: Buffer, files: Collection[str]) -> Any:
    """The members of a JSON object, or of a list of them, with bytes in those that `files`
    names; None if it is malformed: another parser finds out why."""
    try:
        found = _decode_some(body)
        several = found if isinstance(found, list) else [found]
        rows = [
            {name: _file(raw) if name in files else _decode_any(raw) for name, raw in one.items()}
            for one in several
        ]
    except (ValueError, RecursionError):
        return None
    return rows if several is found else rows[0]


def _file(raw: msgspec.Raw) -> Any:
    try:
        found = _decode_files(raw)
    except msgspec.ValidationError:
        return _decode_any(raw)  # the input that needs bytes raises the precise error
    if type(found) is list:
        return [one.content() if type(one) is InBase64 else one for one in found]
    return found.content() if type(found) is InBase64 else found


#: The only member of the object that stands for bytes in JSON.
B64: Final = "b64"
#: Bytes of the lists and objects that are made of one which holds for several rows: some 20 ms.
MAX_REPEATED_BYTES: Final = 8 * 2**20


class RowValues:
    def __init__(
        self,
        spec: TensorSpec,
        model: str,
        urls: InputUrls | None = None,
        most_bytes: int = sys.maxsize,
    ) -> None:
        """A data URL has at most `most_bytes`."""
        self.spec = spec
        self._urls = urls or InputUrls()
        self._most_bytes = most_bytes
        self.name = spec.name
        self._model = model
        self._is_json = spec.form is Form.JSON and spec.shape == ()
        row_type: Any = element_type(spec.datatype)
        for _ in spec.shape:
            row_type = list[row_type]
        #: The type of a list of rows of numbers.
        self._type: Any = list[row_type]

    def column(self, rows: list[Any]) -> Column:
        """Return the column of these rows. Files in a row are bytes, and so is `{"b64": text}`; one
        that is to be fetched is a UrlFile."""
        form = self.spec.form
        if self._is_json:
            return rows
        if form is Form.TEXT:
            return [self._strings(row, self._text, index) for index, row in enumerate(rows)]
        if form is Form.BYTES and self.spec.media is not None:
            return [self.file_of(row, f"[{i}]" if i else "") for i, row in enumerate(rows)]
        if form is Form.BYTES:
            return [self._strings(row, self.bytes_of, index) for index, row in enumerate(rows)]
        if form is Form.JSON:
            return [self._strings(row, lambda one, _: one, i) for i, row in enumerate(rows)]
        return self._numbers(rows)

    def repeated(self, row: Any, count: int) -> Column:
        """Return the column of one row that holds for `count` of them. It is read once, and takes
        its memory once: but for lists and objects, which a model may change one by one."""
        column = self.column([row])
        if isinstance(column, np.ndarray):
            return np.broadcast_to(column, (count, *column.shape[1:]))
        if isinstance(column[0], str | bytes | UrlFile):
            return column * count
        nbytes = bytes_of({self.name: column}) * count
        if nbytes > MAX_REPEATED_BYTES:
            raise RequestTooLarge(
                f"{self.invalid(f'is sent once for {count} rows, which would be {nbytes} bytes')},"
                f" and at most {MAX_REPEATED_BYTES} are allowed; send fewer rows at a time"
            )
        if self._is_json:
            packed = msgspec.msgpack.encode(row)
            return [msgspec.msgpack.decode(packed) for _ in range(count)]
        return self.column([row] * count)

    def wrong(self, expected: str, value: Any, place: str = "") -> InvalidRequest:
        error = self.invalid(f"expected {expected}, got {kind_of(value)}", place)
        error.tag = Tag.JSON
        return error

    def invalid(self, problem: str, place: str = "") -> InvalidRequest:
        where = f"input '{self.name}{place}' of model '{self._model}'"
        return InvalidRequest(f"{where}: {problem}", field=self.name)

    def named(self, error: InvalidRequest, place: str) -> InvalidRequest:
        """An error about a URL, with model and input."""
        error.args = (str(self.invalid(str(error), place)),)
        return error

    def _strings(self, row: Any, element: Any, index: int) -> Any:
        """A row of one element, or of several in lists as deep as the row has dimensions."""
        place = f"[{index}]" if index else ""
        shape = self.spec.shape
        if not shape:
            return element(row, place)
        flat, dims = [row], []
        for dim in shape:
            if not all(isinstance(one, list) for one in flat):
                other = next(one for one in flat if not isinstance(one, list))
                raise self.wrong(f"array of shape {dims_text(list(shape))}", other, place)
            sizes = {len(one) for one in flat}
            if len(sizes) > 1 or (dim != -1 and sizes != {dim}):
                raise self.invalid(f"a row has the shape {dims_text(list(shape))}", place)
            dims.append(sizes.pop() if sizes else 0)
            flat = [inner for one in flat for inner in one]
        elements = [element(one, f"{place}[{i}]") for i, one in enumerate(flat)]
        return ShapedRow(elements, tuple(dims)) if shape.count(-1) > 1 else elements

    def _text(self, value: Any, place: str) -> str:
        if type(value) is str:
            return value
        if isinstance(value, bytes | memoryview):
            try:
                return str(value, "utf-8")
            except UnicodeDecodeError as error:
                raise self.invalid(
                    f"expected UTF-8 text ({error.reason} at byte {error.start})", place
                ) from None
        raise self.wrong("str", value, place)

    def bytes_of(self, value: Any, place: str = "") -> bytes:
        if type(value) is dict and len(value) == 1 and type(value.get(B64)) is str:
            try:
                return decoded(value[B64])
            except ValueError as error:
                raise self.invalid(f"is not base64: {error}", f"{place}.{B64}") from None
        if type(value) is str:
            return value.encode("utf-8", "surrogatepass")
        if isinstance(value, bytes):
            return value
        if isinstance(value, memoryview):
            return bytes(value)
        raise self.wrong(f'str, or object {{"{B64}": base64}}', value, place)

    def file_of(self, value: Any, place: str = "") -> bytes | UrlFile:
        """The bytes of an image, audio or file: sent as they are, in base64 or in a data URL; or
        the URL to fetch them from. InvalidRequest."""
        if type(value) is str:
            if not is_url(value):
                raise self.wrong(f'a URL, or object {{"{B64}": base64}}', value, place)
            try:
                found = self._urls.read(value, self._most_bytes)
            except InvalidRequest as error:
                raise self.named(error, place) from None
            if found is None:
                return UrlFile(self, value.partition("#")[0], place)
            return self.named_file(found.data, found.name, found.media_type)
        return self.bytes_of(value, place)

    def named_file(
        self, data: bytes | bytearray | memoryview, name: str | None, media_type: str | None
    ) -> bytes:
        """A row that is a file; with its name and type, if the model takes those."""
        if isinstance(self.spec.media, FileSpec):
            return FileBytes(data, name, media_type)
        return data if isinstance(data, bytes) else bytes(data)

    def _numbers(self, rows: list[Any]) -> Column:
        dtype = self.spec.datatype.dtype
        try:
            values = msgspec.convert(rows, self._type)
        except msgspec.ValidationError as error:
            deep = len(self.spec.shape) + 1
            loose = with_non_finite(rows, deep) if dtype.kind == "f" else rows
            try:
                values = msgspec.convert(loose, self._type)
            except msgspec.ValidationError:
                reason = explain(error, "\n").removeprefix("\n")
                place, colon, problem = reason.partition(": ")
                place, problem = (place, problem) if colon else ("", reason)
                # The first index is the row: most requests have one.
                raise self.invalid(problem, place.removeprefix("[0]")) from None
        with np.errstate(over="raise"):
            try:
                if self.spec.form is Form.ARRAYS:
                    return [self._fitting(np.array(row, dtype)) for row in values]
                array: Array = np.array(values, dtype)
            except (OverflowError, FloatingPointError):
                raise self.invalid(
                    f"a number is out of the range of {self.spec.datatype}"
                ) from None
            except ValueError:
                raise self.invalid(
                    "its rows differ in shape; send rows of different shapes separately"
                    if len(rows) > 1
                    else "its lists differ in length, so it is not an array"
                ) from None
        self._fitting(array[0])
        return array

    def _fitting(self, row: Any) -> Any:
        if not self.spec.fits(row.shape):
            shape, got = dims_text(list(self.spec.shape)), dims_text(list(row.shape))
            raise self.invalid(f"a row has the shape {shape}, got {got}")
        return row


class UrlFile(msgspec.Struct, eq=False):
    """A row that is a file at a URL, until it is fetched."""

    reader: RowValues
    url: str
    place: str


def url_files(columns: Columns) -> list[UrlFile]:
    """The rows that are to be fetched. RequestTooLarge if they are at too many URLs."""
    files = [
        row
        for column in columns.values()
        if isinstance(column, list)
        for row in column
        if type(row) is UrlFile
    ]
    count = len({file.url for file in files})
    if count > MAX_URLS:
        raise RequestTooLarge(f"the request has {count} URLs; at most {MAX_URLS} are allowed")
    return files


def fetch_files(
    columns: Columns, files: list[UrlFile], urls: InputUrls, most: int, fetching: Fetching
) -> None:
    """Put the bytes of `files` in their places, of at most `most` bytes. Each URL is fetched once,
    one after another. Blocks, as `InputUrls.fetch`."""
    fetched: dict[str, Fetched] = {}
    rows: dict[tuple[str, str], bytes] = {}
    for file in files:
        found = fetched.get(file.url)
        if found is None:
            try:
                found = fetched[file.url] = urls.fetch(file.url, most, fetching)
            except InvalidRequest as error:
                raise file.reader.named(error, file.place) from None
            most -= len(found.data)
        key = file.reader.name, file.url
        if key not in rows:
            rows[key] = file.reader.named_file(found.data, found.name, found.media_type)
    for column in columns.values():
        if isinstance(column, list):
            column[:] = [
                rows[row.reader.name, row.url] if type(row) is UrlFile else row for row in column
            ]


def in_base64(row: Any) -> dict[str, Any]:
    """Bytes as JSON has them."""
    # encode_json writes the bytes of a view in base64, and no subclass of bytes.
    return {B64: memoryview(row.encode() if isinstance(row, str) else row)}


def with_non_finite(value: Any, depth: int) -> Any:
    """Lists, `depth` of them within each other, with the floats that JSON lacks in place of
    their names."""
    if type(value) is list:
        return [with_non_finite(one, depth - 1) for one in value] if depth else value
    return NON_FINITE.get(value, value) if type(value) is str else value


def kind_of(value: Any) -> str:
    """The name of a value's type, as errors about JSON have it."""
    names = {dict: "object", list: "array", type(None): "null", memoryview: "bytes"}
    return names.get(type(value), type(value).__name__)
