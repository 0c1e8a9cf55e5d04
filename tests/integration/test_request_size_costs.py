"""Does a request cost more than its size, on any route?

A row of the table is a route and a request to it: many small parts beside one large one, or many
small ones alone. What a client multiplies (rows, parameters, outputs) is not to multiply the
server's memory, its CPU, or how long others wait.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.hostile import (
    MIB,
    Send,
    WatchedServer,
    assert_costs_its_size,
    call,
    multipart,
    post,
    watched_server,
)
from wherry.core.observability.machine import Machine
from wherry.server.connections.limits import memory_plan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc"),
]

#: Of each request; the smallest body of which all bounds are reached.
BODY = 4 * MIB
QUEUE = 64 * MIB
BOUND = memory_plan(
    Machine().memory_limit_bytes(),
    connections=16,
    body_bytes=BODY + 4096,
    queue_bytes=QUEUE,
    received_bytes=8 * MIB,
    unsent_bytes=8 * MIB,
).full_bytes
OPTIONS = {
    "model-control-mode": "explicit",
    "load-model": "*",
    "max-connections": 16,
    "max-body-size": BODY + 4096,
    "max-queue-bytes": QUEUE,
    "max-received-bytes": 8 * MIB,
    "max-unsent-bytes": 8 * MIB,
}
MODELS = """
from typing import Annotated, Any, NamedTuple

import numpy as np
import wherry

Row = Annotated[np.ndarray, wherry.FP32[-1]]

@wherry.model(max_batch_size=8, route="/files")
def files(file: list[bytes], name: list[str]) -> list[int]:
    return [len(one) + len(other) for one, other in zip(file, name)]

@wherry.model(max_batch_size=8, route="/objects")
def objects(row: list[dict[str, Any]], name: list[str]) -> list[int]:
    return [len(one) + len(other) for one, other in zip(row, name)]

@wherry.model(max_batch_size=8, route="/numbers")
def numbers(x: Row, name: list[str]) -> list[int]:
    return [len(one) + len(other) for one, other in zip(x, name)]

@wherry.model(max_batch_size=1, route="/texts")
def texts(text: list[str]) -> list[int]:
    return [len(one) for one in text]

@wherry.model(max_batch_size=1, route="/object")
def object(row: list[dict[str, Any]]) -> list[int]:
    return [len(one) for one in row]

@wherry.model(max_batch_size=8, route="/lists")
def lists(words: list[list[str]], name: list[str]) -> list[int]:
    return [len(one) + len(other) for one, other in zip(words, name)]

class Delta(NamedTuple):
    text: list[str]
    token_ids: list[list[int]]

@wherry.model(max_batch_size=8)
def talk(
    prompt: list[str] | None = None,
    messages: list[list[dict[str, Any]]] | None = None,
    token_ids: list[list[int]] | None = None,
    tools: list[list[dict[str, Any]]] | None = None,
    template: list[dict[str, Any]] | None = None,
    parameters: list[dict[str, Any]] | None = None,
    task: list[str] | None = None,
) -> Delta:
    rows = len(prompt or messages or token_ids)
    return Delta(["a"] * rows, [[1]] * rows)

@wherry.model(max_batch_size=64, isolation="thread")
def embed(text: list[str]) -> Annotated[np.ndarray, wherry.FP32[4]]:
    return np.ones((len(text), 4), np.float32)

@wherry.model(max_batch_size=64, isolation="thread")
def rank(query: list[str], document: list[str]) -> list[float]:
    return [1.0 for _ in query]

@wherry.model(isolation="thread")
def hear(audio: wherry.Audio, task: str = "") -> str:
    return "a"
