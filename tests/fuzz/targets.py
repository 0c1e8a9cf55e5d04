"""Which parsers of foreign bytes are fuzzed, how does each take bytes, and what is a find?

A find is an exception that is not a refusal, or more CPU time than the input's size is worth. The
seeds are inputs that are mostly right, for the fuzzer to spoil.
"""

import asyncio
import contextlib
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
import soundfile
from PIL import Image

import wherry
from tests.unit.server.grpc.raw import ManualApplication, Peer
from tests.unit.server.http.test_fuzz_parser import check_and_release
from wherry.bench.answers import OpenAiEvents, V2Events, WholeAnswer
from wherry.core.observability.otel.context import context_of
from wherry.core.values import media_codec
from wherry.core.values.errors import WherryError
from wherry.core.values.media import AUDIO_TYPES, IMAGE_TYPES, AudioSpec, ImageSpec
from wherry.core.workers.encoding import Garbage, MessageDecoder, MessageEncoder
from wherry.llm.openai.chat_request import ChatRequest
from wherry.llm.openai.completions import CompletionRequest
from wherry.llm.openai.reading import decoded
from wherry.server.access.api_keys import parse_key_file
from wherry.server.connections.held import KeptBuffers
from wherry.server.fronts.link_protocol import FromFront, Hello, OneRequest, Rows
from wherry.server.grpc import proto
from wherry.server.grpc.hpack import HeaderDecoder, HpackError, TooManyHeaders
from wherry.server.grpc.messages import Assembly, BadMessage
from wherry.server.http.exchange import RequestHead
from wherry.server.natural import NaturalCodec
from wherry.server.v2.http.generate import BodyCodec
from wherry.server.v2.http.generate_codec import GenerateCodec
from wherry.server.v2.http.infer_codec import ModelCodec
from wherry.server.v2.model_tensors import ModelTensors
from wherry.triton.repository import json_form, pbtxt
from wherry.triton.repository.triton_config import TritonConfig

#: What a parser may raise: each is answered to the client, or told the user.
REFUSALS: Final = (WherryError, HpackError, TooManyHeaders, BadMessage, Garbage)
#: CPU seconds that any input may cost, and those of each byte beyond: some fifty times what the
#: slowest parser takes, so that a busy machine is not a finding.
FLOOR: Final = 0.5
PER_BYTE: Final = 50e-6


class TooExpensive(Exception):
    """An input cost more than its size is worth."""


@dataclass(frozen=True, slots=True)
class Target:
    read: Callable[[bytes], object]
    seeds: Sequence[bytes]


def check(target: Target, data: bytes, *, floor: float = FLOOR) -> None:
    """Read `data`. Any exception is a find."""
    started = time.thread_time()
    with contextlib.suppress(*REFUSALS):
        target.read(data)
    used = time.thread_time() - started
    if used > floor + PER_BYTE * len(data):
        raise TooExpensive(f"{len(data)} bytes cost {used:.2f} s of CPU")


def _http(data: bytes) -> None:
    asyncio.run(check_and_release(data, 0))


def _frames(data: bytes) -> None:
    async def main() -> None:
        peer = Peer(ManualApplication(), greet=True)
        peer.feed(data, 997)
        peer.frames()
        await peer.leave()

    asyncio.run(main())


@wherry.model(name="fuzzed", max_batch_size=8)
def _model(x: Annotated[np.ndarray, wherry.FP32[-1]], text: list[str] = []) -> list[str]:  # noqa: B006 - optional
    return text


_CODEC = ModelCodec(ModelTensors(_model.config(), _model.signature("fuzzed")))


def _infer(data: bytes) -> None:
    _CODEC.decode(data, None)


@wherry.model(name="natural", max_batch_size=8, route="/natural")
def _natural(
    x: Annotated[np.ndarray, wherry.FP32[-1]],
    file: list[bytes],
    n: list[int] = [],  # noqa: B006 - optional
    tags: list[list[str]] = [],  # noqa: B006
) -> list[str]:
    return [""] * len(x)


