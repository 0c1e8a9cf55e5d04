"""What can no JSON schema say of a request that the server must accept?

schemathesis imports this file (SCHEMATHESIS_HOOKS). It repairs requests that are to be accepted,
and leaves alone those that are to be refused.
"""

from __future__ import annotations

import math
from typing import Any

import schemathesis
from schemathesis import GenerationMode

#: Seconds and microseconds below which a request may be late, which is not a defect.
PATIENT = 30.0


@schemathesis.hook
def filter_case(context: Any, case: Any) -> bool:
    """Leave out binary bodies: in which header their JSON's length stands, no schema can say."""
    return bool(case.media_type != "application/octet-stream")


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Make the parts of a valid request agree with each other."""
    headers = case.headers or {}
    if _is_number(headers.get("X-Request-Timeout")):
        headers["X-Request-Timeout"] = str(PATIENT)
    body = case.body
    if isinstance(body, dict) and _is_number(body.get("timeout")):
        body["timeout"] = int(PATIENT * 1e6)
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return
    if not isinstance(body, dict | list):
        return
    case.body = body = _whole(body)
    if isinstance(body, dict) and case.path in ("/v1/score", "/score"):
        _as_many(body)
    if isinstance(body, dict) and case.path.startswith("/v2/models/") and "{" not in case.path:
        if case.path.endswith("/infer"):
            _one_row_each(body)
        else:
            _same_rows(body, _inputs(case))


def _is_number(value: Any) -> bool:
    try:
        return float(value) > 0
    except (TypeError, ValueError):
        return False


def _whole(value: Any) -> Any:
    """JSON schemas take 3.0 for an integer, and readers for a float; an integer may have any size
    there, and 64 bits on its way to another process; and any text is base64."""
    if isinstance(value, dict):
        if value.keys() == {"b64"} and isinstance(value["b64"], str):
            return {"b64": "AAAA"}
        return {key: _whole(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_whole(element) for element in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if type(value) is int and not -(2**63) <= value < 2**63:
        return value % 2**31
    return value


def _inputs(case: Any) -> dict[str, int]:
    """How deep the rows of each input are nested."""
    name = case.path.split("/")[3]
    schemas = case.operation.schema.raw_schema["components"]["schemas"]
    inputs = schemas.get(f"{name}.Inputs", {}).get("properties", {})
    return {
        name: _depth(schema["anyOf"][0] if "anyOf" in schema else schema)
        for name, schema in inputs.items()
        if name not in ("id", "priority", "timeout", "parameters")
    }


def _depth(schema: dict[str, Any]) -> int:
    return 1 + _depth(schema["items"]) if schema.get("type") == "array" and "items" in schema else 0


def _same_rows(body: dict[str, Any], depths: dict[str, int]) -> None:
    """One row of each input."""
    if len(depths) < 2:
        return
    for name, depth in depths.items():
        value = body.get(name)
        nested, inner = 0, value
        while isinstance(inner, list) and inner:
            nested, inner = nested + 1, inner[0]
        if nested > depth:
            body[name] = value[0]  # type: ignore[index]


def _as_many(body: dict[str, Any]) -> None:
    """As many texts on one side of a score as on the other."""
    if isinstance(side := body.get("text_1"), list):
        body["text_1"] = side[:1]


def _one_row_each(body: dict[str, Any]) -> None:
    """Each input once, with a shape that its data fills; no output that the model has not."""
    tensors = {tensor["name"]: tensor for tensor in body.get("inputs", ())}
    for optional, needed in NEEDED.items():
        if optional in tensors:
            tensors = {needed["name"]: {**needed}}
    for name, tensor in tensors.items():
        sizes = tensor["shape"][1:] or [1]
        sample = tensor["data"][0] if tensor["data"] else SAMPLES.get(tensor["datatype"], 0)
        tensor["shape"] = [1, *sizes] if len(tensor["shape"]) > 1 else [1]
        tensor["data"] = [ROWS.get(name, sample)] * math.prod(tensor["shape"])
        tensor.pop("parameters", None)
    body["inputs"] = list(tensors.values())
    body.pop("outputs", None)
    body.pop("parameters", None)


#: What an array cannot say: which of its elements must be there, by one that need not.
NEEDED: dict[str, dict[str, Any]] = {
    "weight": {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": []},
    "times": {"name": "data", "datatype": "BYTES", "shape": [1], "data": []},
    "upper": {"name": "word", "datatype": "BYTES", "shape": [1], "data": []},
    "scale": {"name": "box", "datatype": "BYTES", "shape": [1], "data": []},
}
SAMPLES = {"BYTES": "", "BOOL": True}
#: A text is not JSON, whatever its schema says of what it holds.
ROWS = {"review": '{"text": "fine"}', "box": '{"left": 1}', "person": '{"text": "Ann"}'}
