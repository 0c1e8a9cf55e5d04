"""Which fault of an infer request's JSON does Triton tell? For `--triton-strict`.

A request may have several faults, and Triton reads it in an order of its own (http_server.cc): the
id, the parameters, each input with its data, each output; then its core looks at the model
(`triton_core.py`). This is that order, with its words. Pure; it is asked only about requests that
were refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any, Final

from wherry.frontends.v2.json_errors import mismatch
from wherry.frontends.v2.parameters import check_text_of_sequence
from wherry.frontends.v2.triton_core import (
    CoreView,
    TakenInput,
    binary_input,
    core_fault,
    id_before,
)
from wherry.frontends.v2.triton_words import ToldError
from wherry.values.buffer import Buffer
from wherry.values.datatypes import DATATYPES
from wherry.values.errors import ConfigError, Unsupported

_ONE_OF: Final = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters',"
    " 'shared_memory_region' in 'parameters'. But"
)
NO_REGION: Final = "Unable to find shared memory region: '{}'"
_SHAPE: Final = "Unable to parse 'data': Shape does not match true shape of 'data' field"
#: Sizes of more bits are no whole numbers to Triton's JSON.
_SIGNED: Final = range(-(2**63), 2**63)
_UNSIGNED: Final = range(2**64)


class JsonFault(Exception):
    """Triton's words, and whether it takes the fault for its own (500)."""

    def __init__(self, text: str, status: int = 500) -> None:
        self.told = ToldError(status, "", text)


class Elsewhere(Exception):
    """What comes now depends on more than the request: on this region, or on the model."""

    def __init__(self, region: str = "") -> None:
        self.region = region


def first_fault(
    text: bytes, binary: Buffer, model: str, view: CoreView | None = None
) -> ToldError | None:
    """The fault that Triton tells of a request's JSON, which `binary` follows; None if it has
    none that Triton's reader sees, nor its core where there is a `view` for it. Linear in its
    size."""
    try:
        request = json.loads(text)
        request = request if isinstance(request, dict) else {}
        inputs, outputs = _request(request, binary, model)
        told = view and core_fault(view, inputs, outputs, request.get("id", ""))
        return ToldError(400, "", told) if told else None
    except JsonFault as fault:
        return fault.told
    except Elsewhere as place:
        missing = view and place.region and not view.has_region(place.region)
        return ToldError(404, "", NO_REGION.format(place.region)) if missing else None
    except (ValueError, RecursionError):
        return None
    return None


def _request(
    request: Mapping[str, Any], binary: Buffer, model: str
) -> tuple[list[TakenInput], list[str]]:
    """What the core gets: the inputs, and the names of outputs."""
    if "id" in request:
        _member(request, "id", "str")
    if "parameters" in request:
        _parameters(request["parameters"])
    taken: dict[str, TakenInput] = {}
    for given in _member(request, "inputs", "array"):
        given = given if isinstance(given, dict) else {}
        one = _input(given, binary, model, taken, request.get("id", ""))
        taken[one.name] = one
        binary = binary[_of_tensor(given).get("binary_data_size", 0) :]
    if len(binary):
        raise JsonFault(f"unexpected additional input data for model '{model}'", 400)
    outputs: list[str] = []
    if "outputs" in request:
        given_outputs = _member(request, "outputs", "array")
        outputs = [_output(one if isinstance(one, dict) else {}) for one in given_outputs]
    return [*taken.values()], outputs


def _parameters(given: Any) -> None:
    if not isinstance(given, dict):
        raise JsonFault("failed to get request params.: attempt to get members for non-object")
    kinds = {
        "sequence_start": "bool", "sequence_end": "bool", "binary_data_output": "bool",
        "priority": "unsigned", "timeout": "unsigned",
    }  # fmt: skip
    for name, value in given.items():
        if name == "sequence_id":
            if not _is(value, "unsigned"):
                _member(given, name, "str")
                _check_text_of_sequence(given)
        elif name in kinds:
            _member(given, name, kinds[name])
        elif name.startswith("triton_"):
            raise JsonFault(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should"
                " not be specified.",
                400,
            )
        else:
            check_parameter(name, value)


def _check_text_of_sequence(given: Mapping[str, Any]) -> None:
    try:
        check_text_of_sequence(given)
    except Unsupported as error:
        raise JsonFault(str(error), error.http_status) from None


def check_parameter(name: str, value: Any) -> None:
    """JsonFault for a parameter of a request that is neither text nor number nor bool."""
    if not isinstance(value, str | int | float):
        raise JsonFault(
            f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.",
            400,
        )