_TENSORS = ModelTensors(_natural.config(), _natural.signature("natural"))
_BY_ITSELF: Final[tuple[BodyCodec, ...]] = (
    NaturalCodec(_TENSORS, _natural.signature("natural")),
    GenerateCodec(_TENSORS),
)


def _body_of_any_type(data: bytes) -> None:
    """Three lines: Content-Type, Accept, query string; then the body."""
    kind, accept, query, body = (*data.split(b"\n", 3), b"", b"", b"")[:4]
    headers = {"content-type": kind.decode("latin-1"), "accept": accept.decode("latin-1")}
    head = RequestHead("POST", "/natural", query.decode("latin-1"), headers)
    for codec in _BY_ITSELF:
        with contextlib.suppress(WherryError):
            codec.output_format(head)
        with contextlib.suppress(WherryError):
            codec.read(head, body)


def _binary(data: bytes) -> None:
    """The first two bytes say how long the JSON is."""
    _CODEC.decode(data[2:], int.from_bytes(data[:2], "big"))


def _pieces(data: bytes) -> None:
    assembly = Assembly(2**20, KeptBuffers())
    for at in range(0, len(data), 7):
        for _ in assembly.feed(memoryview(data)[at : at + 7]):
            pass


def _text_format(data: bytes) -> None:
    pbtxt.parse(data.decode(errors="replace"))


def _config(data: bytes) -> None:
    json_form.patched(TritonConfig(), data)


def _keys(data: bytes) -> None:
    parse_key_file(data.decode(errors="replace"), "the file")


def _answers(data: bytes) -> None:
    for reader in (OpenAiEvents(), V2Events(), WholeAnswer()):
        for at in range(0, len(data), 100):
            reader.feed(data[at : at + 100], 0.0)
        reader.ended()


def _trace_context(data: bytes) -> None:
    """A line for each of the headers."""
    lines = data.decode("latin-1").split("\n")
    context_of(dict(zip(("traceparent", "tracestate", "baggage"), lines, strict=False)))


_REQUEST: Any = proto.load("v2.proto", "model_config.proto").messages["ModelInferRequest"]
_JSON: Final = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[[NaN,1.5]]}]}'
_HEAD: Final = (
    b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1],"parameters":{"binary_data_size":4}}]}'
)
_CHAT: Final = (
    b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],'
    b'"stop":["x"],"stream_options":{"include_usage":true},"temperature":0.5,'
    b'"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]}'
)

_ENCODER = MessageEncoder(inline=True)
_FROM_FRONT = [
    Hello("front"),
    Rows(0, 0, 2, {"x": np.zeros((2, 2), np.float32), "name": ["a", "b"]}, ""),
    OneRequest(0, 1, 1, {"x": [1]}, "", "id", 1.0, 0, {"a": [1]}, None, ["y"], False),
]
_DECODER = MessageDecoder(FromFront, copies=False)


def _rows(data: bytes) -> None:
    _DECODER.decode(memoryview(data))


def _image(data: bytes) -> None:
    media_codec.prepared(data, ImageSpec(max_pixels=2**20))[1]()


def _audio(data: bytes) -> None:
    media_codec.prepared(data, AudioSpec(max_seconds=2, sample_rate=8000))[1]()


def _images() -> list[bytes]:
    """One image of each format."""
    files = [io.BytesIO() for _ in IMAGE_TYPES]
    for name, file in zip(IMAGE_TYPES, files, strict=True):
        Image.linear_gradient("L").resize((9, 7)).convert("RGB").save(file, name)
    return [file.getvalue() for file in files]


def _sounds() -> list[bytes]:
    """A sound of each format."""
    files = [io.BytesIO() for _ in AUDIO_TYPES]
    for name, file in zip(AUDIO_TYPES, files, strict=True):
        soundfile.write(file, np.sin(np.arange(800) / 9), 16_000, format=name.upper())
    return [file.getvalue() for file in files]


