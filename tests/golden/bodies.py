"""Which requests with odd bodies, codings, texts and names are put to both servers?

What a second generator found to differ, one of each kind. As edges.py, whose part this is.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from tests.golden.edges import MALFORMED, Cases, Edges, Step, X, infer, pair, post, rpc

# Why we answer otherwise.
ROWS = "a request has a row, and data of its shape, where Triton takes 0 rows for 1"
SPLIT = "more rows than max_batch_size are split and joined, where Triton refuses them"
ENDS = "JSON ends where the body ends, where Triton takes a zero byte for its end"
REASON = "why a model could not be loaded is in the answer, with the status of the reason"
TWICE = "of a member that is said twice the last holds; Triton takes the first"
NO_UTF8 = "JSON that is no UTF-8 is refused, where Triton hands its bytes to the model"
RANGE = "a number that its datatype cannot hold is refused, where Triton wraps it around"
UNDERSTOOD = "what Triton refuses here is understood"
UNKNOWN = "a coding that is not known is refused, where Triton does not look at it"
WINDOW = "a window has a size, whatever its region is"
HEADS = "HEAD says what GET says"
IGNORED = "what is not known or has another kind is refused, where Triton does not look at it"
TAKEN = "a setting may be a number, and one word, where Triton wants texts and lists"
VERBOSE = "a verbose level may have more than 31 bits"
ZERO = "a name with a zero byte is another name, where Triton's ends there"
LONG_ID = "a sequence's id may have more than 128 bytes"
ID_KIND = "a sequence id that its control tensor cannot hold is refused"

_ENDS: dict[str, Any] = {"why": ENDS, "status": 400}

#: What we mean to answer, by the case: each has one step.
MEANT: dict[str, dict[str, Any]] = {
    "4 binary bytes of shape [0, 1]": {"why": ROWS, "status": 400},
    "1 binary texts of no rows": {"why": ROWS, "status": 400},
    **{
        f"binary texts {data!r} of [5, 1]": {"why": SPLIT, "status": 400}
        for data in (
            b"\x01", b"\1\0\0\0", b"\xff\xff\xff\xff", b"\1\0\0\0a", b"\1\0\0\0a\1",
            b"\1\0\0\0a\1\0\0\0a",
        )
    },
    **{
        f"{call} with {end}": _ENDS
        for call in ("infer", "infer, sized,") for end in ("a zero at the end", "a zero and more")
    },
    "generate with a zero": _ENDS,
    **{f"{name} NaN": {"why": MALFORMED, "status": 400} for name in ("id", "sequence_id")},
    **{f"{name} said twice": {"why": TWICE, "status": 400} for name in ("data", "name", "inputs")},
    **{f"an id {text!r}": {"why": NO_UTF8, "status": 400} for text in (b"\xe9", b"\xff")},
    **{
        f'generate of asked {{"X": {number}}}': {"why": RANGE, "status": 400}
        for number in (2**31, -(2**40))
    },
    'generate of asked {"X": [[1, 2]]}': {"why": UNDERSTOOD, "status": 200},
    "generate_stream with lists in a list": {"why": UNDERSTOOD, "status": 200},
    "settings asked for in x": {"why": UNKNOWN, "status": 501},
    "settings asked for in br": {"why": UNKNOWN, "status": 501},
    "settings asked for in GZIP": {"why": UNKNOWN, "status": 400},
    "settings asked for in gzip": {"why": UNDERSTOOD, "status": 200},
    "settings asked for in deflate": {"why": UNDERSTOOD, "status": 200},
    "a body in nothing": {"why": UNDERSTOOD, "status": 200},
    "a generate body in nothing": {"why": UNDERSTOOD, "status": 200},
    **{
        f"an {place} in {window}": {"why": WINDOW, "status": 400}
        for place in ("input", "output")
        for window in (
            {"shared_memory_region": "r"},
            {"shared_memory_region": "r", "shared_memory_offset": 1},
        )
    },
    "a mark before the JSON of repository/models/none/load": {"why": REASON, "status": 404},
    "a head of the system region": {"why": HEADS, "status": 404},
    "a head of the cuda region": {"why": HEADS, "status": 404},
    "trace levels ['timestamps']": {"why": IGNORED, "status": 400},
    "trace levels ['timestamps'] over gRPC": {"why": IGNORED, "code": "INVALID_ARGUMENT"},
    "trace levels ['OFF', 'OFF']": {"why": TAKEN, "status": 200},
    "trace levels ['OFF', 'OFF'] over gRPC": {"why": TAKEN, "code": "OK"},
    **{
        f"verbose level {level}": {"why": VERBOSE, "except_for": ["log_verbose_level"]}
        for level in (2**31, 2**32, 2**32 + 5, 2**63, "2**32 - 1 over gRPC")
    },
    "metadata of 'asked\\x00' over gRPC": {"why": ZERO, "code": "NOT_FOUND"},
    "an input's name with a zero over gRPC": {"why": ZERO, "code": "INVALID_ARGUMENT"},
    "an input's name with a zero": {"why": ZERO, "status": 400},
    "a sequence of 129 characters": {"why": LONG_ID, "status": 200},
    "a text as the id of a sequence, start True": {"why": ID_KIND, "status": 400},
    "a text as the id of a sequence over gRPC, start True": {
        "why": ID_KIND, "code": "INVALID_ARGUMENT",
    },
}  # fmt: skip
BOM = b"\xef\xbb\xbf"
GOOD = json.dumps({"inputs": [X]})
FULL = {"name": "X", "datatype": "INT32", "shape": [1, 1], "contents": {"int_contents": [1]}}


def bodies() -> Cases:
    groups = (
        _no_rows, _elements, _marks, _numbers, _twice, _no_utf8, _generate, _accepted, _coded,
        _windows, _paths, _levels, _verbose, _names, _sequences,
    )  # fmt: skip
    for group in groups:
        for name, step in group():
            meant = MEANT.get(name)
            yield name, [step if meant is None else {**step, "otherwise": meant}]


def _bytes(path: str, body: bytes, **headers: str) -> Step:
    """A body that need not be text."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"http": f"POST {path}", "tensors": [body.hex()], "headers": named}


