"""What goes into `infer` and `generate`, and comes out of them, for any model?"""

from __future__ import annotations

from typing import Final

from wherry.server.http.exchange import JSON
from wherry.server.http.route import (
    ANY_TEXT,
    BINARY,
    EVENTS,
    FILE,
    OF_INFERENCE,
    OF_NATURAL,
    READS,
    Json,
    Operation,
    json_of,
    list_of,
    object_of,
)

_MEMBERS: Final[Json] = {
    "name": ANY_TEXT,
    "datatype": ANY_TEXT,
    "shape": list_of({"type": "integer", "minimum": 0}),
    "data": list_of({}),
    "parameters": {"type": "object"},
}
TENSOR: Final = object_of(_MEMBERS, ["name", "datatype", "shape"], title="Tensor")
#: The members of an answer that name its request and model.
ANSWERED: Final[Json] = {"id": ANY_TEXT, "model_name": ANY_TEXT, "model_version": ANY_TEXT}
TENSORS: Final = object_of(
    {**ANSWERED, "parameters": {"type": "object"}, "outputs": list_of(TENSOR)},
    ["model_name", "model_version", "outputs"],
    title="InferAnswer",
)
#: Of a request and of its tensors.
PARAMETERS: Final[Json] = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}
WANTED: Final = object_of(
    {"name": ANY_TEXT, "parameters": PARAMETERS},
    ["name"],
    title="RequestedOutput",
    description="Parameters: binary_data, classification, and those of shared memory.",
)
INPUT_TENSOR: Final = object_of(
    _MEMBERS,
    ["name", "datatype", "shape", "data"],
    title="InputTensor",
    description="`data` is flat or nested; without it, parameters name shared memory.",
)
INFER_REQUEST: Final = object_of(
    {
        "id": ANY_TEXT,
        "parameters": PARAMETERS,
        "inputs": list_of(INPUT_TENSOR),
        "outputs": list_of(WANTED),
    },
    ["inputs"],
    title="InferRequest",
)
#: A member of `generate` that is no input is a parameter.
PARAMETER: Final[Json] = {"type": ["string", "number", "boolean"]}
INPUTS: Final[Json] = {
    "title": "GenerateRequest",
    "description": "The model's inputs by name; what is no input is a parameter.",
    "type": "object",
}
OUTPUTS: Final = object_of(
    ANSWERED,
    ["model_name", "model_version"],
    title="GenerateAnswer",
    description="The model's outputs by name.",
)

_STREAM: Final = "Each response is a server-sent event; after 15 to 30 seconds without one there is"
INFER: Final = Operation(
    summary="Tensors in, tensors out",
    description=(
        "JSON, or binary tensors behind the JSON; then Inference-Header-Content-Length says how"
        " long the JSON is."
    ),
    takes={JSON: INFER_REQUEST, BINARY: FILE},
    gives={JSON: TENSORS, BINARY: FILE},
    errors=OF_INFERENCE,
    reads=READS,
)
GENERATE: Final = Operation(
    summary="Inputs by name in plain JSON, one response",
    takes=json_of(INPUTS),
    gives=json_of(OUTPUTS),
    errors=OF_NATURAL,
    reads=READS,
)
GENERATE_STREAM: Final = Operation(
    summary="Inputs by name in plain JSON, each response an event",
    description=f"{_STREAM} a comment. An error after the first is an event with `error`.",
    takes=json_of(INPUTS),
    gives={EVENTS: {}},
    events=OUTPUTS,
    errors=OF_NATURAL,
    reads=READS,
)