TARGETS: Final[dict[str, Target]] = {
    "http": Target(
        _http,
        [
            b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2;a=b\r\n{}\r\n0\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n",
        ],
    ),
    "v2-json": Target(_infer, [_JSON, b'{"inputs":[],"parameters":{"a":[1,{}]},"outputs":[]}']),
    "v2-binary": Target(_binary, [len(_HEAD).to_bytes(2, "big") + _HEAD + b"\0\0\x80\x3f"]),
    "body-of-any-type": Target(
        _body_of_any_type,
        [
            b"multipart/form-data; boundary=b\n*/*\nn=1\n--b\r\nContent-Disposition: form-data;"
            b' name="x"\r\n\r\n[1, 2]\r\n--b\r\ncontent-disposition: form-data; name="file";'
            b' filename="a/b.jpg"\r\nContent-Type: image/jpeg\r\n\r\n\xff\r\n--b--\r\n',
            b"application/x-www-form-urlencoded\ntext/html;q=0.5, */*\n\nx=1&x=2&file=%FF&n=3",
            b'image/jpeg\nimage/*\nx=1&tags=["a"]\n\xff\xd8',
            b'application/json\n\n\n[{"x":[1,NaN],"file":{"b64":"YQ=="},"n":1,"tags":["a"]}]',
            b'text/plain; charset="a\\"b"\n\n\n{"x":[1],"file":["a",{"b64":"YQ=="}]}',
        ],
    ),
    "rows": Target(_rows, [_ENCODER.frame(one, slab=False)[12:] for one in _FROM_FRONT]),
    "openai-chat": Target(lambda data: decoded(data, ChatRequest), [_CHAT]),
    "openai-completions": Target(
        lambda data: decoded(data, CompletionRequest),
        [b'{"model":"m","prompt":["a"],"logit_bias":{"5":1},"logprobs":3,"seed":null}'],
    ),
    "hpack": Target(
        lambda data: HeaderDecoder().decode(data, 2**14),
        [
            b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
            b"\x40\1a\1b\xbe",
        ],
    ),
    "http2": Target(
        _frames, [b"\0\0\5\1\4\0\0\0\1\x82\x86\x84\x87\xbe", b"\0\0\4\x08\0\0\0\0\0\0\0\1\0"]
    ),
    "trace-context": Target(
        _trace_context,
        [
            b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\na=1,b@c=2\nk=v;p=1",
            b"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more\n\n",
        ],
    ),
    "image": Target(_image, _images()),
    "audio": Target(_audio, _sounds()),
    "grpc-messages": Target(_pieces, [b"\0\0\0\0\3abc\0\0\0\0\0", b"\1\0\0\0\1a"]),
    "protobuf": Target(
        _REQUEST.decode, [b"\x0a\1m\x2a\x0b\x0a\1x\x12\4FP32\x18\1", b"\x22\7\x0a\1k\x12\2\x08\1"]
    ),
    "config-pbtxt": Target(
        _text_format,
        [
            b'name: "m" max_batch_size: 8 input [ { name: "x" data_type: TYPE_INT8 dims: [ 1 ] } ]',
            b'platform: "ensemble" ensemble_scheduling { step { model_name: "m" model_version: -1'
            b' input_map { key: "a" value: "b" } } }',
            b'parameters { key: "k" value { string_value: "\\x41\\101" } } # end',
        ],
    ),
    "config-json": Target(
        _config,
        [b'{"maxBatchSize":"8","input":[{"name":"x","dims":["1"]}],"parameters":{"a":null}}'],
    ),
    "key-file": Target(
        _keys, [b"# ops\nname: 0123456789abcdef0123456789abcdef\n\nabcdefghijklmnop\n"]
    ),
    "answers": Target(
        _answers,
        [
            b'data: {"choices":[{"delta":{"content":"a"}}]}\r\n\r\ndata: [DONE]\n\n',
            b'{"choices":[],"usage":{"prompt_tokens":1}}',
        ],
    ),
}