def _input(
    given: Mapping[str, Any],
    binary: Buffer,
    model: str,
    others: Mapping[str, TakenInput],
    request_id: str,
) -> TakenInput:
    parameters = _of_tensor(given)
    sources = [name for name, place in (("data", given), ("binary_data_size", parameters),
               ("shared_memory_region", parameters)) if name in place]  # fmt: skip
    if len(sources) != 1:
        told = " ".join(["set", *(f"'{name}'" for name in sources)])
        raise JsonFault(f"{_ONE_OF} {told if sources else 'no field is set'}", 400)
    name = _member(given, "name", "str")
    datatype = _member(given, "datatype", "str")
    shape = _member(given, "shape", "array")
    if not all(_is(dim, "unsigned") for dim in shape):
        raise JsonFault(f"Unable to parse 'shape': {mismatch('unsigned')}")
    if name in others:
        raise JsonFault(id_before(f"input '{name}' already exists in request", request_id), 400)
    if sources == ["binary_data_size"]:
        size: int = _member(parameters, "binary_data_size", "unsigned")
        if size > len(binary):
            raise JsonFault(
                f"unexpected size for input '{name}', expecting {size - len(binary)} additional"
                f" bytes for model '{model}'",
                400,
            )
        return binary_input(name, datatype, shape, binary[:size])
    _check_window(parameters)
    if "shared_memory_region" in parameters:
        raise Elsewhere(parameters["shared_memory_region"])
    # The product wraps around, and nothing is read of no shape.
    count = prod(shape) % _UNSIGNED.stop if shape else 0
    if count >= _SIGNED.stop:
        raise Elsewhere
    if count:
        check_data(_member(given, "data", "array"), name, datatype, count)
    known = DATATYPES.get(datatype)
    if datatype == "BYTES":
        elements = flat(given["data"]) if count else ()
        return TakenInput(name, datatype, shape, len(elements))
    return TakenInput(name, datatype, shape, count * known.itemsize if known else 0)


def check_data(data: list[Any], name: str, datatype: str, count: int) -> None:
    """JsonFault for elements that are not `count` of this datatype."""
    elements = flat(data)
    if datatype == "BYTES":
        if not all(isinstance(element, str) for element in elements):
            raise JsonFault(f"Unable to parse JSON bytes array: {mismatch('str')}")
        return
    if datatype in ("FP16", "BF16"):
        raise JsonFault(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data"
            f" format for input {name}",
            400,
        )
    kind = _kind_of(datatype)
    if not kind:
        raise JsonFault(f"invalid datatype for input {name}", 400)
    for position, element in enumerate(elements):
        if position >= count:
            raise JsonFault(_SHAPE)
        if not _is(element, kind):
            raise JsonFault(f"Unable to parse 'data': {mismatch(kind)}")
    if len(elements) != count:
        raise JsonFault(_SHAPE)


def _output(wanted: Mapping[str, Any]) -> str:
    parameters = _of_tensor(wanted)
    elsewhere = "shared_memory_region" in parameters
    if elsewhere and "classification" in parameters:
        raise JsonFault("Output can't set both 'shared_memory_region' and 'classification'", 400)
    if elsewhere and "binary_data" in parameters:
        if not isinstance(parameters["binary_data"], bool):
            raise JsonFault(f"Unable to set 'binary_data': {mismatch('bool')}")
        if parameters["binary_data"]:
            raise JsonFault("Output can't set both 'shared_memory_region' and 'binary_data'", 400)
    name: str = _member(wanted, "name", "str")
    if "classification" in parameters and not _is(parameters["classification"], "unsigned"):
        raise JsonFault(f"Unable to set 'classification': {mismatch('unsigned')}")
    _check_window(parameters)
    if elsewhere:
        raise Elsewhere(parameters["shared_memory_region"])
    if "binary_data" in parameters:
        _member(parameters, "binary_data", "bool")
    return name


def _check_window(parameters: Mapping[str, Any]) -> None:
    for name, kind in (("shared_memory_region", "str"), ("shared_memory_offset", "unsigned"),
                       ("shared_memory_byte_size", "unsigned")):  # fmt: skip
        if name in parameters:
            _member(parameters, name, kind)


def _of_tensor(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters of an input or an output: what is no object has none."""
    parameters = given.get("parameters")
    return parameters if isinstance(parameters, dict) else {}


def _member(owner: Mapping[str, Any], name: str, kind: str) -> Any:
    if name not in owner:
        raise JsonFault(
            f"Unable to parse '{name}': attempt to access non-existing object member '{name}'"
        )
    if not _is(owner[name], kind):
        raise JsonFault(f"Unable to parse '{name}': {mismatch(kind)}")
    return owner[name]


def _is(value: Any, kind: str) -> bool:
    match kind:
        case "str":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
        case "bool":
            return isinstance(value, bool)
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
    whole = _UNSIGNED if kind == "unsigned" else _SIGNED
    return type(value) is int and value in whole


def _kind_of(datatype: str) -> str:
    """How Triton reads an element in JSON; "" of what is no datatype."""
    try:
        dtype = DATATYPES[datatype].dtype
    except (KeyError, ConfigError):
        return ""
    return {"b": "bool", "u": "unsigned", "i": "int", "f": "float"}.get(dtype.kind, "")


def flat(data: list[Any]) -> list[Any]:
    """Return the elements of nested lists, in order."""
    found: list[Any] = []
    stack = [iter(data)]
    while stack:
        for element in stack[-1]:
            if isinstance(element, list):
                stack.append(iter(element))
                break
            found.append(element)
        else:
            stack.pop()
    return found
