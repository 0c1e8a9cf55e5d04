"""Which fault of a generate request's JSON does Triton tell? For `--triton-strict`.

Its members are read one by one: an input is a value or a list of them, whose number must fill the
shape, anything else is a parameter (http_server.cc, ConvertGenerateRequest); then its core looks at
the model. Pure; it is asked only about requests that were refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from wherry.frontends.v2.json_errors import mismatch
from wherry.frontends.v2.triton_core import CoreView, TakenInput, core_fault, id_before
from wherry.frontends.v2.triton_reading import (
    JsonFault,
    check_data,
    check_parameter,
    flat,
)
from wherry.frontends.v2.triton_words import ToldError
from wherry.values.datatypes import DATATYPES

#: The one member that has others.
_NESTED: Final = "parameters"


def generate_fault(text: bytes, view: CoreView) -> ToldError | None:
    """The fault that Triton tells of a generate request's JSON; None if it has none of those that
    show before the model runs. Linear in its size."""
    taken: list[TakenInput] = []
    try:
        request = json.loads(text)
        if not isinstance(request, dict):
            return None
        request_id = "" if "id" in view.inputs else request.get("id", "")
        if not isinstance(request_id, str):
            raise JsonFault(f"Unable to parse 'id': {mismatch('str')}")
        _read(request, view, taken)
        told = core_fault(view, taken, (), request_id)
        return ToldError(400, "", told) if told else None
    except JsonFault as fault:
        return fault.told
    except (ValueError, RecursionError):
        return None


def _read(members: Mapping[str, Any], view: CoreView, taken: list[TakenInput]) -> None:
    for name, value in members.items():
        if name == _NESTED and name not in view.inputs:
            if not isinstance(value, dict):
                where = f"Expected JSON object for keyword: '{name}'"
                raise JsonFault(f"{where}: {mismatch('object')}")
            try:
                _read(value, view, taken)
            except JsonFault as fault:
                where = f"Converting keyword: '{name}'"
                raise JsonFault(f"{where}: {fault.told.text}", fault.told.status) from None
        elif name in view.inputs:
            if any(one.name == name for one in taken):
                raise JsonFault(id_before(f"input '{name}' already exists in request", ""), 400)
            taken.append(_input(name, value, view))
        else:
            check_parameter(name, value)


def _input(name: str, value: Any, view: CoreView) -> TakenInput:
    expected = view.inputs[name]
    count = len(value) if isinstance(value, list) else 1
    data = value if isinstance(value, list) else [value]
    if expected.datatype == "BYTES":
        check_data(data, name, expected.datatype, count)
    dims = [-1, *expected.dims] if view.rows else [*expected.dims]
    shape = _filled(dims, count)
    if shape is None:
        text = f"The schema can not convert input '{name}' to tensor with proper shape"
        raise JsonFault(text, 400)
    check_data(data, name, expected.datatype, count)
    known = DATATYPES[expected.datatype]
    nbytes = len(flat(data)) if expected.datatype == "BYTES" else count * known.itemsize
    return TakenInput(name, expected.datatype, shape, nbytes)


def _filled(dims: list[int], count: int) -> list[int] | None:
    """The shape whose last open size takes what the others leave; None if that does not go."""
    for size in reversed(dims):
        if size != -1:
            if not size or count % size:
                return None
            count //= size
    shape = [*dims]
    for place in reversed(range(len(shape))):
        if shape[place] == -1:
            shape[place], count = count, 1
    return shape if count == 1 else None
