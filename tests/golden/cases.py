"""Which requests are put to both servers, and where do we mean to answer otherwise?

A case is a list of steps that belong together; a step is a request (calls.py) and, where we answer
otherwise on purpose, the reason with our status. record.py adds the answers of Triton.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

Step = dict[str, Any]
Case = dict[str, Any]

# Why we answer otherwise.
MALFORMED = "a malformed request is the client's mistake: 400, where Triton says 500"
RANGE = "a number that its datatype cannot hold is refused, where Triton wraps it around"
REASON = "why a model could not be loaded is in the answer, with the status of the reason"
NAME = "a server says its own name, version and extensions"
CRASH = "the request ends the whole tritonserver 2.51"
GENERATE = "generate with a number of responses other than one is an error, not a 200"
NOT_READY = "what is not ready is 503 with the reason, and what is not there 404; Triton: 400"
SPLIT = "more rows than max_batch_size are split and joined, where Triton refuses them"
SMALL = "answers below 1 KiB are not compressed: their head costs as much"
NEWER = "a member that Triton's configuration has since 2.62"
MEMORY = "what the instances hold is known"
PRIORITY = "a priority that the model does not have is refused, where Triton takes the default"
UNSIZED = "a tensor without elements needs no data"
OVERFLOW = "a shape whose size overflows is refused"
SURPLUS = "raw contents that belong to no input are refused, where Triton drops them"
EARLY = "an input that is missing is told of before the model runs, also if others are optional"
HANGS = "Triton never answers"
CANCELLED = "a cancelled request is 499"
ID_KIND = "a sequence id that its control tensor cannot hold is refused"
REGION = "a shared memory region that cannot be opened is the client's mistake"
UNDERSTOOD = "what Triton refuses here is understood"
FILES_AGAIN = "a load without a config goes back to the files"
STREAMED = "an ensemble that streams counts its responses, too"
VERSION = "the version is said in the last response, too"
OWN_PAGES = "pages of our own, where Triton has nothing"


def error_of(answer: Any) -> str:
    """The text of an error, or nothing."""
    body = answer.get("json", answer)
    return str(body.get("error", "")) if isinstance(body, dict) else ""


def is_malformed(step: Step, answer: Any) -> bool:
    return answer.get("status") == 500 and bool(re.search("JSON|parse", error_of(answer)))


def is_batch_size(answer: Any) -> bool:
    return "batch-size must be" in error_of(answer)


#: Which answers of Triton, whatever the request, have another one of ours, and why.
RULES: tuple[tuple[Callable[[Step, Any], bool], dict[str, Any]], ...] = (
    (is_malformed, {"why": MALFORMED, "status": 400}),
    (
        lambda step, answer: is_batch_size(answer) and "status" in answer,
        {"why": SPLIT, "status": 200},
    ),
    (lambda step, answer: is_batch_size(answer) and "code" in answer, {"why": SPLIT, "code": "OK"}),
    (
        lambda step, answer: error_of(answer) == "Model version not ready",
        {"why": NOT_READY, "status": 404},
    ),
    (
        lambda step, answer: "Content-Encoding" in answer.get("headers", {}),
        {"why": SMALL, "except_for": [".headers.Content-Encoding"]},
    ),
    (
        lambda step, answer: "max_inflight" not in str(answer) and "ensemble_sched" in str(answer),
        {
            "why": NEWER,
            "except_for": [
                f"{place}.ensemble_scheduling.max_inflight_requests"
                for place in (".json", ".messages[0].config")
            ],
        },
    ),
    (
        lambda step, answer: any(
            "error_message" not in message and "model_version" not in message["infer_response"]
            for message in answer.get("messages", ())
            if "infer_response" in message
        ),
        {"why": VERSION, "except_for": [".infer_response.model_version: too much"]},
    ),
    (
        lambda step, answer: step.get("shape_only", False),
        {
            "why": f"{MEMORY}; {STREAMED}",
            "except_for": ["memory_usage", "streamed 1.response_stats"],
        },
    ),
)


def get(path: str, **headers: str) -> Step:
    return {"http": f"GET {path}", "headers": headers}


def post(path: str, body: Any = None, *tensors: bytes, **headers: str) -> Step:
    """`body`: text as it is, or what becomes JSON. Headers are written with underscores."""
    step: Step = {"http": f"POST {path}"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if isinstance(body, str):
        step["text"] = body
    elif body is not None:
        step["json"] = body
    if tensors:
        step["tensors"] = [tensor.hex() for tensor in tensors]
        if body is not None:
            length = len(body.encode() if isinstance(body, str) else json.dumps(body).encode())
            named.setdefault("Inference-Header-Content-Length", str(length))
    return {**step, "headers": named}


def method(verb: str, path: str) -> Step:
    return {"http": f"{verb} {path}"}


def infer(model: str, *inputs: Any, outputs: Any = None, **members: Any) -> Step:
    body = {"inputs": list(inputs), **members}
    if outputs is not None:
        body["outputs"] = outputs
    return post(f"/v2/models/{model}/infer", body)


def tensor(name: str, datatype: str, shape: list[Any], data: Any = None, **parameters: Any) -> Any:
    value: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if data is not None:
        value["data"] = data
    if parameters:
        value["parameters"] = parameters
    return value


def wanted(name: str, **parameters: Any) -> Any:
    return {"name": name, "parameters": parameters} if parameters else {"name": name}


def rpc(name: str, *messages: Any) -> Step:
    return {"grpc": name, "messages": list(messages) or [{}]}


def otherwise(why: str, step: Step, **ours: Any) -> Step:
    """`ours`: what we answer: `status`, `code`, or nothing where anything but a failure will do."""
    return {**step, "otherwise": {"why": why, **ours}}


def shape_of(step: Step) -> Step:
    """Only the members and their kinds are compared, not the values."""
    return {**step, "shape_only": True}


def floats(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def texts(*values: str) -> bytes:
    return b"".join(struct.pack("<I", len(v.encode())) + v.encode() for v in values)


def raw(*contents: bytes) -> list[str]:
    return [base64.b64encode(content).decode() for content in contents]


A = tensor("INPUT0", "FP32", [1, 4], [1, 2, 3, 4])
B = tensor("INPUT1", "FP32", [1, 4], [10, 20, 30, 40])
A_DATA, B_DATA = floats(1, 2, 3, 4), floats(10, 20, 30, 40)


def in_binary(name: str, size: int, shape: list[int], datatype: str = "FP32") -> Any:
    return tensor(name, datatype, shape, binary_data_size=size)


def cases() -> list[Case]:
    """All of them; a name that is there twice is an error of this file."""
    groups = (
        descriptions, json_infer, binary_infer, datatypes, classification, refused, generate,
        python_models, sequences_http, grpc_calls, grpc_infer, grpc_streams, sequences_grpc,
        shared_memory, settings, statistics, control, tensor_parameters,
    )  # fmt: skip
    made = [
        {"name": f"{group.__name__}: {name}", "steps": steps}
        for group in groups
        for name, steps in group()
    ]
    assert len({case["name"] for case in made}) == len(made)
    return made


Cases = Iterator[tuple[str, list[Step]]]

MODELS = (
    "add_sub", "add_sub_plain", "asked", "auto", "awaiter", "batched", "cached", "caller",
    "classes", "latest", "levels", "optional", "repeat", "reshaped", "shapes", "streamed",
    "sums_direct", "sums_oldest", "text", "three_steps", "two_steps", "types", "versions", "warm",
)  # fmt: skip


def descriptions() -> Cases:
    for path in ("/v2/health/live", "/v2/health/ready"):
        head = otherwise(OWN_PAGES, method("HEAD", path), status=200)
        yield path, [get(path), method("POST", path), head]
    yield "server", [otherwise(NAME, get("/v2"), status=200)]
    for model in MODELS:
        yield f"metadata of {model}", [get(f"/v2/models/{model}")]
        yield f"config of {model}", [get(f"/v2/models/{model}/config")]
    ready = ("add_sub", "versions/versions/3", "versions/versions/7", "none", "add_sub/versions/x")
    yield "readiness of models", [get(f"/v2/models/{model}/ready") for model in ready]
    yield "a version", [get("/v2/models/versions/versions/1"), get("/v2/models/latest/versions/2")]
    yield "config of a version", [get("/v2/models/versions/versions/3/config")]
    yield "a version that is not served", [get("/v2/models/latest/versions/1")]
    yield "an unknown model", [get("/v2/models/none"), get("/v2/models/none/config")]
    yield "queries are ignored", [get("/v2/models/versions?x=1"), get("/v2/health/live?a=b")]
    paths = (
        "/", "/v1/models", "/v2/", "/v2/models", "/v2/models/add_sub/", "/v2/models/add_sub/what",
        "/v2/models/versions/versions/one", "/v2/models/versions/versions/-1", "/v3",
    )  # fmt: skip
    for path in paths:
        step = get(path)
        own = path in ("/", "/v1/models", "/v2/models")
        yield f"no such path {path}", [otherwise(OWN_PAGES, step, status=200) if own else step]
    yield (
        "wrong methods",
        [
            post("/v2/models/add_sub"),
            get("/v2/models/add_sub/infer"),
            method("PUT", "/v2/models/add_sub/infer"),
            method("DELETE", "/v2"),
            get("/v2/repository/index"),
        ],
    )


def json_infer() -> Cases:
    yield "two tensors", [infer("add_sub", A, B)]
    yield "an id", [infer("add_sub", A, B, id="first")]
    yield "an empty id", [infer("add_sub", A, B, id="")]
    yield "a version", [infer("versions/versions/1", tensor("X", "INT32", [1], [0]))]
    yield "the highest version", [infer("versions", tensor("X", "INT32", [1], [0]))]
    yield "inputs in another order", [infer("add_sub", B, A)]
    yield "one output", [infer("add_sub", A, B, outputs=[wanted("OUTPUT1")])]
    yield (
        "outputs in another order",
        [infer("add_sub", A, B, outputs=[wanted("OUTPUT1"), wanted("OUTPUT0")])],
    )
    yield (
        "an output twice",
        [infer("add_sub", A, B, outputs=[wanted("OUTPUT1"), wanted("OUTPUT1")])],
    )
    yield "no outputs", [infer("add_sub", A, B, outputs=[])]
    yield "nested data", [infer("add_sub", tensor("INPUT0", "FP32", [1, 4], [[1, 2, 3, 4]]), B)]
    yield (
        "oddly nested data",
        [infer("add_sub", tensor("INPUT0", "FP32", [1, 4], [[1], [2, [3, 4]]]), B)],
    )
    rows = [tensor(f"INPUT{i}", "FP32", [3, 4], list(range(i, i + 12))) for i in range(2)]
    yield "three rows", [infer("add_sub", *rows)]
    yield "unknown members", [infer("add_sub", A, {**B, "extra": 1}, other={"x": []})]
    yield (
        "parameters without a meaning",
        [infer("add_sub", A, B, parameters={"a": 1, "b": "x", "c": True, "d": 1.5})],
    )
    plain = tensor("INPUT1", "INT32", [16], list(range(16)))
    yield "no batching", [infer("add_sub_plain", {**plain, "name": "INPUT0"}, plain)]
    yield (
        "no such floats in JSON",
        [
            post(
                "/v2/models/add_sub/infer",
                '{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,4],"data":[NaN,1,2,3]},'
                '{"name":"INPUT1","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}',
            )
        ],
    )
    yield (
        "any content type",
        [
            {**infer("add_sub", A, B), "headers": {"Content-Type": "text/plain"}},
            {
                **infer("add_sub", A, B),
                "headers": {"Content-Type": "application/x-www-form-urlencoded"},
            },
        ],
    )
    for coding in ("gzip", "deflate"):
        yield (
            f"a {coding} request",
            [{**infer("add_sub", A, B), "headers": {"Content-Encoding": coding}}],
        )
        yield (
            f"a {coding} answer",
            [{**infer("add_sub", A, B), "headers": {"Accept-Encoding": coding}}],
        )
    yield (
        "the best coding",
        [{**infer("add_sub", A, B), "headers": {"Accept-Encoding": "gzip;q=0.5, deflate"}}],
    )
    yield (
        "an unknown coding",
        [
            {**infer("add_sub", A, B), "headers": {"Content-Encoding": "zstd"}},
            {**infer("add_sub", A, B), "headers": {"Accept-Encoding": "zstd"}},
        ],
    )
    yield "identity", [{**infer("add_sub", A, B), "headers": {"Content-Encoding": "identity"}}]
    for x in ([2, 3], [2, 0]):
        yield f"shape {x}", [infer("shapes", tensor("IN", "INT32", x, list(range(x[0] * x[1]))))]
    yield (
        "reshaped",
        [
            infer("reshaped", tensor("IN", "FP32", [2, 4], list(range(8)))),
        ],
    )
    factor = tensor("FACTOR", "FP32", [1, 1], [3])
    yield (
        "optional inputs",
        [
            infer("optional", tensor("X", "FP32", [1, 2], [1, 2])),
            infer("optional", tensor("X", "FP32", [1, 2], [1, 2]), factor),
            otherwise(EARLY, infer("optional", factor), status=400),
        ],
    )
    for model in ("two_steps", "three_steps"):
        pair = [{**A, "name": "A"}, {**B, "name": "B"}]
        yield (
            model,
            [
                infer(model, *pair),
                infer(model, *pair, id="x"),
                infer(model, pair[0]),
                infer(model, *(tensor(n, "FP32", [2, 4], list(range(8))) for n in "AB")),
                infer(model, *(tensor(n, "FP32", [5, 4], list(range(20))) for n in "AB")),
            ],
        )
    yield (
        "one output of an ensemble",
        [
            infer("two_steps", *pair, outputs=[wanted("SCORES", classification=2)]),
            infer("two_steps", *pair, outputs=[wanted("SUM", binary_data=True)]),
        ],
    )
    yield "a model without config.pbtxt", [infer("auto", tensor("X", "FP32", [1, 2], [1, -2]))]
    yield "dynamic batching", [infer("batched", tensor("X", "FP32", [1, 1], [1.5]))]
    levels = tensor("IN", "INT32", [1, 1], [5])
    for priority in (0, 1, 2, 3):
        yield f"priority {priority}", [infer("levels", levels, parameters={"priority": priority})]
    yield (
        "a priority too high",
        [otherwise(PRIORITY, infer("levels", levels, parameters={"priority": 9}), status=400)],
    )
    yield "a timeout", [infer("levels", levels, parameters={"timeout": 4000000})]
    for wrong in ("high", -1, 1.5, True):
        yield f"priority {wrong!r}", [infer("levels", levels, parameters={"priority": wrong})]
        yield f"timeout {wrong!r}", [infer("levels", levels, parameters={"timeout": wrong})]
    x = tensor("X", "INT32", [1, 1], [3])
    yield "response cache", [infer("cached", x), infer("cached", x), infer("cached", x, id="y")]
    zero = tensor("ZERO", "FP32", [1, 2], [0, 0])
    words = tensor("FILE", "BYTES", [1, 1], ["x"])
    yield "warm-up", [infer("warm", zero, tensor("RANDOM", "INT32", [1, 2], [1, 2]), words)]


def binary_infer() -> Cases:
    path = "/v2/models/add_sub/infer"
    both = [in_binary("INPUT0", 16, [1, 4]), in_binary("INPUT1", 16, [1, 4])]
    body: Any = {"inputs": both}
    yield "binary in, JSON out", [post(path, body, A_DATA, B_DATA)]
    yield (
        "one of two inputs",
        [
            post(path, {"inputs": [A, both[1]]}, B_DATA),
            post(path, {"inputs": [both[0], B]}, A_DATA),
        ],
    )
    out = {**body, "outputs": [wanted("OUTPUT0", binary_data=True), wanted("OUTPUT1")]}
    yield "one of two outputs", [post(path, out, A_DATA, B_DATA)]
    every = {**body, "parameters": {"binary_data_output": True}}
    yield "all outputs", [post(path, every, A_DATA, B_DATA)]
    yield (
        "all outputs, one of them listed",
        [
            post(path, {**every, "outputs": [wanted("OUTPUT1")]}, A_DATA, B_DATA),
            post(path, {**every, "outputs": []}, A_DATA, B_DATA),
        ],
    )
    yield (
        "JSON in, binary out",
        [post(path, {"inputs": [A, B], "parameters": {"binary_data_output": True}})],
    )
    for coding in ("gzip", "deflate"):
        yield (
            f"binary with {coding}",
            [
                post(path, every, A_DATA, B_DATA, Content_Encoding=coding),
                post(path, every, A_DATA, B_DATA, Accept_Encoding=coding),
            ],
        )
    yield "too few bytes", [post(path, body, A_DATA, B_DATA[:-1]), post(path, body, A_DATA)]
    yield "too many bytes", [post(path, body, A_DATA, B_DATA, b"x")]
    for size in (0, 8, 17, -1, "16", 1.5):
        wrong = [in_binary("INPUT0", size, [1, 4]), both[1]]  # type: ignore[arg-type]
        yield f"binary_data_size {size!r}", [post(path, {"inputs": wrong}, A_DATA, B_DATA)]
    yield (
        "both data and binary data",
        [post(path, {"inputs": [{**both[0], "data": [1, 2, 3, 4]}, both[1]]}, A_DATA, B_DATA)],
    )
    yield "neither", [infer("add_sub", A, tensor("INPUT1", "FP32", [1, 4]))]
    for length in ("100000", "-1"):
        yield (
            f"header length {length}",
            [post(path, body, A_DATA, B_DATA, Inference_Header_Content_Length=length)],
        )
    text = "/v2/models/text/infer"
    long = texts("a", "Grüße", "")
    yield (
        "binary texts",
        [
            post(text, {"inputs": [in_binary("IN", len(long), [1, 3], "BYTES")]}, long),
            post(
                text,
                {
                    "inputs": [in_binary("IN", len(long), [1, 3], "BYTES")],
                    "outputs": [wanted("OUT", binary_data=True)],
                },
                long,
            ),
        ],
    )
    for name, bad in (
        ("too few texts", texts("a", "b")),
        ("too many texts", texts("a", "b", "c", "d")),
        ("a text that ends early", texts("a", "b", "c")[:-1]),
        ("a length that ends early", texts("a", "b") + b"\x01\x00"),
        ("a length that is too large", texts("a", "b") + struct.pack("<I", 1 << 31) + b"c"),
    ):
        yield name, [post(text, {"inputs": [in_binary("IN", len(bad), [1, 3], "BYTES")]}, bad)]
    numbers = struct.pack("<16i", *range(16))
    raw_text = post("/v2/models/text/infer", None, b"words", Inference_Header_Content_Length="0")
    yield (
        "a raw request",
        [
            post("/v2/models/shapes/infer", None, numbers, Inference_Header_Content_Length="0"),
            raw_text,
            post("/v2/models/add_sub/infer", None, A_DATA, Inference_Header_Content_Length="0"),
        ],
    )


def datatypes() -> Cases:
    data: dict[str, Any] = {
        "BOOL": [True, False], "INT8": [-128, 127], "INT16": [-32768, 32767],
        "INT32": [-(2**31), 2**31 - 1], "INT64": [-(2**63), 2**63 - 1], "UINT8": [0, 255],
        "UINT16": [0, 65535], "UINT32": [0, 2**32 - 1], "UINT64": [0, 2**64 - 1],
        "FP32": [0.1, -3e38], "FP64": [0.1, -1e300], "BYTES": ["a", "ü\u0000\n"],
    }  # fmt: skip
    for datatype, values in data.items():
        name = f"IN_{datatype.replace('BYTES', 'STRING')}"
        x = tensor(name, datatype, [1, 2], values)
        out = name.replace("IN_", "OUT_")
        yield (
            datatype,
            [
                infer("types", x, outputs=[wanted(out)]),
                infer("types", x, outputs=[wanted(out, binary_data=True)]),
            ],
        )
    half = in_binary("IN_FP16", 4, [1, 2], "FP16")
    outputs = [wanted("OUT_FP16", binary_data=True)]
    yield (
        "FP16",
        [
            post("/v2/models/types/infer", {"inputs": [half], "outputs": outputs}, b"\x00<\x00@"),
            infer("types", tensor("IN_FP16", "FP16", [1, 2], [1, 2])),
        ],
    )
    for datatype, wrong in (
        ("UINT8", 256), ("INT8", -129), ("INT32", 2**31), ("UINT32", -1), ("INT64", 2**63),
    ):  # fmt: skip
        x = tensor(f"IN_{datatype}", datatype, [1, 1], [wrong])
        step = infer("types", x, outputs=[wanted(f"OUT_{datatype}")])
        yield f"{wrong} for {datatype}", [otherwise(RANGE, step, status=400)]
    wrong_kinds: tuple[tuple[str, Any], ...] = (
        ("INT32", 1.5), ("INT32", "1"), ("INT32", True), ("BOOL", 1), ("BOOL", "true"),
        ("FP32", "1"), ("FP32", True), ("FP32", None), ("BYTES", 1), ("BYTES", None),
        ("UINT8", {}),
    )  # fmt: skip
    for datatype, wrong in wrong_kinds:
        name = f"IN_{datatype.replace('BYTES', 'STRING')}"
        out = name.replace("IN_", "OUT_")
        step = infer("types", tensor(name, datatype, [1, 1], [wrong]), outputs=[wanted(out)])
        yield f"{wrong!r} for {datatype}", [otherwise(MALFORMED, step, status=400)]
    yield (
        "a whole number for FP32",
        [infer("types", tensor("IN_FP32", "FP32", [1, 1], [7]), outputs=[wanted("OUT_FP32")])],
    )


def classification() -> Cases:
    x = tensor("X", "FP32", [1, 3], [0.2, 0.7, 0.1])
    for k in (1, 2, 3, 5):
        yield f"the first {k}", [infer("classes", x, outputs=[wanted("SCORES", classification=k)])]
    yield (
        "two rows",
        [
            infer(
                "classes",
                tensor("X", "FP32", [2, 4], [0.2, 0.7, 0.1, 0.9, 3, 2, 1, 0]),
                outputs=[wanted("SCORES", classification=2)],
            )
        ],
    )
    yield (
        "whole numbers, no labels",
        [
            infer(
                "classes",
                tensor("X", "FP32", [1, 3], [5, -7, 9]),
                outputs=[wanted("COUNTS", classification=3)],
            )
        ],
    )
    yield (
        "binary",
        [infer("classes", x, outputs=[wanted("SCORES", classification=2, binary_data=True)])],
    )
    yield "none of it", [infer("classes", x, outputs=[wanted("SCORES", classification=0)])]
    for wrong in (-1, "two", 1.5):
        yield (
            f"classification {wrong!r}",
            [infer("classes", x, outputs=[wanted("SCORES", classification=wrong)])],
        )
    yield (
        "no batch",
        [
            infer(
                "add_sub_plain",
                *(tensor(f"INPUT{i}", "INT32", [16], list(range(16))) for i in range(2)),
                outputs=[wanted("OUTPUT0", classification=2)],
            )
        ],
    )
    yield (
        "texts",
        [
            otherwise(
                CRASH,
                {
                    **infer(
                        "text",
                        tensor("IN", "BYTES", [1, 2], ["a", "b"]),
                        outputs=[wanted("OUT", classification=1)],
                    ),
                    "not_sent": True,
                },
                status=400,
            )
        ],
    )


def refused() -> Cases:
    x = tensor("X", "INT32", [1], [0])
    yield "an unknown model", [infer("none", x)]
    yield "an unknown version", [infer("versions/versions/2", x)]
    yield (
        "a batch too large",
        [infer("add_sub", *(tensor(f"INPUT{i}", "FP32", [9, 4], [0] * 36) for i in range(2)))],
    )
    yield "batches of two sizes", [infer("add_sub", A, tensor("INPUT1", "FP32", [2, 4], [0] * 8))]
    yield (
        "an empty batch",
        [infer("add_sub", *(tensor(f"INPUT{i}", "FP32", [0, 4], []) for i in range(2)))],
    )
    yield "another datatype", [infer("add_sub", A, tensor("INPUT1", "INT32", [1, 4], [1, 2, 3, 4]))]
    yield "another shape", [infer("add_sub", A, tensor("INPUT1", "FP32", [1, 3], [1, 2, 3]))]
    yield "another rank", [infer("add_sub", A, tensor("INPUT1", "FP32", [1, 2, 2], [1, 2, 3, 4]))]
    yield "no batch dimension", [infer("add_sub", A, tensor("INPUT1", "FP32", [4], [1, 2, 3, 4]))]
    yield "a missing input", [infer("add_sub", A)]
    yield "no inputs", [infer("add_sub")]
    yield "an unknown input", [infer("add_sub", A, B, tensor("INPUT2", "FP32", [1, 1], [1]))]
    yield "an input twice", [infer("add_sub", A, A, B)]
    yield "an unknown output", [infer("add_sub", A, B, outputs=[wanted("OUTPUT7")])]
    yield "too few elements", [infer("add_sub", A, tensor("INPUT1", "FP32", [1, 4], [1, 2]))]
    yield (
        "too many elements",
        [infer("add_sub", A, tensor("INPUT1", "FP32", [1, 4], [1, 2, 3, 4, 5]))],
    )
    for shape in ([-1, 4], [1, -4], [1, 1.5], ["1", 4], 4, [2**40, 2**40], [2**62, 4], None):
        step = infer("add_sub", A, tensor("INPUT1", "FP32", shape, [1, 2, 3, 4]))  # type: ignore[arg-type]
        yield f"shape {shape!r}", [otherwise(MALFORMED, step, status=400)]
    for datatype in ("fp32", "FLOAT", "", 3, None):
        step = infer("add_sub", A, {**B, "datatype": datatype})
        yield f"datatype {datatype!r}", [otherwise(MALFORMED, step, status=400)]
    for member in ("name", "datatype", "shape"):
        step = infer("add_sub", A, {k: v for k, v in B.items() if k != member})
        yield f"no {member}", [otherwise(MALFORMED, step, status=400)]
    bodies = (
        "", "{", "[]", "1", "null", "{}", '{"inputs": 1}', '{"inputs": {}}', '{"inputs": [1]}',
        '{"inputs": null}', '{"inputs": [], "outputs": null}', '{"inputs": [], "outputs": [1]}',
        '{"inputs": [], "outputs": [{}]}', '{"inputs": [], "id": 5}', "not json", "[" * 200,
        '{"inputs": [], "parameters": 5}', '{"inputs": [], "parameters": []}', "{} trailing",
    )  # fmt: skip
    for body in bodies:
        step = post("/v2/models/add_sub/infer", body)
        yield f"body {body[:50]!r}", [otherwise(MALFORMED, step, status=400)]
    for value in ([1], {"x": 1}, None):
        yield f"a parameter {value!r}", [infer("add_sub", A, B, parameters={"x": value})]
    yield "a reserved parameter", [infer("add_sub", A, B, parameters={"triton_x": 1})]
    yield (
        "infer on a decoupled model",
        [
            infer("repeat", tensor("IN", "INT32", [2], [1, 2])),
            infer("streamed", tensor("NUMBERS", "INT32", [2], [1, 2])),
        ],
    )
    yield "an id with all errors", [infer("add_sub", A, id="mine")]


def generate() -> Cases:
    def ask(model: str, body: Any, way: str = "generate") -> Step:
        return post(f"/v2/models/{model}/{way}", body)

    row = {"INPUT0": [1, 2, 3, 4], "INPUT1": [5, 6, 7, 8]}
    yield "plain values", [ask("add_sub", row), ask("add_sub", row, "generate_stream")]
    yield "an id", [ask("add_sub", {**row, "id": "a"})]
    yield (
        "a text",
        [
            ask("text", {"IN": "boat"}),
            ask("text", {"IN": ["boat", "ship"]}),
            ask("text", {"IN": "boat", "more": 5, "parameters": {"x": "y"}}),
        ],
    )
    yield "inputs among the parameters", [ask("text", {"parameters": {"IN": "boat"}})]
    yield "a version", [ask("versions/versions/1", {"X": 1})]
    yield (
        "parameters reach the model",
        [
            ask("asked", {"X": 1, "temperature": 0.5, "n": 2, "flag": True, "text": "t"}),
        ],
    )
    yield (
        "a stream",
        [
            ask("repeat", {"IN": [4, 2, 0]}, "generate_stream"),
            ask("repeat", {"IN": [4]}, "generate_stream"),
            ask("repeat", {"IN": []}, "generate_stream"),
            ask("square", {"IN": 3}, "generate_stream"),
            ask("streamed", {"NUMBERS": [7, 8]}, "generate_stream"),
        ],
    )
    yield "one response of a decoupled model", [ask("repeat", {"IN": [4]})]
    yield "several responses", [otherwise(GENERATE, ask("repeat", {"IN": [4, 5]}), status=400)]
    yield "no response", [otherwise(GENERATE, ask("repeat", {"IN": []}), status=400)]
    broken = {"IN": [4, 2, 0], "BROKEN_AT": 1}
    yield (
        "an error in between",
        [
            ask("repeat", broken, "generate_stream"),
            ask("repeat", {**broken, "BROKEN_AT": 0}, "generate_stream"),
        ],
    )
    yield "an unknown model", [ask("none", {"X": 1}), ask("none", {"X": 1}, "generate_stream")]
    yield "no inputs", [ask("add_sub", {}), ask("add_sub", {}, "generate_stream")]
    yield (
        "wrong values",
        [
            ask("add_sub", {**row, "INPUT1": "x"}),
            ask("add_sub", {**row, "INPUT1": [1, 2, 3]}),
            ask("text", {"IN": 5}),
            ask("text", {"IN": {"a": 1}}),
            ask("text", {"IN": "a", "x": [1]}),
            ask("text", {"IN": "a", "x": {"y": 1}}),
            ask("text", {"IN": "a", "x": None}),
        ],
    )
    for body in ("{", "[]", "", "5"):
        yield f"body {body!r}", [otherwise(MALFORMED, ask("text", body), status=400)]
    yield "methods", [get("/v2/models/text/generate"), get("/v2/models/text/generate_stream")]
    yield (
        "compressed",
        [
            otherwise(
                UNDERSTOOD,
                {**ask("text", {"IN": "boat"}), "headers": {"Content-Encoding": "gzip"}},
                status=200,
            ),
            {**ask("text", {"IN": "boat"}), "headers": {"Accept-Encoding": "gzip"}},
        ],
    )
    yield "an ensemble", [ask("two_steps", {"A": [1, 2, 3, 4], "B": [5, 6, 7, 8]})]


def python_models() -> Cases:
    x = tensor("X", "INT32", [1, 1], [1])
    yield (
        "what a model is told",
        [
            infer("asked", x),
            infer("asked", x, id="i", parameters={"a": 1, "b": "x", "c": True, "d": 1.5, "e": -1}),
            infer("asked", x, outputs=[wanted("SEEN")]),
            infer("asked", x, parameters={"priority": 0, "timeout": 7000000, "sequence_id": 0}),
            infer("asked", x, parameters={"sequence_id": 5, "sequence_start": True}),
            infer("asked", x, parameters={"sequence_id": "five", "sequence_end": True}),
        ],
    )
    for do in ("raise", "raise for the client", "text", "UNKNOWN", "INTERNAL", "NOT_FOUND",
               "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED",
               "no response", "none", "number", "no output", "other output"):  # fmt: skip
        http = infer("faulty", tensor("DO", "BYTES", [1, 1], [do]))
        over_grpc = rpc("ModelInfer", grpc_text("faulty", "DO", [1, 1], do))
        if do == "none":
            http = otherwise(HANGS, {**http, "not_sent": True}, status=500)
            over_grpc = otherwise(HANGS, {**over_grpc, "not_sent": True}, code="INTERNAL")
        elif do == "CANCELLED":
            http = otherwise(CANCELLED, http, status=499)
        yield f"a model does wrong: {do}", [http, over_grpc]
    for model in ("add_sub", "awaiter", "two_steps", "none", "repeat"):
        yield (
            f"a model calls {model}",
            [
                infer("caller", tensor("MODEL", "BYTES", [1], [model]), A, B),
            ],
        )
    yield "async execute", [infer("awaiter", A, B), infer("awaiter", A, B, id="z")]
    yield (
        "a decoupled call",
        [
            infer("collector", tensor("IN", "INT32", [3], [4, 5, 6])),
            infer("collector", tensor("IN", "INT32", [0], [])),
        ],
    )


def step_of(model: str, sequence: Any, number: int, **flags: bool) -> Step:
    parameters = {"sequence_id": sequence, **{f"sequence_{k}": v for k, v in flags.items()}}
    return infer(model, tensor("X", "INT32", [1, 1], [number]), parameters=parameters)


def sequences_http() -> Cases:
    for model, first, other in (("sums_direct", 7, 8), ("sums_oldest", 17, 18)):
        yield (
            f"{model}: two sequences",
            [
                step_of(model, first, 1, start=True),
                step_of(model, other, 10, start=True),
                step_of(model, first, 2),
                step_of(model, other, 20),
                step_of(model, first, 3, end=True),
                step_of(model, other, 30, end=True),
            ],
        )
        yield f"{model}: one step", [step_of(model, first, 5, start=True, end=True)]
        yield (
            f"{model}: again from the start",
            [
                step_of(model, first, 5, start=True),
                step_of(model, first, 6, start=True),
                step_of(model, first, 7, end=True),
            ],
        )
        yield f"{model}: not started", [step_of(model, first, 5)]
        yield (
            f"{model}: ended",
            [
                step_of(model, first, 5, start=True, end=True),
                step_of(model, first, 5),
            ],
        )
        yield f"{model}: no id", [infer(model, tensor("X", "INT32", [1, 1], [1]))]
        yield (
            f"{model}: two rows",
            [
                infer(
                    model,
                    tensor("X", "INT32", [2, 1], [1, 2]),
                    parameters={"sequence_id": first, "sequence_start": True, "sequence_end": True},
                )
            ],
        )
    step = step_of("sums_direct", "text", 1, start=True, end=True)
    yield "a text for a number", [otherwise(ID_KIND, step, status=400)]
    for wrong in (-5, 1.5, True):
        yield f"sequence_id {wrong!r}", [step_of("sums_direct", wrong, 1, start=True, end=True)]
    yield (
        "flags that are no flags",
        [
            infer(
                "sums_direct",
                tensor("X", "INT32", [1, 1], [1]),
                parameters={"sequence_id": 9, "sequence_start": 1},
            )
        ],
    )


def grpc_calls() -> Cases:
    yield "health", [rpc("ServerLive"), rpc("ServerReady")]
    yield "server", [otherwise(NAME, rpc("ServerMetadata"), code="OK")]
    yield (
        "readiness of models",
        [
            rpc("ModelReady", message)
            for message in (
                {"name": "add_sub"},
                {"name": "versions", "version": "3"},
                {"name": "versions", "version": "7"},
                {"name": "none"},
                {"name": "versions", "version": "one"},
                {},
            )
        ],
    )
    for model in MODELS:
        yield (
            f"descriptions of {model}",
            [
                rpc("ModelMetadata", {"name": model}),
                rpc("ModelConfig", {"name": model}),
            ],
        )
    yield (
        "an unknown model",
        [
            rpc("ModelMetadata", {"name": "none"}),
            rpc("ModelConfig", {"name": "none"}),
            rpc("ModelStatistics", {"name": "none"}),
            rpc("ModelMetadata", {"name": "latest", "version": "1"}),
            rpc("ModelMetadata", {"name": "latest", "version": "x"}),
            rpc("ModelInfer", {"model_name": "none"}),
        ],
    )


def grpc_tensor(name: str, datatype: str, shape: list[int], **contents: Any) -> Any:
    value: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    return {**value, "contents": contents} if contents else value


def grpc_text(model: str, name: str, shape: list[int], *values: str) -> Any:
    contents = [base64.b64encode(value.encode()).decode() for value in values]
    return {
        "model_name": model,
        "inputs": [grpc_tensor(name, "BYTES", shape, bytes_contents=contents)],
    }


def grpc_pair(**members: Any) -> Any:
    return {
        "model_name": "add_sub",
        "inputs": [grpc_tensor(f"INPUT{i}", "FP32", [1, 4]) for i in range(2)],
        "raw_input_contents": raw(A_DATA, B_DATA),
        **members,
    }


def grpc_infer() -> Cases:
    def ask(name: str, message: Any) -> tuple[str, list[Step]]:
        return name, [rpc("ModelInfer", message)]

    yield ask("raw contents", grpc_pair())
    yield ask("an id and a version", grpc_pair(id="q", model_version="1"))
    typed = [
        grpc_tensor("INPUT0", "FP32", [1, 4], fp32_contents=[1, 2, 3, 4]),
        grpc_tensor("INPUT1", "FP32", [1, 4], fp32_contents=[5, 6, 7, 8]),
    ]
    yield ask("typed contents", {"model_name": "add_sub", "inputs": typed})
    yield ask("one output", grpc_pair(outputs=[{"name": "OUTPUT1"}]))
    yield ask("an unknown output", grpc_pair(outputs=[{"name": "OUTPUT7"}]))
    labels = {"name": "OUTPUT0", "parameters": {"classification": {"int64_param": "2"}}}
    yield ask("classification", grpc_pair(outputs=[labels]))
    wrong = {"name": "OUTPUT0", "parameters": {"classification": {"string_param": "2"}}}
    yield ask("a classification that is no number", grpc_pair(outputs=[wrong]))
    fields: tuple[tuple[str, str, Any], ...] = (
        ("BOOL", "bool", [True, False]), ("INT8", "int", [-1, 1]), ("INT16", "int", [-1, 1]),
        ("INT32", "int", [-1, 1]), ("INT64", "int64", ["-1", "1"]), ("UINT8", "uint", [1, 255]),
        ("UINT16", "uint", [1, 2]), ("UINT32", "uint", [1, 2]), ("UINT64", "uint64", ["1", "2"]),
        ("FP32", "fp32", [0.5, 1]), ("FP64", "fp64", [0.5, 1]), ("BYTES", "bytes", ["YQ==", ""]),
    )  # fmt: skip
    for datatype, field, values in fields:
        kind = datatype.replace("BYTES", "STRING")
        x = grpc_tensor(f"IN_{kind}", datatype, [1, 2], **{f"{field}_contents": values})
        outputs = [{"name": f"OUT_{kind}"}]
        yield ask(datatype, {"model_name": "types", "inputs": [x], "outputs": outputs})
    half = {
        "model_name": "types",
        "inputs": [grpc_tensor("IN_FP16", "FP16", [1, 2])],
        "outputs": [{"name": "OUT_FP16"}],
        "raw_input_contents": raw(b"\x00<\x00@"),
    }
    yield ask("FP16", half)
    wide = {
        "model_name": "types",
        "inputs": [grpc_tensor("IN_UINT8", "UINT8", [1, 1], uint_contents=[256])],
        "outputs": [{"name": "OUT_UINT8"}],
    }
    yield "256 for UINT8", [otherwise(RANGE, rpc("ModelInfer", wide), code="INVALID_ARGUMENT")]
    yield ask("raw and typed contents", grpc_pair(inputs=typed))
    yield ask("too few raw contents", grpc_pair(raw_input_contents=raw(A_DATA)))
    more = rpc("ModelInfer", grpc_pair(raw_input_contents=raw(A_DATA, B_DATA, A_DATA)))
    yield "too many raw contents", [otherwise(SURPLUS, more, code="INVALID_ARGUMENT")]
    yield ask("raw contents too short", grpc_pair(raw_input_contents=raw(A_DATA, B_DATA[:-1])))
    yield ask("raw contents too long", grpc_pair(raw_input_contents=raw(A_DATA, B_DATA * 2)))
    yield ask("no contents", {"model_name": "add_sub", "inputs": grpc_pair()["inputs"]})
    integers = [typed[0], grpc_tensor("INPUT1", "FP32", [1, 4], int_contents=[1, 2, 3, 4])]
    yield ask("contents of another field", {"model_name": "add_sub", "inputs": integers})
    short = [typed[0], grpc_tensor("INPUT1", "FP32", [1, 4], fp32_contents=[1])]
    yield ask("too few typed contents", {"model_name": "add_sub", "inputs": short})
    yield ask("another datatype", {"model_name": "add_sub", "inputs": [
        typed[0], grpc_tensor("INPUT1", "INT32", [1, 4], int_contents=[1, 2, 3, 4])
    ]})  # fmt: skip
    yield ask("no datatype", {"model_name": "add_sub", "inputs": [
        typed[0], {"name": "INPUT1", "shape": [1, 4], "contents": {"fp32_contents": [1, 2, 3, 4]}}
    ]})  # fmt: skip
    for shape in ([-1, 4], [1, 3], [4], [9, 4], [2**62, 4], []):
        x = {**typed[1], "shape": shape}
        step = rpc("ModelInfer", {"model_name": "add_sub", "inputs": [typed[0], x]})
        if shape == [2**62, 4]:
            step = otherwise(OVERFLOW, step, code="INVALID_ARGUMENT")
        yield f"shape {shape}", [step]
    yield ask("no model name", {"inputs": typed})
    yield ask("a missing input", {"model_name": "add_sub", "inputs": typed[:1]})
    yield ask("an unknown version", grpc_pair(model_version="7"))
    yield ask("a version that is no number", grpc_pair(model_version="x"))
    yield ask("a decoupled model", {
        "model_name": "repeat",
        "inputs": [grpc_tensor("IN", "INT32", [1], int_contents=[1])],
    })  # fmt: skip
    yield ask("texts", grpc_text("text", "IN", [1, 2], "a", "Grüße"))
    seen = {"model_name": "asked", "id": "i", "inputs": [
        grpc_tensor("X", "INT32", [1, 1], int_contents=[1])
    ]}  # fmt: skip
    parameters = {
        "a": {"int64_param": "-3"}, "b": {"string_param": "x"}, "c": {"bool_param": True},
        "d": {"double_param": 1.5},
        "timeout": {"int64_param": "9000000"}, "priority": {"int64_param": "0"},
    }  # fmt: skip
    yield ask("parameters of all kinds", {**seen, "parameters": parameters})
    for name in ("x", "priority", "timeout", "sequence_id"):
        step = rpc("ModelInfer", {**seen, "parameters": {name: {"uint64_param": "0"}}})
        yield f"{name} of uint64", [otherwise(UNDERSTOOD, step, code="OK")]
    yield ask("a reserved parameter", {**seen, "parameters": {"triton_x": {"int64_param": "1"}}})
    yield ask("a parameter without a value", {**seen, "parameters": {"x": {}}})
    for name, parameter in (
        ("priority", {"string_param": "high"}), ("timeout", {"string_param": "1"}),
        ("sequence_start", {"int64_param": "1"}), ("sequence_id", {"bool_param": True}),
        ("priority", {"int64_param": "-1"}), ("timeout", {"int64_param": "-1"}),
    ):  # fmt: skip
        step = rpc("ModelInfer", {**seen, "parameters": {name: parameter}})
        if parameter == {"int64_param": "-1"}:
            step = otherwise(MALFORMED, step, code="INVALID_ARGUMENT")
        yield f"{name} {next(iter(parameter.items()))}", [step]
    yield ask("an ensemble", {
        "model_name": "two_steps",
        "inputs": [
            grpc_tensor("A", "FP32", [1, 4], fp32_contents=[1, 2, 3, 4]),
            grpc_tensor("B", "FP32", [1, 4], fp32_contents=[5, 6, 7, 8]),
        ],
    })  # fmt: skip


def repeat_call(
    identity: str, *numbers: int, broken_at: int | None = None, more: Any = None
) -> Any:
    inputs = [grpc_tensor("IN", "INT32", [len(numbers)], int_contents=list(numbers))]
    if not numbers:
        inputs = [grpc_tensor("IN", "INT32", [0])]
    if broken_at is not None:
        inputs.append(grpc_tensor("BROKEN_AT", "INT32", [1], int_contents=[broken_at]))
    return {"model_name": "repeat", "id": identity, "inputs": inputs, **(more or {})}


def grpc_streams() -> Cases:
    def stream(name: str, *messages: Any) -> tuple[str, list[Step]]:
        return name, [rpc("ModelStreamInfer", *messages)]

    empty_end = {"parameters": {"triton_enable_empty_final_response": {"bool_param": True}}}
    yield stream("one answer", grpc_pair(id="a"))
    yield stream("several requests", *(grpc_pair(id=str(i)) for i in range(4)))
    yield stream("a decoupled model", repeat_call("a", 4, 2, 0))
    yield stream("a decoupled model, told of its end", repeat_call("a", 4, 2, 0, more=empty_end))
    yield stream("one answer, told of its end", grpc_pair(id="a", **empty_end))
    yield stream("two decoupled requests", repeat_call("a", 1, 2), repeat_call("b", 3, 4))
    nothing = repeat_call("a")
    told_of_its_end = repeat_call("a", more=empty_end)
    for name, call in (("no response", nothing), ("no response, told of its end", told_of_its_end)):
        yield name, [otherwise(UNSIZED, rpc("ModelStreamInfer", call), code="OK")]
    yield stream("an error in between", repeat_call("a", 4, 2, 0, broken_at=1))
    yield stream("an error at the start", repeat_call("a", 4, 2, 0, broken_at=0))
    square = {"model_name": "square", "id": "s"}
    for n in (0, 1, 3):
        x = grpc_tensor("IN", "INT32", [1, 1], int_contents=[n])
        yield stream(f"{n} responses before execute returns", {**square, "inputs": [x]})
        yield stream(
            f"{n} responses before execute returns, told of the end",
            {**square, "inputs": [x], **empty_end},
        )
    yield stream("a refused request and a good one", grpc_pair(id="a", model_name="none"))
    yield stream("a refused request", grpc_pair(id="a", model_name="none"), grpc_pair(id="b"))
    yield stream("a failing model", {**grpc_text("faulty", "DO", [1, 1], "NOT_FOUND"), "id": "f"})
    yield stream("an ensemble with a decoupled member", {
        "model_name": "streamed", "id": "e",
        "inputs": [grpc_tensor("NUMBERS", "INT32", [3], int_contents=[7, 8, 9])],
    })  # fmt: skip
    yield stream("an ensemble with a decoupled member, told of its end", {
        "model_name": "streamed", "id": "e", **empty_end,
        "inputs": [grpc_tensor("NUMBERS", "INT32", [3], int_contents=[7, 8, 9])],
    })  # fmt: skip
    yield stream("what a model is told", {
        "model_name": "asked", "id": "p",
        "inputs": [grpc_tensor("X", "INT32", [1, 1], int_contents=[1])],
    })  # fmt: skip


def grpc_step(model: str, sequence: Any, number: int, **flags: bool) -> Any:
    key = "string_param" if isinstance(sequence, str) else "int64_param"
    parameters = {
        "sequence_id": {key: str(sequence)},
        **{f"sequence_{name}": {"bool_param": value} for name, value in flags.items()},
    }
    x = grpc_tensor("X", "INT32", [1, 1], int_contents=[number])
    return {"model_name": model, "inputs": [x], "parameters": parameters}


def sequences_grpc() -> Cases:
    for model, first in (("sums_direct", 1007), ("sums_oldest", 1017)):
        steps = [
            grpc_step(model, first, 1, start=True),
            grpc_step(model, first, 2),
            grpc_step(model, first, 3, end=True),
        ]
        yield f"{model}: calls", [rpc("ModelInfer", step) for step in steps]
        named = [{**step, "id": str(i)} for i, step in enumerate(steps)]
        yield f"{model}: a stream", [rpc("ModelStreamInfer", *named)]
        yield f"{model}: not started", [rpc("ModelInfer", grpc_step(model, first, 5))]
        yield (
            f"{model}: no id",
            [
                rpc("ModelInfer", {**steps[0], "parameters": {}}),
            ],
        )


def shared_memory() -> Cases:
    """What needs no shared memory; the rest is in tests/integration/test_tritonclient_http.py."""
    base = "/v2/systemsharedmemory"
    yield (
        "nothing is registered",
        [
            get(f"{base}/status"),
            get(f"{base}/region/x/status"),
            post(f"{base}/unregister"),
            post(f"{base}/region/x/unregister"),
        ],
    )
    no_key = post(f"{base}/region/x/register", {"key": "/wherry_none", "byte_size": 8})
    yield "a key that is not there", [otherwise(REGION, no_key, status=400)]
    yield (
        "no key, no size",
        [
            post(f"{base}/region/x/register", {"byte_size": 8}),
            post(f"{base}/region/x/register", {"key": "/wherry_none"}),
        ],
    )
    there = tensor(
        "INPUT1", "FP32", [1, 4], shared_memory_region="none", shared_memory_byte_size=16
    )
    yield "a region that is not there", [infer("add_sub", A, there)]
    yield (
        "gRPC",
        [
            rpc("SystemSharedMemoryStatus"),
            rpc("SystemSharedMemoryStatus", {"name": "x"}),
            rpc("SystemSharedMemoryUnregister"),
            otherwise(
                REGION,
                rpc(
                    "SystemSharedMemoryRegister",
                    {"name": "x", "key": "/wherry_none", "byte_size": "8"},
                ),
                code="INVALID_ARGUMENT",
            ),
            rpc("CudaSharedMemoryStatus"),
        ],
    )
    yield "CUDA", [get("/v2/cudasharedmemory/status"), post("/v2/cudasharedmemory/unregister")]


def settings() -> Cases:
    yield (
        "trace",
        [
            get("/v2/trace/setting"),
            get("/v2/models/add_sub/trace/setting"),
            post("/v2/trace/setting", {"trace_rate": "500"}),
            get("/v2/trace/setting"),
            post("/v2/trace/setting", {"trace_rate": None}),
            post("/v2/trace/setting", {"trace_rate": "many"}),
            get("/v2/models/none/trace/setting"),
            rpc("TraceSetting"),
            rpc("TraceSetting", {"model_name": "none"}),
        ],
    )
    yield (
        "log",
        [
            get("/v2/logging"),
            post("/v2/logging", {"log_verbose_level": 1}),
            post("/v2/logging", {"log_verbose_level": 0}),
            otherwise(MALFORMED, post("/v2/logging", {"log_format": "unheard of"}), status=400),
            rpc("LogSettings"),
        ],
    )


def statistics() -> Cases:
    for model in ("add_sub", "repeat", "two_steps", "versions", "cached", "extra"):
        yield (
            f"of {model}",
            [
                shape_of(get(f"/v2/models/{model}/stats")),
                shape_of(rpc("ModelStatistics", {"name": model})),
            ],
        )
    yield "of a version", [shape_of(get("/v2/models/versions/versions/1/stats"))]
    yield "of nothing", [get("/v2/models/none/stats"), get("/v2/models/versions/versions/9/stats")]
    yield "of all", [shape_of(get("/v2/models/stats"))]


def control() -> Cases:
    def load(model: str, **parameters: Any) -> Step:
        body = {"parameters": parameters} if parameters else None
        return post(f"/v2/repository/models/{model}/load", body)

    def unload(model: str, **parameters: Any) -> Step:
        body = {"parameters": parameters} if parameters else None
        return post(f"/v2/repository/models/{model}/unload", body)

    x = tensor("X", "INT32", [1], [0])
    yield (
        "index",
        [
            post("/v2/repository/index"),
            post("/v2/repository/index", {"ready": True}),
            rpc("RepositoryIndex"),
            rpc("RepositoryIndex", {"ready": True}),
        ],
    )
    yield (
        "wrong indexes",
        [
            otherwise(MALFORMED, post("/v2/repository/index", "{"), status=400),
            otherwise(MALFORMED, post("/v2/repository/index", {"ready": 1}), status=400),
            post("/v2/repository/other/index"),
        ],
    )
    yield (
        "load and unload",
        [
            load("extra"),
            infer("extra", x),
            unload("extra"),
            {**post("/v2/repository/index"), "after_unload_of": "extra"},
            infer("extra", x),
            get("/v2/models/extra"),
            get("/v2/models/extra/ready"),
            get("/v2/models/extra/stats"),
            load("extra"),
            infer("extra", x),
        ],
    )
    yield (
        "load and unload over gRPC",
        [
            rpc("RepositoryModelLoad", {"model_name": "extra"}),
            rpc("RepositoryModelUnload", {"model_name": "extra"}),
            {**rpc("RepositoryIndex"), "after_unload_of": "extra"},
            rpc("RepositoryModelLoad", {"model_name": "extra"}),
            rpc("ModelReady", {"name": "extra"}),
            otherwise(REASON, rpc("RepositoryModelLoad", {"model_name": "none"}), code="NOT_FOUND"),
            rpc("RepositoryModelUnload", {"model_name": "none"}),
        ],
    )
    config = {
        "backend": "python",
        "max_batch_size": 3,
        "input": [{"name": "X", "data_type": "TYPE_INT32", "dims": ["1"]}],
        "output": [{"name": "VERSION", "data_type": "TYPE_INT32", "dims": [1]}],
    }
    yield (
        "an override",
        [
            load("extra", config=json.dumps(config)),
            get("/v2/models/extra/config"),
            get("/v2/models/extra"),
            load("extra"),
            otherwise(FILES_AGAIN, get("/v2/models/extra/config"), status=200),
        ],
    )
    code = (
        b"import triton_python_backend_utils as pb_utils\n"
        b"import numpy as np\n"
        b"class TritonPythonModel:\n"
        b"    def execute(self, requests):\n"
        b"        y = pb_utils.Tensor('VERSION', np.array([42], dtype=np.int32))\n"
        b"        return [pb_utils.InferenceResponse([y]) for _ in requests]\n"
    )
    file = {"file:5/model.py": base64.b64encode(code).decode()}
    yield (
        "files",
        [
            load("extra", config=json.dumps({**config, "max_batch_size": 0}), **file),
            infer("extra", x),
            get("/v2/models/extra"),
            load("extra"),
            infer("extra", x),
        ],
    )
    yield "files without a config", [otherwise(REASON, load("extra", **file), status=400)]
    for name, text in (
        ("no JSON", "{"),
        ("an unknown member", '{"max_batch_sise": 3}'),
        ("a member of another type", '{"max_batch_size": "three"}'),
    ):
        yield (
            f"an override with {name}",
            [
                otherwise(REASON, load("extra", config=text), status=400),
                get("/v2/models/extra/ready"),
            ],
        )
    yield (
        "an override that is no text",
        [otherwise(MALFORMED, load("extra", config=config), status=400)],
    )
    yield (
        "an unknown model",
        [
            otherwise(REASON, load("none"), status=404),
            unload("none"),
        ],
    )
    yield (
        "a model that cannot be loaded",
        [
            otherwise(REASON, load("broken"), status=400),
            get("/v2/models/broken/ready"),
            infer("broken", x),
        ],
    )
    yield (
        "a repository in the path",
        [
            post("/v2/repository/here/models/extra/load"),
            post("/v2/repository/here/models/extra/unload"),
        ],
    )
    yield (
        "malformed bodies",
        [
            otherwise(MALFORMED, post("/v2/repository/models/extra/load", "{"), status=400),
            otherwise(MALFORMED, post("/v2/repository/models/extra/load", "[]"), status=400),
            otherwise(MALFORMED, post("/v2/repository/models/extra/unload", "{"), status=400),
        ],
    )
    yield (
        "an ensemble goes with its member",
        [
            unload("classes"),
            {**get("/v2/models/classes/ready"), "after_unload_of": "classes"},
            otherwise(NOT_READY, get("/v2/models/two_steps/ready"), status=503),
            otherwise(
                NOT_READY, infer("two_steps", {**A, "name": "A"}, {**B, "name": "B"}), status=503
            ),
            load("two_steps"),
            get("/v2/models/classes/ready"),
            infer("two_steps", {**A, "name": "A"}, {**B, "name": "B"}),
        ],
    )
    yield (
        "dependents",
        [
            load("of_member"),
            infer("of_member", x),
            unload("of_member"),
            {**get("/v2/models/member/ready"), "after_unload_of": "of_member"},
            load("of_member"),
            unload("of_member", unload_dependents=True),
            {**get("/v2/models/member/ready"), "after_unload_of": "member"},
            load("member"),
            load("of_member"),
            unload("of_member", unload_dependents=True),
            {**get("/v2/models/member/ready"), "after_unload_of": "of_member"},
            unload("member"),
        ],
    )


def tensor_parameters() -> Cases:
    """What an input or an output may say beside its data."""
    given: tuple[tuple[str, Any], ...] = (
        ("x", [1]), ("x", {"y": 1}), ("x", None), ("priority", "high"),
        ("shared_memory_offset", 4), ("shared_memory_offset", -1), ("shared_memory_offset", "4"),
        ("shared_memory_byte_size", 4), ("shared_memory_byte_size", True),
    )  # fmt: skip
    for name, value in given:
        said: Any = {"parameters": {name: value}}
        over_http = [
            infer("asked", {**tensor("X", "INT32", [1, 1], [1]), **said}),
            infer("asked", tensor("X", "INT32", [1, 1], [1]), outputs=[{"name": "SEEN", **said}]),
        ]
        yield f"{name} of {value!r}", over_http
    x = grpc_tensor("X", "INT32", [1, 1], int_contents=[1])
    for name in ("x", "shared_memory_offset", "shared_memory_byte_size"):
        said = {"parameters": {name: {"int64_param": "4"}}}
        seen: Any = {"model_name": "asked", "inputs": [x]}
        yield (
            f"{name} over gRPC",
            [
                rpc("ModelInfer", {**seen, "inputs": [{**x, **said}]}),
                rpc("ModelInfer", {**seen, "outputs": [{"name": "SEEN", **said}]}),
            ],
        )