def _binary(model: str, name: str, datatype: str, shape: list[int], data: bytes) -> Step:
    size = {"binary_data_size": len(data)}
    given = {"name": name, "datatype": datatype, "shape": shape, "parameters": size}
    text = json.dumps({"inputs": [given]})
    headers = {"Inference-Header-Content-Length": str(len(text))}
    return {
        "http": f"POST /v2/models/{model}/infer", "text": text, "tensors": [data.hex()],
        "headers": headers,
    }  # fmt: skip


def _elements_of(*texts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def _no_rows() -> Edges:
    for shape, size in (([0, 1], 0), ([0, 1], 4), ([0], 4), ([0, 2], 4)):
        step = _binary("asked", "X", "INT32", shape, bytes(size))
        yield f"{size} binary bytes of shape {shape}", step
    for texts in ((), (b"",), (b"a", b"b")):
        step = _binary("text", "IN", "BYTES", [0, 1], _elements_of(*texts))
        yield f"{len(texts)} binary texts of no rows", step


def _elements() -> Edges:
    one = _elements_of(b"a")
    for data in (b"\x01", b"\1\0\0\0", b"\xff\xff\xff\xff", one, one + b"\1", one + one):
        for shape in ([1, 0], [1, 1], [2, 1], [5, 1]):
            yield f"binary texts {data!r} of {shape}", _binary("text", "IN", "BYTES", shape, data)


def _marks() -> Edges:
    body = GOOD.encode()
    bodies = (
        ("a mark", BOM + body), ("two marks", BOM + BOM + body), ("a mark alone", BOM),
        ("a zero at the end", body + b"\0"), ("a zero and more", body + b"\0x"),
        ("UTF-16", GOOD.encode("utf-16")), ("UTF-16 from its high end", GOOD.encode("utf-16-be")),
    )  # fmt: skip
    for name, body in bodies:
        yield f"infer with {name}", _bytes("/v2/models/asked/infer", body)
        sized = {"Inference_Header_Content_Length": str(len(body))}
        yield f"infer, sized, with {name}", _bytes("/v2/models/asked/infer", body, **sized)
    for name, body in (("a mark", BOM + b'{"X":1}'), ("a zero", b'{"X":1}\0')):
        yield f"generate with {name}", _bytes("/v2/models/asked/generate", body)
    for path in ("logging", "trace/setting", "repository/models/none/load"):
        yield f"a mark before the JSON of {path}", _bytes(f"/v2/{path}", BOM + b"{}")


def _numbers() -> Edges:
    long = "1" * 400
    for number in (
        long,
        long[:309],
        "2" + "0" * 308,
        "17" + "9" * 306 + "0",
        "18446744073709551616",
    ):
        brief = number if len(number) < 30 else f"{number[:3]}.. of {len(number)} digits"
        for name in ("timeout", "priority", "sequence_id"):
            text = f'{{"parameters":{{"{name}":{number}}},"inputs":[{json.dumps(X)}]}}'
            yield f"{name} {brief}", post("/v2/models/asked/infer", text)
        given = json.dumps(pair([1, 4], [1, 4]))
        wanted = f'{{"name":"OUTPUT0","parameters":{{"classification":{number}}}}}'
        text = f'{{"inputs":{given},"outputs":[{wanted}]}}'
        yield f"classification {brief}", post("/v2/models/add_sub/infer", text)
    for name in ("id", "sequence_id"):
        members = {"id": '"id":NaN,', "sequence_id": '"parameters":{"sequence_id":NaN},'}
        text = f'{{{members[name]}"inputs":[{json.dumps(X)}]}}'
        yield f"{name} NaN", post("/v2/models/asked/infer", text)


def _twice() -> Edges:
    head = '"datatype":"INT32","shape":[1,1]'
    for name, text in (
        ("data", f'{{"inputs":[{{"name":"X",{head},"data":[1],"data":[2,3]}}]}}'),
        ("name", f'{{"inputs":[{{"name":"X","name":"Y",{head},"data":[1]}}]}}'),
        ("inputs", f'{{"inputs":[{json.dumps(X)}],"inputs":[]}}'),
    ):
        yield f"{name} said twice", post("/v2/models/asked/infer", text)


def _no_utf8() -> Edges:
    for text in (b"\xe9", b"\xff"):
        body = GOOD.encode().replace(b"{", b'{"id":"%b",' % text, 1)
        yield f"an id {text!r}", _bytes("/v2/models/asked/infer", body)


def _generate() -> Edges:
    bodies: tuple[tuple[str, Any], ...] = (
        ("asked", {"X": None}), ("asked", {"X": 2**31}), ("asked", {"X": -(2**40)}),
        ("asked", {"X": [[1]]}), ("asked", {"X": [[1, 2]]}), ("asked", {"X": {"a": 1}}),
        ("repeat", {"IN": [[1, 2], [3, 4]]}), ("optional", {"X": 1, "parameters": 5}),
        ("optional", {"X": None}), ("text", {"X": 1, "id": 5}), ("text", {"X": 1, "id": "me"}),
        ("text", {"IN": None}), ("text", {"IN": ["a", 1]}), ("text", {"IN": ["a"] * 5}),
        ("add_sub", {"INPUT0": [1, 2, 3]}), ("add_sub", {"INPUT0": [1, 2, 3, 4]}),
        ("asked", {"X": 1, "parameters": {"x": []}}), ("asked", {"x": [], "X": "a"}),
        ("asked", {"X": "a", "x": []}), ("asked", {"X": [1, 2], "Y": 1}),
    )  # fmt: skip
    for model, body in bodies:
        step = post(f"/v2/models/{model}/generate", body)
        yield f"generate of {model} {json.dumps(body)}", step
    step = post("/v2/models/repeat/generate_stream", {"IN": [[1, 2], [3, 4]]})
    yield "generate_stream with lists in a list", step


def _accepted() -> Edges:
    for coding in (
        "deflate, gzip", "gzip, deflate", "gzip;q=0.5,deflate;q=0.8", "gzip;q=0", "gzip; q=0.5",
        "gzip;", "identity,gzip", "gzip;q=0.5, identity", "gzip;q=x", "gzip;q=1.5,deflate;q=2",
        "*", "gzip;q=-1", "gzip;q=1e-3", ",", ";q=1", "deflate;q=.5;x=1", "x-gzip",
    ):  # fmt: skip
        step = post("/v2/models/asked/infer", GOOD, Accept_Encoding=coding)
        yield f"an answer in {coding!r}", step


def _coded() -> Edges:
    for coding in ("x", "GZIP", "gzip", "deflate", "br"):
        step = post("/v2/trace/setting", {}, Content_Encoding=coding)
        yield f"settings asked for in {coding}", step
    yield "a body in nothing", post("/v2/models/asked/infer", GOOD, Content_Encoding="")
    yield (
        "a generate body in nothing",
        post("/v2/models/asked/generate", {"X": 1}, Content_Encoding=""),
    )


def _windows() -> Edges:
    for window in (
        {"shared_memory_region": "r"}, {"shared_memory_region": "r", "shared_memory_offset": 1},
        {"shared_memory_region": "r", "shared_memory_byte_size": 0},
    ):  # fmt: skip
        given = {**X, "parameters": window}
        given.pop("data")
        yield f"an input in {window}", infer("asked", given)
        wanted = {"name": "SEEN", "parameters": window}
        yield f"an output in {window}", infer("asked", X, outputs=[wanted])
    for kind in ("system", "cuda"):
        path = f"/v2/{kind}sharedmemory/region/x/status"
        yield f"a head of the {kind} region", {"http": f"HEAD {path}", "headers": {}}


def _paths() -> Edges:
    for path in (
        "repository//index", "repository//models/none/load", "repository/x/models//load",
        "repository/models//load", "repository/a/b/index", "repository/index/",
        "models//infer", "models/asked/versions//infer", "systemsharedmemory/region//status",
        "trace/setting/", "logging/",
    ):  # fmt: skip
        yield f"a post to {path}", post(f"/v2/{path}", {})


def _levels() -> Edges:
    for levels in (["TIMESTAMPS"], ["TENSORS", "TIMESTAMPS"], ["timestamps"], ["OFF", "OFF"]):
        step = post("/v2/models/warm/trace/setting", {"trace_level": levels})
        yield f"trace levels {levels}", step
        told = {"trace_level": {"value": levels}}
        step = rpc("TraceSetting", {"model_name": "warm", "settings": told})
        yield f"trace levels {levels} over gRPC", step


def _verbose() -> Edges:
    for level in (2**31, 2**32, 2**32 + 5, 2**63):
        yield f"verbose level {level}", post("/v2/logging", {"log_verbose_level": level})
    step = rpc("LogSettings", {"settings": {"log_verbose_level": {"uint32_param": 2**32 - 1}}})
    yield "verbose level 2**32 - 1 over gRPC", step
    yield "verbose level 0 again", post("/v2/logging", {"log_verbose_level": 0})


def _names() -> Edges:
    for name in ("asked\0", "a\0b"):
        yield f"metadata of {name!r} over gRPC", rpc("ModelMetadata", {"name": name})
    step = rpc("ModelInfer", {"model_name": "asked", "inputs": [{**FULL, "name": "X\0Y"}]})
    yield "an input's name with a zero over gRPC", step
    yield "an input's name with a zero", infer("asked", {**X, "name": "X\0Y"})


def _sequences() -> Edges:
    step = infer("asked", X, parameters={"sequence_id": "a" * 129})
    yield "a sequence of 129 characters", step
    for start in (False, True):
        parameters = {"sequence_id": "text b", "sequence_start": start, "sequence_end": True}
        step = infer("sums_oldest", X, parameters=parameters)
        yield f"a text as the id of a sequence, start {start}", step
        told = {name: {"bool_param": value} for name, value in parameters.items()}
        told["sequence_id"] = {"string_param": "text b"}
        step = rpc(
            "ModelInfer", {"model_name": "sums_oldest", "inputs": [FULL], "parameters": told}
        )
        yield f"a text as the id of a sequence over gRPC, start {start}", step
