"""What does Triton take of an infer request that this server refuses? For `--triton-strict`.

Parameters of tensors may be anything where it does not look at them, numbers that their datatype
cannot hold wrap around, the data of a shape without elements is not read, no rows of other data are
one, and a priority that there is not is the default one. A mark before the JSON is passed over, and
a zero byte ends it. Pure; it is asked only about requests that were refused for one of these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from wherry.values.datatypes import DATATYPES

_NUMBERS: Final = re.compile(r".*(data\[.*\]: expected int|out of the range of|non-unsigned-integer"
                             r" as unsigned-integer \(input ).*", re.DOTALL)  # fmt: skip
_NOTHING: Final = re.compile(
    r"unexpected number of string elements .*, expecting 0"
    r"|Unable to parse 'data': Shape does not match .*needs 0 elements.*",
    re.DOTALL,
)
_NO_ROWS: Final = re.compile(r"input '.*' of model '.*': shape has 0 rows; .*", re.DOTALL)
_NO_JSON: Final = re.compile(r"failed to parse the request JSON buffer: .*", re.DOTALL)
_PRIORITY: Final = re.compile(r"model '.*': priority \d+ is not between .*")
_OF_TENSORS: Final = re.compile(r"(Unable to parse 'parameters'|attempt to get members|"
                                r"failed to get request params).*", re.DOTALL)  # fmt: skip
_WINDOW: Final = ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")
#: What Triton looks at among the parameters of a tensor.
_LOOKED_AT: Final = {
    "inputs": ("binary_data_size", *_WINDOW),
    "outputs": ("binary_data", "classification", *_WINDOW),
}
_NARROW: Final = ("INT8", "INT16", "INT32", "UINT8", "UINT16", "UINT32")


def as_triton_takes_it(text: bytes, told: str, *, length: int | None = None) -> bytes | None:
    """The JSON of a request that was refused with `told`, as Triton takes it; None if it would not.

    `length`: how many bytes it must have, as binary data follows it.
    """
    is_wide, is_unread, no_rows, priority, loose, no_json = (
        pattern.fullmatch(told) is not None
        for pattern in (
            _NUMBERS, _NOTHING, _NO_ROWS, _PRIORITY, _OF_TENSORS, _NO_JSON
        )
    )  # fmt: skip
    if not (is_wide or is_unread or no_rows or priority or loose or no_json):
        return None
    try:
        request = json.loads(text)
        if loose:
            for kind, names in _LOOKED_AT.items():
                if kind in request:
                    request[kind] = [_looked_at(given, names) for given in request[kind]]
        if is_wide:
            request["inputs"] = [_wrapped(given) for given in request["inputs"]]
        if is_unread:
            for given in request["inputs"]:
                if "data" in given and 0 in given["shape"]:
                    given["data"] = []
        if no_rows:
            request["inputs"] = [_with_a_row(given) for given in request["inputs"]]
        if priority:
            request["parameters"].pop("priority")
    except (ValueError, RecursionError, TypeError, LookupError, AttributeError):
        return None
    made = json.dumps(request, separators=(",", ":")).encode()
    if length is None:
        return made
    return made.ljust(length) if len(made) <= length else None


def generate_as_triton_takes_it(
    text: bytes, told: str, datatypes: Mapping[str, str]
) -> bytes | None:
    """The same of a generate request; `datatypes` are those of the model's inputs."""
    if _NUMBERS.fullmatch(told) is None and _NO_JSON.fullmatch(told) is None:
        return None
    try:
        request = json.loads(text)
        for name, datatype in datatypes.items():
            if name in request:
                given = request[name]
                data = given if isinstance(given, list) else [given]
                request[name] = _wrapped({"datatype": datatype, "data": data})["data"]
    except (ValueError, RecursionError, TypeError):
        return None
    return json.dumps(request, separators=(",", ":")).encode()


def _with_a_row(given: dict[str, Any]) -> dict[str, Any]:
    if "data" in given or not given["shape"] or given["shape"][0] != 0:
        return given
    return {**given, "shape": [1, *given["shape"][1:]]}


def _looked_at(given: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """A tensor with the parameters that Triton looks at."""
    if "parameters" not in given:
        return given
    parameters = given["parameters"]
    known = parameters if isinstance(parameters, dict) else {}
    return {**given, "parameters": {name: known[name] for name in names if name in known}}


def _wrapped(given: dict[str, Any]) -> dict[str, Any]:
    """An input whose numbers its datatype can hold."""
    datatype = given["datatype"]
    if "data" not in given or datatype not in (*_NARROW, "FP32"):
        return given
    elements = [*_elements(given["data"])]
    if datatype == "FP32":
        with np.errstate(over="ignore"):
            return {**given, "data": np.array(elements, float).astype(np.float32).tolist()}
    if any(type(element) is not int or not -(2**63) <= element < 2**64 for element in elements):
        return given
    wide = np.array([element % 2**64 for element in elements], np.uint64)
    return {**given, "data": wide.astype(DATATYPES[datatype].dtype).tolist()}


def _elements(data: Any) -> Iterator[Any]:
    """The elements of lists that may be nested."""
    if isinstance(data, list):
        for element in data:
            yield from _elements(element)
    else:
        yield data