"""

FORM_PARTS = 500


def form(path: str, field: str, value: Callable[[int], bytes]) -> Callable[[int], Send]:
    """One large field beside many small ones, for each of which it stands."""

    def make(nbytes: int) -> Send:
        parts = min(FORM_PARTS, nbytes // 256)
        large = value(nbytes - parts * 128)
        body, content_type = multipart([(field, large), *[("name", b"x")] * parts])
        return post(path, body, {"Content-Type": content_type})

    return make


def json_of(text: str) -> Callable[[int], bytes]:
    """A JSON array of as many equal elements as fit."""
    return lambda nbytes: b"[%b]" % b",".join([text.encode()] * (nbytes // (len(text) + 1)))


def object_of(nbytes: int) -> bytes:
    return json.dumps({f"k{i:06}": i for i in range(nbytes // 20)}).encode()


def infer(name: str, datatype: str, shape: list[int], data: bytes, more: bytes = b"") -> bytes:
    """An infer request of one input; `more` are members of the request, each behind a comma."""
    head = json.dumps({"name": name, "datatype": datatype, "shape": shape})[:-1].encode()
    return b'{"inputs":[%b,"data":%b}]%b}' % (head, data, more)


def of_texts(texts: int, text: bytes = b'"a"', more: bytes = b"") -> Send:
    data = b"[%b]" % b",".join([text] * texts)
    return post("/v2/models/texts/infer", infer("text", "BYTES", [texts], data, more))


def json_parts(path: str, before: bytes, part: bytes, behind: bytes) -> Callable[[int], Send]:
    """A JSON body of nothing but small parts."""

    def make(nbytes: int) -> Send:
        parts = (nbytes - len(before) - len(behind)) // (len(part) + 1)
        return post(path, before + b",".join([part] * parts) + behind)

    return make


def names(path: str, before: bytes, behind: bytes) -> Callable[[int], Send]:
    """A JSON body with an object of nothing but members."""

    def make(nbytes: int) -> Send:
        members = [b'"k%07d":1' % number for number in range((nbytes - 200) // 13)]
        return post(path, before + b",".join(members) + behind)

    return make


def binary(nbytes: int) -> Send:
    """As many empty texts as fit into binary data: four bytes each."""
    count = (nbytes - 200) // 4
    head = (
        b'{"inputs":[{"name":"text","datatype":"BYTES","shape":[%d],"parameters":'
        b'{"binary_data_size":%d}}]}' % (count, 4 * count)
    )
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return post("/v2/models/texts/infer", head + bytes(4 * count), headers)


def some(make: Callable[[int], Send]) -> Callable[[int], Send]:
    """Of the largest size that is not refused for the number of its values."""
    return lambda nbytes: make(nbytes // 3)


def over_grpc(
    model: str, name: str, shape: Sequence[int], more: Mapping[str, Any], **given: Any
) -> Mapping[str, Any]:
    """A ModelInfer of one input, with `more` of the request and what is given of the input."""
    tensor = {"name": name, "datatype": "BYTES", "shape": shape, **given}
    return {"model_name": model, "inputs": [tensor], **more}


def texts_over_grpc(count: int, **more: Any) -> Mapping[str, Any]:
    contents = {"bytes_contents": [b""] * count}
    return over_grpc("texts", "text", [count], more, contents=contents)


def words(nbytes: int) -> bytes:
    """A text."""
    return b'"%b"' % (b"word " * (nbytes // 5))


def schema(nbytes: int) -> bytes:
    """A JSON schema of a third of the size: larger ones have too many values."""
    choices = [b'"e%06d"' % number for number in range(nbytes // 30)]
    return b'{"enum":[%b]}' % b",".join(choices)


def numbers_in_a_text(nbytes: int) -> bytes:
    """A JSON object as a text."""
    return b'"{\\"a\\":[%b0]}"' % (b"1," * (nbytes // 2 - 20))


def json_body(
    path: str, model: str, before: bytes, large: Callable[[int], bytes], behind: bytes = b"}"
) -> Callable[[int], Send]:
    """A JSON body of one large value."""
    start = b'{"model":"%b",%b' % (model.encode(), before)
    return lambda nbytes: post(path, start + large(nbytes - 200) + behind)


def beside(
    path: str, model: str, field: str, large: str, value: Callable[[int], bytes], parts: int = 1000
) -> Callable[[int], Send]:
    """A JSON body of one large value beside many small ones, for each of which it stands."""

    def before(nbytes: int) -> bytes:
        small = b",".join([b'"a"'] * min(parts, nbytes // 64))
        return b'{"model":"%b","%b":[%b],"%b":' % (
            model.encode(), field.encode(), small, large.encode()
        )  # fmt: skip

    return lambda nbytes: post(path, before(nbytes) + value(nbytes - nbytes // 8) + b"}")


def recording(fields: Callable[[int], list[tuple[str, bytes]]]) -> Callable[[int], Send]:
    def make(nbytes: int) -> Send:
        body, content_type = multipart([("model", b"hear"), *fields(nbytes)])
        return post("/v1/audio/transcriptions", body, {"Content-Type": content_type})

    return make


CHAT = b'{"model":"talk","messages":['
CHATS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
ASKED = b'"messages":[{"role":"user","content":"a"}],'
SAID = b'{"role":"user","content":"a"}'
FORMAT = b'"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":'
OPENAI: dict[str, Callable[[int], Send]] = {
    "a chat of one text": json_body(
        CHATS, "talk", b'"messages":[{"role":"user","content":', words, b"}]}"
    ),
    "some messages": some(some(json_parts(CHATS, CHAT, SAID, b"]}"))),
    "some parts of a message": some(
        json_parts(
            CHATS, CHAT + b'{"role":"user","content":[', b'{"type":"text","text":"a"}', b"]}]}"
        )
    ),
    "some calls": some(
        json_parts(
            CHATS,
            CHAT + SAID + b',{"role":"assistant","tool_calls":[',
            b'{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}',
            b"]}]}",
        )
    ),
    "a call of many arguments": json_body(
        CHATS,
        "talk",
        b'"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":',
        numbers_in_a_text,
        b"}}]}]}",
    ),
    "many tools": json_parts(
        CHATS, CHAT + SAID + b'],"tools":[', b'{"type":"function","function":{"name":"f"}}', b"]}"
    ),
    "a large tool": json_body(
        CHATS,
        "talk",
        ASKED + b'"tools":[{"type":"function","function":{"name":"f","parameters":',
        schema,
        b"}}]}",
    ),
    "a large format": json_body(CHATS, "talk", ASKED + FORMAT, schema, b"}}}"),
    "a format as a text": json_body(
        CHATS, "talk", ASKED + b'"structured_outputs":{"json":', numbers_in_a_text, b"}}"
    ),
    "some variables of a template": some(
        names(CHATS, CHAT + SAID + b'],"chat_template_kwargs":{', b"}}")
    ),
    "some unknown fields": some(names(CHATS, CHAT + SAID + b"],", b"}")),
    "long integers in a call": json_parts(
        CHATS,
        CHAT + b'{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"[',
        b"1" * 4200,
        b']"}}]}]}',
    ),
    "a long name of a model": lambda nbytes: post(
        CHATS, b'{"model":"%b","messages":[%b]}' % (b"x" * (nbytes - 100), SAID)
    ),
    "some tokens that are allowed": some(
        json_parts(CHATS, CHAT + SAID + b'],"allowed_token_ids":[', b"1", b"]}")
    ),
    "a text that is not UTF-8": lambda nbytes: post(
        CHATS, CHAT + b'{"role":"user","content":"%b\xff"}]}' % (b"a" * (nbytes - 100))
    ),
    "many prompts": json_parts("/v1/completions", b'{"model":"talk","prompt":[', b'"a"', b"]}"),
    "as many prompts as may be": lambda nbytes: json_parts(
        "/v1/completions", b'{"model":"talk","prompt":[', b'"a"', b"]}"
    )(nbytes // 1024),
    "some lists of tokens": some(
        json_parts("/v1/completions", b'{"model":"talk","prompt":[', b"[65]", b"]}")
    ),
    "many tokens": json_parts("/v1/completions", b'{"model":"talk","prompt":[', b"65", b"]}"),
    "prompts beside choices": beside(
        "/v1/completions",
        "talk",
        "prompt",
        "structured_outputs",
        lambda nbytes: b'{"choice":%b}' % schema(nbytes)[8:-1],
    ),
    "prompts beside a pattern": beside(
        "/v1/completions",
        "talk",
        "prompt",
        "structured_outputs",
        lambda nbytes: b'{"regex":%b}' % words(nbytes),
    ),
    "prompts beside a name": beside("/v1/completions", "talk", "prompt", "user", words),
    "a response to one text": json_body(RESPONSES, "talk", b'"input":', words),
    "a response with instructions": json_body(
        RESPONSES, "talk", b'"input":"a","instructions":', words
    ),
    "some items of a response": some(
        some(json_parts(RESPONSES, b'{"model":"talk","input":[', SAID, b"]}"))
    ),
    "some calls of a response": some(
        json_parts(
            RESPONSES,
            b'{"model":"talk","input":[',
            b'{"type":"function_call","call_id":"a","name":"b","arguments":"{}"}',
            b"]}",
        )
    ),
    "some references of a response": some(
        json_parts(
            RESPONSES, b'{"model":"talk","input":[', b'{"type":"item_reference","id":"a"}', b"]}"
        )
    ),
    "a message of one text": json_body(
        MESSAGES,
        "talk",
        b'"max_tokens":1,"messages":[{"role":"user","content":',
        words,
        b"}]}",
    ),
    "some messages of Anthropic's": some(
        some(json_parts(MESSAGES, CHAT, SAID, b'],"max_tokens":1}'))
    ),
    "some results of tools": some(
        json_parts(
            MESSAGES,
            CHAT + b'{"role":"user","content":[',
            b'{"type":"tool_result","tool_use_id":"a","content":"b"}',
            b']}],"max_tokens":1}',
        )
    ),
    "a large tool of Anthropic's": json_body(
        MESSAGES,
        "talk",
        ASKED + b'"max_tokens":1,"tools":[{"name":"f","input_schema":',
        schema,
        b"}]}",
    ),
    "messages that are counted": some(
        some(json_parts("/v1/messages/count_tokens", CHAT, SAID, b"]}"))
    ),
    "many texts for vectors": json_parts(
        "/v1/embeddings", b'{"model":"embed","input":[', b'"a"', b"]}"
    ),
    "some texts for vectors": lambda nbytes: json_parts(
        "/v1/embeddings", b'{"model":"embed","input":[', b'"a"', b"]}"
    )(nbytes // 512),
    "a text for a vector": json_body("/v1/embeddings", "embed", b'"input":[', words, b"]}"),
    "some unknown fields for vectors": some(
        names("/v1/embeddings", b'{"model":"embed","input":"a",', b"}")
    ),
    "many documents": json_parts(
        "/rerank", b'{"model":"rank","query":"a","documents":[', b'"a"', b"]}"
    ),
    "some documents as objects": some(
        json_parts("/rerank", b'{"model":"rank","query":"a","documents":[', b'{"text":"a"}', b"]}")
    ),
    "a query beside documents": beside("/rerank", "rank", "documents", "query", words),
    "a text beside texts": beside("/score", "rank", "text_2", "text_1", words),
    "pairs of texts": lambda nbytes: post(
        "/score",
        b'{"model":"rank","queries":[%b],"documents":[%b]}'
        % ((b",".join([b'"a"'] * (nbytes // 2048)),) * 2),
    ),
    "a text for tokens": json_body("/tokenize", "talk", b'"prompt":', words),
    "some messages for tokens": some(some(json_parts("/tokenize", CHAT, SAID, b"]}"))),
    "some tokens": some(
        some(json_parts("/detokenize", b'{"model":"talk","tokens":[', b"65", b"]}"))
    ),
    "a recording": recording(lambda nbytes: [("file", bytes(nbytes - 1000))]),
    "a recording beside many fields": recording(
        lambda nbytes: [
            ("file", bytes(nbytes // 2)),
            *[("timestamp_granularities[]", b"word")] * min(1000, nbytes // 400),
        ]
    ),
    "a recording with a large prompt": recording(
        lambda nbytes: [("file", b"RIFF"), ("prompt", b"x" * (nbytes - 1000))]
    ),
}


def loading(**parameters: Any) -> Mapping[str, Any]:
    return {"model_name": "other", "parameters": parameters}


def many(value: Any) -> Callable[[int], dict[str, Any]]:
    """A map of nothing but small values."""
    return lambda nbytes: {f"k{number}": value for number in range(nbytes // 64)}


CONFIG = {"string_param": "{}"}
#: A method beside ModelInfer, and a message to it.
OTHER_CALLS: dict[str, tuple[str, Callable[[int], Mapping[str, Any]]]] = {
    "a file in a load": (
        "RepositoryModelLoad",
        lambda nbytes: loading(
            config=CONFIG, **{"file:1/model.py": {"bytes_param": bytes(nbytes - 200)}}
        ),
    ),
    "many files in a load": (
        "RepositoryModelLoad",
        lambda nbytes: loading(
            config=CONFIG,
            **{f"file:{number}": {"bytes_param": bytes(nbytes // 1024)} for number in range(900)},
        ),
    ),
    "many parameters of a load": (
        "RepositoryModelLoad", lambda nbytes: loading(**many({"bool_param": True})(nbytes))
    ),
    "a long configuration": (
        "RepositoryModelLoad",
        lambda nbytes: loading(
            config={"string_param": object_of(nbytes).decode()}
        ),
    ),
    "a long name": ("RepositoryModelLoad", lambda nbytes: {"model_name": "x" * (nbytes - 100)}),
    "a long version": (
        "ModelMetadata", lambda nbytes: {"name": "texts", "version": "9" * (nbytes - 100)}
    ),
    "many parameters of an unload": (
        "RepositoryModelUnload",
        lambda nbytes: {"model_name": "a", "parameters": many({"bool_param": True})(nbytes)},
    ),
    "a long name of a region": (
        "SystemSharedMemoryRegister",
        lambda nbytes: {"name": "x" * (nbytes - 100), "key": "/a", "byte_size": 1},
    ),
    "a long key of a region": (
        "SystemSharedMemoryRegister",
        lambda nbytes: {"name": "x", "key": "/" + "a" * (nbytes - 100), "byte_size": 1},
    ),
    "a long handle": (
        "CudaSharedMemoryRegister",
        lambda nbytes: {"name": "x", "raw_handle": bytes(nbytes - 100), "byte_size": 1},
    ),
    "many trace settings": (
        "TraceSetting", lambda nbytes: {"settings": many({"value": ["a"]})(nbytes)}
    ),
    "many values of a trace setting": (
        "TraceSetting",
        lambda nbytes: {"settings": {"trace_level": {"value": ["OFF"] * (nbytes // 6)}}},
    ),
    "many log settings": (
        "LogSettings", lambda nbytes: {"settings": many({"bool_param": True})(nbytes)}
    ),
}  # fmt: skip

OVER_GRPC: dict[str, Callable[[int], Mapping[str, Any]]] = {
    "many rows": lambda nbytes: texts_over_grpc(nbytes // 2),
    "a parameter beside many rows": lambda nbytes: texts_over_grpc(
        min(2048, nbytes // 16), parameters={"p": {"string_param": "x" * (nbytes // 4)}}
    ),
    "many parameters": lambda nbytes: texts_over_grpc(
        1, parameters={f"k{n}": {"bool_param": True} for n in range(nbytes // 16)}
    ),
    "many outputs": lambda nbytes: texts_over_grpc(
        1, outputs=[{"name": "output"}] * (nbytes // 10)
    ),
    "many dimensions": lambda nbytes: over_grpc(
        "texts", "text", [1] * (nbytes - 100), {}, contents={"bytes_contents": [b""]}
    ),
    "many pieces of raw data": lambda nbytes: over_grpc(
        "texts", "text", [1], {"raw_input_contents": [b""] * (nbytes // 2 - 100)}
    ),
    "many empty texts of raw data": lambda nbytes: over_grpc(
        "texts", "text", [(nbytes - 100) // 4],
        {"raw_input_contents": [bytes((nbytes - 100) // 4 * 4)]},
    ),
    "an object": lambda nbytes: over_grpc(
        "object", "row", [1], {}, contents={"bytes_contents": [object_of(nbytes - 100)]}
    ),
    "many objects": lambda nbytes: over_grpc(
        "object", "row", [nbytes // 4], {}, contents={"bytes_contents": [b"{}"] * (nbytes // 4)}
    ),
}  # fmt: skip

ROUTES: dict[str, Callable[[int], Send]] = {
    "a file beside many texts, at a route": form("/files", "file", bytes),
    "a file beside many texts, generate": form("/v2/models/files/generate", "file", bytes),
    "an object beside many texts, at a route": form("/objects", "row", object_of),
    "an object beside many texts, generate": form("/v2/models/objects/generate", "row", object_of),
    "an array beside many texts": form("/numbers", "x", json_of("1")),
    "a list beside many texts": form("/lists", "words", json_of('"a"')),
    "a parameter beside many rows": lambda nbytes: of_texts(
        min(2048, nbytes // 8), more=b',"parameters":{"p":"%b"}' % (b"x" * (nbytes // 4))
    ),
    "an id beside many rows": lambda nbytes: of_texts(
        min(2048, nbytes // 8), more=b',"id":"%b"' % (b"x" * (nbytes // 4))
    ),
    "many rows": lambda nbytes: of_texts(nbytes // 4),
    "many parameters": names(
        "/v2/models/texts/infer",
        b'{"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["a"]}],"parameters":{',
        b"}}",
    ),
    "some parameters": some(
        names(
            "/v2/models/texts/infer",
            b'{"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["a"]}],'
            b'"parameters":{',
            b"}}",
        )
    ),
    "some parameters, generate": some(names("/v2/models/texts/generate", b'{"text":"a",', b"}")),
    "some members, at a route": some(names("/texts", b'{"text":"a",', b"}")),
    "some members of an object": some(names("/object", b"{", b"}")),
    "some names in a load": some(
        names("/v2/repository/models/texts/load", b'{"parameters":{', b"}}")
    ),
    "some members of a configuration": some(
        names("/v2/repository/models/texts/load", b'{"parameters":{"config":{', b"}}}")
    ),
    "a large file in a load": lambda nbytes: post(
        "/v2/repository/models/other/load",
        b'{"parameters":{"config":"{}","file:1/model.py":"%b"}}' % (b"A" * (nbytes // 4 * 4 - 200)),
    ),
    "many files in a load": lambda nbytes: post(
        "/v2/repository/models/other/load",
        b'{"parameters":{"config":"{}",%b}}'
        % b",".join(
            b'"file:%d":"%b"' % (number, b"A" * (nbytes // 4096 * 4)) for number in range(900)
        ),
    ),
    "a long configuration in a load": lambda nbytes: post(
        "/v2/repository/models/texts/load",
        b'{"parameters":{"config":"{%b}"}}'
        % b",".join(b'\\"k%d\\":1' % number for number in range(nbytes // 20)),
    ),
    "some log settings": some(names("/v2/logging", b"{", b"}")),
    "some trace settings": some(names("/v2/trace/setting", b"{", b"}")),
    "some rows, at a route": some(json_parts("/texts", b"[", b'{"text":"a"}', b"]")),
    "rows of objects": some(json_parts("/object", b"[", b'{"text":"a","b":[1,2,{}]}', b"]")),
    "objects in an infer request": json_parts(
        "/v2/models/object/infer",
        b'{"inputs":[{"name":"row","datatype":"BYTES","shape":[2048],"data":[',
        b'{"text":"a","b":[1,2,{}]}',
        b"]}]}",
    ),
    "some outputs": some(
        json_parts(
            "/v2/models/texts/infer",
            b'{"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["a"]}],"outputs":[',
            b'{"name":"output"}',
            b"]}",
        )
    ),
    "many parameters, generate": names("/v2/models/texts/generate", b'{"text":"a",', b"}"),
    "many members, at a route": names("/texts", b'{"text":"a",', b"}"),
    "many outputs": json_parts(
        "/v2/models/texts/infer",
        b'{"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["a"]}],"outputs":[',
        b'{"name":"output"}',
        b"]}",
    ),
    "many inputs": json_parts(
        "/v2/models/texts/infer",
        b'{"inputs":[',
        b'{"name":"text","datatype":"BYTES","shape":[1],"data":["a"]}',
        b"]}",
    ),
    "long integers of an object": json_parts("/object", b'{"a":[', b"1" * 4200, b"]}"),
    "long integers in an infer request": json_parts(
        "/v2/models/object/infer",
        b'{"inputs":[{"name":"row","datatype":"BYTES","shape":[1],"data":[{"a":[',
        b"1" * 4200,
        b"]}]}]}",
    ),
    "many dimensions": json_parts(
        "/v2/models/texts/infer",
        b'{"inputs":[{"name":"text","datatype":"BYTES","data":["a"],"shape":[',
        b"1",
        b"]}]}",
    ),
    "nested data": json_parts(
        "/v2/models/numbers/infer",
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,9],"data":[',
        b"[1]",
        b"]}]}",
    ),
    "many empty texts": binary,
    "many rows, at a route": json_parts("/texts", b"[", b'{"text":"a"}', b"]"),
    "many rows, generate": json_parts("/v2/models/texts/generate", b'{"text":[', b'"a"', b"]}"),
    "many names in a load": names("/v2/repository/models/texts/load", b'{"parameters":{', b"}}"),
    "many log settings": names("/v2/logging", b"{", b"}"),
    "many trace settings": names("/v2/trace/setting", b"{", b"}"),
    "many members of a region": names("/v2/systemsharedmemory/region/a/register", b"{", b"}"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedServer]:
    folder: Path = tmp_path_factory.mktemp("models")
    (folder / "models.py").write_text(MODELS)
    options = [f"--{name}={value}" for name, value in OPTIONS.items()]
    with watched_server("models.py", "--grpc-port=0", *options, cwd=str(folder)) as started:
        yield started


@pytest.mark.parametrize("route", ROUTES)
def test_a_request_costs_no_more_than_its_size(server: WatchedServer, route: str) -> None:
    assert_costs_its_size(server, ROUTES[route], BODY, BOUND)


@pytest.mark.parametrize("message", OVER_GRPC)
def test_a_message_costs_no_more_than_its_size(server: WatchedServer, message: str) -> None:
    assert_costs_its_size(server, call("ModelInfer", OVER_GRPC[message]), BODY, BOUND)


@pytest.mark.parametrize(
    "message", ["many rows", "a parameter beside many rows", "many parameters", "an object"]
)
def test_a_message_of_a_stream_costs_no_more_than_its_size(
    server: WatchedServer, message: str
) -> None:
    # The largest ones are those of ModelInfer.
    assert_costs_its_size(server, call("ModelStreamInfer", OVER_GRPC[message]), BODY // 4, BOUND)


@pytest.mark.parametrize("call_of", OTHER_CALLS)
def test_another_call_costs_no_more_than_its_size(server: WatchedServer, call_of: str) -> None:
    method, message = OTHER_CALLS[call_of]
    assert_costs_its_size(server, call(method, message), BODY, BOUND)


@pytest.mark.parametrize("route", OPENAI)
def test_a_request_to_a_language_model_costs_no_more_than_its_size(
    server: WatchedServer, route: str
) -> None:
    assert_costs_its_size(server, OPENAI[route], BODY, BOUND)
