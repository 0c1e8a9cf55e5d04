"""Which requests at the edges of the protocol are put to both servers?

What a generator of thousands of requests found to differ, one of each kind: headers, versions,
shapes and settings that Triton reads in a way of its own. As cases.py, whose part this is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Step = dict[str, Any]
Cases = Iterator[tuple[str, list[Step]]]
Edges = Iterator[tuple[str, Step]]

# Why we answer otherwise.
HEADER = "a header's length is a number and nothing else, where Triton takes what atoi reads"
VERSION_TEXT = "a version is a number and nothing else, where Triton takes what stol reads"
VERSION = "a version that is not there is 404, whatever its size"
ROWS = "a request has a row, and data of its shape, where Triton takes 0 rows for 1"
MALFORMED = "a malformed request is the client's mistake: 400, where Triton says 500"
IGNORED = "what is not known or has another kind is refused, where Triton does not look at it"
TAKEN = "a setting may be a number, and one word, where Triton wants texts and lists"
EMPTY = "no body changes nothing, where Triton finds that it is no JSON"
REASON = "why a model could not be loaded is in the answer, with the status of the reason"
REGION = "a shared memory region that cannot be opened is the client's mistake"
CUDA = "there is no CUDA shared memory here"
UNSIGNED = "a parameter may be an unsigned number"
NOTHING = "a request whose inputs are all left out is answered"
ACTED_ON = "the server acts on the parameters of a generate request that are its own"
CAPITALS = "a coding may be written in capitals"
DECODED = "a path is decoded"
OWN_PAGES = "pages of our own, where Triton has nothing"
UNDERSTOOD = "what Triton refuses here is understood"
GENERATE = "generate with a number of responses other than one is an error, not a 200"

Given = tuple[Any, ...]
_OF_A_TENSOR: Given = ("x", 1, {"classification": [], "x": {}})
_NOT_KNOWN: Given = ({"nope": 1}, [], 5)
_NO_LOADS: Given = ("[]", "null", {"parameters": 5}, {"parameters": {"x": "y"}})
_NO_HANDLES: Given = ({"raw_handle": 5}, {"raw_handle": {}}, {"raw_handle": {"b64": "aGk="}})

#: What we mean to answer, by the case: each has one step.
MEANT: dict[str, dict[str, Any]] = {
    **{
        f"a header of {form} bytes": {"why": HEADER, "status": 400}
        for form in ("+{}", "{}abc", "{}.5")
    },
    **{
        f"version {'9' * 20}{rest}": {"why": VERSION, "status": 404}
        for rest in (" for infer", "", "/ready")
    },
    "version 0/ready": {"why": VERSION, "status": 404},
    **{
        f"{call} of version {version!r} over gRPC": {
            "why": VERSION_TEXT, "code": "INVALID_ARGUMENT",
        }
        for call in ("ModelReady", "ModelMetadata")
        for version in ("1.0", " 1", "+1", "1x")
    },
    "texts of shape [1, 0]": {"why": ROWS, "status": 400},
    "no rows over gRPC": {"why": ROWS, "code": "INVALID_ARGUMENT"},
    "no inputs of types": {"why": NOTHING, "status": 200},
    **{
        f"logging {given!r}": {"why": IGNORED, "status": 400} for given in _NOT_KNOWN
    },
    "logging ''": {"why": EMPTY, "status": 200},
    **{
        f"trace {given!r}": {"why": IGNORED, "status": status}
        for given, status in (
            ({"nope": 1}, 400), ({"trace_level": []}, 400), ({"trace_level": ["x"]}, 400),
            ({"trace_mode": "x"}, 501), ({"trace_rate": "1x"}, 400), ([], 400),
        )
    },
    **{
        f"trace {given!r}": {"why": TAKEN, "status": 200}
        for given in (
            {"trace_level": "OFF"}, {"trace_rate": 5}, {"trace_count": "99999999999"},
        )
    },
    "trace ''": {"why": EMPTY, "status": 200},
    "index 'null'": {"why": IGNORED, "status": 400},
    **{
        f"load {given!r}": {"why": MALFORMED, "status": 400}
        for given in _NO_LOADS
    },
    "load {'parameters': {'config': 'x'}}": {"why": REASON, "status": 404},
    **{
        f"unload {given!r}": {"why": IGNORED, "status": 400}
        for given in ({"parameters": 5}, {"parameters": {"unload_dependents": 1}})
    },
    "a region of {'key': '/a/b', 'byte_size': 8}": {"why": REGION, "status": 400},
    **{
        f"cuda memory of {given!r}": {"why": MALFORMED, "status": 400}
        for given in _NO_HANDLES
    },
    "cuda memory of {'raw_handle': {'b64': 'aGk='}, 'byte_size': 8, 'device_id': 0}": {
        "why": CUDA, "status": 501,
    },
    **{
        f"generate with {given!r}": {"why": ACTED_ON, **ours}
        for given, ours in (
            ({"sequence_id": 5}, {"except_for": [".json.SEEN"]}),
            ({"sequence_id": "x"}, {"except_for": [".json.SEEN"]}),
            ({"sequence_id": 1.5}, {"status": 400}),
            ({"sequence_start": 5}, {"status": 400}),
            ({"priority": -1}, {"status": 400}),
            ({"timeout": "x"}, {"status": 400}),
            ({"triton_x": 1}, {"status": 400}),
            ({"id": "x"}, {"except_for": [".json.SEEN"]}),
            ({"parameters": {"sequence_id": 5}}, {"except_for": [".json.SEEN"]}),
        )
    },
    **{
        f"parameters of a tensor {given!r}": {"why": IGNORED, "status": 400}
        for given in _OF_A_TENSOR
    },
    "a post to the models": {"why": OWN_PAGES, "status": 405},
    "generate as text": {"why": UNDERSTOOD, "status": 200},
    "json that a zero ends": {"why": MALFORMED, "status": 400},
    "generate with the length of a header": {"why": GENERATE, "status": 400},
    "a body in GZIP": {"why": CAPITALS, "status": 400},
    "metadata of %61sked": {"why": DECODED, "status": 200},
    "ready of asked%2F": {"why": DECODED, "status": 404},
    "stats of asked%2F": {"why": DECODED, "status": 404},
    **{
        f"cuda memory of {given!r} over gRPC": {"why": CUDA, "code": "UNIMPLEMENTED"}
        for given in ({}, {"name": "c", "byte_size": "8"})
    },
    **{
        f"a region of {given!r} over gRPC": {"why": REGION, "code": "INVALID_ARGUMENT"}
        for given in ({}, {"key": "/wherry_none"}, {"key": "/wherry_none", "byte_size": "8"})
    },
    "parameters {'x': {'uint64_param': '1'}} over gRPC": {"why": UNSIGNED, "code": "OK"},
    "log setting nope over gRPC": {"why": IGNORED, "code": "INVALID_ARGUMENT"},
    **{
        f"trace setting {name} of ['x'] over gRPC": {"why": IGNORED, "code": "INVALID_ARGUMENT"}
        for name in ("trace_level", "nope")
    },
}  # fmt: skip

#: Each has trace settings of its own.
MODELS = (
    "add_sub", "add_sub_plain", "asked", "auto", "batched", "cached", "classes", "latest", "levels",
    "optional", "repeat", "reshaped", "shapes", "square", "text", "types", "versions", "warm",
)  # fmt: skip
X: dict[str, Any] = {"name": "X", "datatype": "INT32", "shape": [1, 1], "data": [1]}


def edges() -> Cases:
    groups = (
        _headers, _versions, _shapes, _several_inputs, _settings, _repository, _regions, _codings,
        _over_grpc, _in_streams, _named_oddly, _asked_twice, _raw, _generate, _memory_over_grpc,
        _loosely, _packed,
    )  # fmt: skip
    for group in groups:
        for name, step in group():
            meant = MEANT.get(name)
            yield name, [step if meant is None else {**step, "otherwise": meant}]


def post(path: str, body: Any, **headers: str) -> Step:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    text = body if isinstance(body, str) else json.dumps(body)
    return {"http": f"POST {path}", "text": text, "headers": named}


def infer(model: str, *inputs: Any, **more: Any) -> Step:
    return post(f"/v2/models/{model}/infer", {"inputs": inputs, **more})


def rpc(name: str, *messages: Any) -> Step:
    return {"grpc": name, "messages": [*messages]}


def pair(first: list[Any], second: list[Any], **of_second: Any) -> list[Any]:
    return [
        {"name": name, "datatype": "FP32", "shape": shape, "data": [1, 2, 3, 4]}
        | (of_second if name == "INPUT1" else {})
        for name, shape in (("INPUT0", first), ("INPUT1", second))
    ]


def _headers() -> Edges:
    body = json.dumps({"inputs": [X]})
    for form in (" {}", "+{}", "{}abc", "{}.5", "0{}", "-1", "0", "x", "{}1"):
        length = form.format(len(body))
        step = post("/v2/models/asked/infer", body, Inference_Header_Content_Length=length)
        yield f"a header of {form} bytes", step


def _versions() -> Edges:
    for version in ("01", "0", "9" * 20):
        path = f"/v2/models/versions/versions/{version}"
        given = {**X, "shape": [1]}
        yield f"version {version} for infer", post(f"{path}/infer", {"inputs": [given]})
        for rest in ("", "/ready"):
            yield f"version {version}{rest}", {"http": f"GET {path}{rest}", "headers": {}}
    for version in ("01", "1.0", " 1", "+1", "1x", "-2", "9" * 20):
        for call in ("ModelReady", "ModelMetadata"):
            asked = {"name": "versions", "version": version}
            yield f"{call} of version {version!r} over gRPC", rpc(call, asked)


def _shapes() -> Edges:
    shapes: tuple[list[int], ...] = ([0, 4], [0], [], [4], [1, -1], [1, 0], [1, 4, 1], [9, 4])
    for shape in shapes:
        yield f"shape {shape} of the second input", infer("add_sub", *pair([1, 4], shape))
        yield f"shape {shape} of both inputs", infer("add_sub", *pair(shape, shape))
    for shape in ([1, 0], [0, 2], [2, 1]):
        given = {"name": "IN", "datatype": "BYTES", "shape": shape, "data": ["a", "b"]}
        yield f"texts of shape {shape}", infer("text", given)
    yield "no rows with data", infer("asked", {**X, "shape": [0, 1]})


def _several_inputs() -> Edges:
    good = pair([1, 4], [1, 4])
    for name in ("A", "INPUT", "INPUT2", "a much longer name"):
        more = {**good[0], "name": name}
        yield f"a third input {name!r}", infer("add_sub", *good, more)
        yield f"{name!r} in place of an input", infer("add_sub", good[0], more)
    yield "an input twice", infer("add_sub", *good, good[0], id="me")
    wrong = pair([1, 5], [1, 4], datatype="INT32")
    yield "a wrong datatype and a wrong shape", infer("add_sub", *wrong)
    for model in ("add_sub", "optional", "types"):
        yield f"no inputs of {model}", infer(model)
    for names in ("OUTPUT1", "OUTPUT1"), ("Z", "A"):
        wanted = [{"name": name} for name in names]
        yield f"outputs {names}", infer("add_sub", *good, outputs=wanted)


def _settings() -> Edges:
    logging: Given = (
        {"nope": 1}, {"log_info": None}, {"log_file": None}, {"log_file": "x"}, {"log_info": 1},
        {"log_verbose_level": "1"}, {"log_format": 5}, [], 5, "",
    )  # fmt: skip
    for given in logging:
        yield f"logging {given!r}", post("/v2/logging", given)
    traces: Given = (
        {"nope": 1}, {"trace_level": []}, {"trace_level": ["x"]}, {"trace_level": "OFF"},
        {"trace_level": ["OFF", "TENSORS"]}, {"trace_mode": "x"}, {"trace_rate": 5},
        {"trace_rate": "1x"}, {"trace_rate": None}, {"trace_count": "-2"},
        {"trace_count": "99999999999"}, {"trace_file": "x"}, [], "",
    )  # fmt: skip
    for model, given in zip(reversed(MODELS), traces, strict=False):
        yield f"trace {given!r}", post(f"/v2/models/{model}/trace/setting", given)


def _repository() -> Edges:
    for given in ({"ready": 1}, {"ready": None}, {"ready": "x"}, "{", "null"):
        yield f"index {given!r}", post("/v2/repository/index", given)
    loads: Given = (
        "[]", "null", {"parameters": 5}, {"parameters": {"x": "y"}}, {"parameters": {"x": 1}},
        {"parameters": {"config": 5}}, {"parameters": {"config": "x"}},
    )  # fmt: skip
    for given in loads:
        yield f"load {given!r}", post("/v2/repository/models/none/load", given)
    unloads: Given = (
        {"parameters": 5}, {"parameters": {"unload_dependents": 1}}, {"parameters": {"x": 1}},
    )  # fmt: skip
    for given in unloads:
        yield f"unload {given!r}", post("/v2/repository/models/none/unload", given)


def _regions() -> Edges:
    for kind in ("system", "cuda"):
        path = f"/v2/{kind}sharedmemory"
        yield f"{kind} memory without a name", post(f"{path}/register", {})
    regions: Given = (
        {"byte_size": 8}, {"key": 5, "byte_size": 8}, {"key": "/wherry_none", "byte_size": "8"},
        {"key": "/wherry_none", "offset": -1, "byte_size": 8}, {"key": "/wherry_none"},
        {"key": "/a/b", "byte_size": 8}, [],
    )  # fmt: skip
    for given in regions:
        path = "/v2/systemsharedmemory/region/r/register"
        yield f"a region of {given!r}", post(path, given)
    cuda: Given = (
        {}, {"raw_handle": 5}, {"raw_handle": {}}, {"raw_handle": {"b64": "aGk="}},
        {"raw_handle": {"b64": "aGk="}, "byte_size": 8, "device_id": 0},
    )  # fmt: skip
    for given in cuda:
        yield f"cuda memory of {given!r}", post("/v2/cudasharedmemory/region/r/register", given)


def _codings() -> Edges:
    for coding in ("br", "x", "identity", "GZIP"):
        step = post("/v2/models/asked/infer", {"inputs": [X]}, Content_Encoding=coding)
        yield f"a body in {coding}", step
    for coding in ("GZIP", "deflate, GZIP", "*", "Deflate;q=1"):
        headers = {"Accept_Encoding": coding}
        yield f"an answer in {coding}", post("/v2/models/asked/infer", {"inputs": [X]}, **headers)


def _over_grpc() -> Edges:
    x = {"name": "X", "datatype": "INT32", "shape": [1, 1]}
    full = {**x, "contents": {"int_contents": [1]}}
    asked = {"model_name": "asked", "id": "i"}
    inputs: tuple[tuple[str, Any], ...] = (
        ("no contents", [x]), ("empty contents", [{**x, "contents": {}}]),
        ("no shape", [{**full, "shape": []}]), ("no rows", [{**full, "shape": [0, 1]}]),
        ("a size of -1", [{**full, "shape": [1, -1]}]),
        ("rows of -1", [{**full, "shape": [-1, 1]}]),
        ("an input twice", [full, full]), ("another input", [full, {**full, "name": "Y"}]),
        ("another datatype", [{**full, "datatype": "TYPE_INT32"}]), ("no inputs", []),
    )  # fmt: skip
    for name, given in inputs:
        yield f"{name} over gRPC", rpc("ModelInfer", {**asked, "inputs": given})
    parameters: Given = (
        {"x": {"uint64_param": "1"}}, {"triton_x": {"bool_param": True}},
        {"triton_enable_empty_final_response": {"int64_param": "1"}},
        {"sequence_start": {"string_param": "x"}}, {"priority": {"double_param": 1.5}},
    )  # fmt: skip
    for given in parameters:
        call = {**asked, "inputs": [full], "parameters": given}
        yield f"parameters {given!r} over gRPC", rpc("ModelInfer", call)
    for name in ("log_info", "log_format", "nope"):
        setting = {name: {"string_param": "x"}}
        yield f"log setting {name} over gRPC", rpc("LogSettings", {"settings": setting})
    traces = (("trace_rate", ["x"]), ("trace_rate", ["1", "2"]), ("trace_level", ["x"]),
              ("nope", ["x"]))  # fmt: skip
    for model, (name, values) in zip(MODELS, traces, strict=False):
        told = {"model_name": model, "settings": {name: {"value": values}}}
        yield f"trace setting {name} of {values} over gRPC", rpc("TraceSetting", told)
    loads = (("x", {"string_param": "x"}), ("config", {"int64_param": "1"}),
             ("file:a", {"string_param": "x"}))  # fmt: skip
    for name, value in loads:
        load = {"model_name": "none", "parameters": {name: value}}
        yield f"a load's {name} over gRPC", rpc("RepositoryModelLoad", load)


def _in_streams() -> Edges:
    full = {
        "name": "IN", "datatype": "INT32", "shape": [2], "contents": {"int_contents": [1, 2]},
    }  # fmt: skip
    region = {"shared_memory_region": {"int64_param": "1"}}
    good = {"model_name": "repeat", "id": "a", "inputs": [full]}
    wrong: tuple[tuple[str, Any], ...] = (
        ("no contents", {"inputs": [{k: v for k, v in full.items() if k != "contents"}]}),
        ("an input twice", {"inputs": [full, full]}),
        ("another input", {"inputs": [{**full, "name": "X"}]}),
        ("another size", {"inputs": [{**full, "shape": [3]}]}),
        ("another shape", {"inputs": [{**full, "shape": [1, 2]}]}),
        ("another datatype", {"inputs": [{**full, "datatype": "INT64"}]}),
        ("another output", {"outputs": [{"name": "X"}]}),
        ("a version", {"model_version": "x"}),
        ("a parameter", {"parameters": {"priority": {"string_param": "x"}}}),
        ("a region", {"inputs": [{**full, "parameters": region}]}),
    )  # fmt: skip
    for name, members in wrong:
        yield f"{name} within a stream", rpc("ModelStreamInfer", {**good, **members})


def _named_oddly() -> Edges:
    for name in ("%61sked", "asked%2F", "%20", "it's", "a+b", "..%2Fetc"):
        yield f"metadata of {name}", {"http": f"GET /v2/models/{name}", "headers": {}}
    for rest in ("ready", "stats"):
        path = f"/v2/models/asked%2F/{rest}"
        yield f"{rest} of asked%2F", {"http": f"GET {path}", "headers": {}}
    for name in ("it's", " ", "asked/", "../etc", "asked%2F", "asked\n"):
        for call in ("ModelReady", "ModelMetadata"):
            yield f"{call} of {name!r} over gRPC", rpc(call, {"name": name})
    yield "a method that there is not", {"grpc": "Nope", "raw": ""}


def _asked_twice() -> Edges:
    plain, binary, classes = (
        {"name": "OUTPUT0", "parameters": parameters}
        for parameters in ({}, {"binary_data": True}, {"classification": 2})
    )
    both = pair([1, 4], [1, 4])
    for name, outputs in (
        ("plain and binary", [plain, binary]), ("binary and plain", [binary, plain]),
        ("plain and classes", [plain, classes]), ("classes and plain", [classes, plain]),
    ):  # fmt: skip
        yield f"an output {name}", infer("add_sub", *both, outputs=outputs)


def _raw() -> Edges:
    for model, size in (
        ("asked", 5), ("asked", 0), ("classes", 5), ("shapes", 1), ("reshaped", 3), ("optional", 1),
        ("text", 5),
    ):  # fmt: skip
        step = {"http": f"POST /v2/models/{model}/infer", "text": "x" * size}
        headers = {"Inference-Header-Content-Length": "0"}
        yield f"{size} bytes and no JSON for {model}", {**step, "headers": headers}


def _generate() -> Edges:
    parameters: Given = (
        {"sequence_id": 5}, {"sequence_id": "x"}, {"sequence_id": 1.5}, {"sequence_start": 5},
        {"priority": -1}, {"timeout": "x"}, {"triton_x": 1}, {"id": "x"},
        {"parameters": {"sequence_id": 5}},
    )  # fmt: skip
    for given in parameters:
        step = post("/v2/models/asked/generate", {"X": 1, **given})
        yield f"generate with {given!r}", step


def _memory_over_grpc() -> Edges:
    for given in ({}, {"name": "c", "byte_size": "8"}):
        step = rpc("CudaSharedMemoryRegister", given)
        yield f"cuda memory of {given!r} over gRPC", step
    for given in ({}, {"key": "/wherry_none"}, {"key": "/wherry_none", "byte_size": "8"}):
        yield f"a region of {given!r} over gRPC", rpc("SystemSharedMemoryRegister", given)


def _loosely() -> Edges:
    for given in _OF_A_TENSOR:
        step = infer("asked", {**X, "parameters": given}, outputs=[{"name": "SEEN"}])
        yield f"parameters of a tensor {given!r}", step
    length = {"Inference_Header_Content_Length": "0"}
    step = post("/v2/models/repeat/generate", {"IN": [4, 5]}, **length)
    yield "generate with the length of a header", step
    step = post("/v2/models/text/generate", {"IN": "a", "x": None}, Content_Type="text/plain")
    yield "generate as text", step
    yield "generate without its input", post("/v2/models/repeat/generate_stream", {})
    yield "a post to the models", post("/v2/models", {})


def _packed() -> Edges:
    for model, given in (("asked", X), ("none", X), ("asked", {**X, "shape": [0, 1]})):
        step = post(f"/v2/models/{model}/infer", {"inputs": [given]}, Content_Encoding="gzip")
        yield f"{given['shape']} of {model} packed", step
    step = post("/v2/models/asked/infer", '{"inputs": [', Content_Encoding="deflate")
    yield "no json packed", step
    text = json.dumps({"inputs": [X]})
    for length in (f"+{len(text) + 20}", f"{len(text) + 9}.5"):
        headers = {"Inference_Header_Content_Length": length}
        yield (
            f"a header of {length} of {len(text)} bytes",
            post("/v2/models/asked/infer", text, **headers),
        )
    headers = {"Inference_Header_Content_Length": str(len(text) + 2)}
    yield "json that a zero ends", post("/v2/models/asked/infer", text + "\0" * 4, **headers)
