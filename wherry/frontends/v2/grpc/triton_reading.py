"""Which fault of a ModelInferRequest does Triton tell? For `--triton-strict`.

Triton's order (infer_handler.cc): the parameters, each input's shared memory and contents, each
output's parameters; then its core looks at the model (`triton_core.py`). Pure; asked only about
refused requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from wherry.frontends.v2.grpc.infer_codec import (
    CONTENTS_DTYPE,
    CONTENTS_FIELD,
    EMPTY_FINAL_RESPONSE,
    KIND_OF_FIELD,
)
from wherry.frontends.v2.parameters import check_text_of_sequence
from wherry.frontends.v2.triton_core import (
    CoreView,
    TakenInput,
    binary_input,
    core_fault,
    id_before,
)
from wherry.frontends.v2.triton_reading import NO_REGION
from wherry.values.datatypes import DATATYPES
from wherry.values.errors import InvalidRequest

#: The kinds of values that Triton's own parameters may have.
_KINDS: Final = {
    "sequence_id": ("int64_param", "string_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param",),
}


def first_fault(request: Mapping[str, Any], model: str, view: CoreView | None = None) -> str | None:
    """Triton's words for the first fault of a decoded request; None if it has none of those that
    Triton's reader sees, nor its core where there is a `view` for it. All of them are
    INVALID_ARGUMENT, but for a region that is not there: NOT_FOUND."""
    for name, parameter in request.get("parameters", {}).items():
        if told := _of_parameter(name, parameter):
            return told
    inputs = request.get("inputs", ())
    names: set[str] = set()
    for given in inputs:
        name = given.get("name", "")
        if name in names:
            text = f"input '{name}' already exists in request"
            return id_before(text, request.get("id", ""))
        names.add(name)
    raw = len(request.get("raw_input_contents", ()))
    for position, given in enumerate(inputs):
        name = given.get("name", "")
        told = _of_shared_memory(name, given.get("parameters", {}), view)
        if told or "shared_memory_region" in given.get("parameters", {}):
            return told  # the rest depends on what the region holds
        if told := _of_contents(given, model, raw, position):
            return told
    for wanted in request.get("outputs", ()):
        parameters = wanted.get("parameters", {})
        if told := _of_shared_memory(wanted.get("name", ""), parameters, view):
            return told
        if told := _of_classification(parameters.get("classification")):
            return told
    if view is None:
        return None
    outputs = [wanted.get("name", "") for wanted in request.get("outputs", ())]
    return core_fault(view, _taken(request), outputs, request.get("id", ""))


def taken_by_triton(request: Mapping[str, Any], *, batched: bool = False) -> dict[str, Any]:
    """A request as Triton takes it: numbers wrap around, a timeout below 0 is none, and no rows are
    one where a model is `batched`.
    InvalidRequest or Unsupported, in its words, for what it refuses where this server would not."""
    if told := first_fault(request, request.get("model_name", "")):
        raise InvalidRequest(told)
    taken = dict(request)
    parameters = request.get("parameters", {})
    check_text_of_sequence({name: value.get("string_param") for name, value in parameters.items()})
    if parameters.get("timeout", {}).get("int64_param", 0) < 0:
        taken["parameters"] = {k: v for k, v in parameters.items() if k != "timeout"}
    if "inputs" in request and "raw_input_contents" not in request:
        taken["inputs"] = [_wrapped(given) for given in request["inputs"]]
    if batched and "inputs" in taken:
        taken["inputs"] = [_with_a_row(given) for given in taken["inputs"]]
    return taken


def _with_a_row(given: Mapping[str, Any]) -> Mapping[str, Any]:
    shape = given.get("shape", ())
    return {**given, "shape": [1, *shape[1:]]} if len(shape) and shape[0] == 0 else given


def _wrapped(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """An input whose numbers its datatype can hold."""
    datatype, contents = given.get("datatype", ""), given.get("contents", {})
    field = CONTENTS_FIELD.get(datatype, "")
    if field not in CONTENTS_DTYPE or not len(contents.get(field, ())):
        return given
    wide = np.asarray(contents[field], CONTENTS_DTYPE[field])
    values = wide.astype(DATATYPES[datatype].dtype).astype(wide.dtype)
    return {**given, "contents": {**contents, field: values}}


def _taken(request: Mapping[str, Any]) -> list[TakenInput]:
    """What the core gets of the inputs."""
    found = []
    raw = iter(request.get("raw_input_contents", ()))
    for given in request.get("inputs", ()):
        name, shape = given.get("name", ""), given.get("shape", ())
        datatype = given.get("datatype", "")
        if "raw_input_contents" in request:
            found.append(binary_input(name, datatype, shape, next(raw, b"")))
            continue
        known = DATATYPES.get(datatype)
        values = next(iter(given.get("contents", {}).values()), ())
        nbytes = len(values) * (known.itemsize or 1) if known else 0
        found.append(TakenInput(name, datatype, shape, nbytes))
    return found


def _of_parameter(name: str, parameter: Mapping[str, Any]) -> str | None:
    kinds = _KINDS.get(name)
    if kinds is None:
        return _of_other_parameter(name, parameter)
    if not set(parameter) & set(kinds):
        expected = " or ".join(kinds)
        return f"invalid value type for '{name}' parameter, expected {expected}."
    if name == "priority" and parameter.get("int64_param", 0) < 0:
        return "invalid value for 'priority', expected value >= 0."
    return None


def _of_other_parameter(name: str, parameter: Mapping[str, Any]) -> str | None:
    if name == EMPTY_FINAL_RESPONSE:
        wanted: tuple[str, ...] = ("bool_param",)
        told = f"invalid value type for '{name}' parameter, expected bool_param."
    elif name.startswith("triton_"):
        return (
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the"
            f" following keys starting with 'triton_' are allowed: {EMPTY_FINAL_RESPONSE}"
        )
    else:
        wanted = ("int64_param", "bool_param", "string_param", "double_param")
        told = (
            f"invalid value type for '{name}' parameter, expected int64_param, bool_param, or"
            " string_param."
        )
    return None if set(parameter) & set(wanted) else told


def _of_shared_memory(
    name: str, parameters: Mapping[str, Any], view: CoreView | None
) -> str | None:
    region, size = (parameters.get(f"shared_memory_{member}") for member in ("region", "byte_size"))
    wrong = "invalid value type for 'shared_memory_{}' parameter for tensor '{}', expected {}."
    if region is None:
        for member in ("offset", "byte_size"):
            if f"shared_memory_{member}" in parameters:
                return (
                    f"'shared_memory_{member}' can not be specified without 'shared_memory_region'"
                    f" parameter for tensor '{name}'"
                )
        return None
    if "string_param" not in region:
        return wrong.format("region", name, "string_param")
    offset = parameters.get("shared_memory_offset", {"int64_param": 0})
    if "int64_param" not in offset:
        return wrong.format("offset", name, "int64_param")
    if size is None:
        return (
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region'"
            f" parameter for tensor '{name}'"
        )
    if "int64_param" not in size:
        return wrong.format("byte_size", name, "int64_param")
    if view is not None and not view.has_region(region["string_param"]):
        return NO_REGION.format(region["string_param"])
    return None


def _of_contents(given: Mapping[str, Any], model: str, raw: int, position: int) -> str | None:
    name, datatype = given.get("name", ""), given.get("datatype", "")
    filled = [field for field, values in given.get("contents", {}).items() if len(values)]
    if raw and filled:
        return (
            f"contents field must not be specified when using raw_input_contents for '{name}' for"
            f" model '{model}'"
        )
    if (position >= raw) if raw else ("contents" not in given):
        return f"unable to find data for input tensor '{name}' for model '{model}' in request."
    for field in filled:
        if field != CONTENTS_FIELD.get(datatype):
            told = datatype if datatype in DATATYPES else "<invalid>"
            return (
                f"unexpected explicit tensor data for input tensor '{name}' for model '{model}' of"
                f" type '{KIND_OF_FIELD[field]}', expected datatype '{told}'"
            )
    return None


def _of_classification(parameter: Mapping[str, Any] | None) -> str | None:
    if parameter is None:
        return None
    if "int64_param" not in parameter:
        return "invalid value type for 'classification' parameter, expected int64_param"
    if parameter["int64_param"] <= 0:
        return "invalid value for 'classification' parameter, expected >= 0"
    return None
