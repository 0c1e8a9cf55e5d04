"""What bodies of any type may cost to read: in proportion to their bytes, whatever they are."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
import pytest

import wherry
from tests.costs import assert_linear
from wherry.core.values.errors import WherryError
from wherry.server.content.media_types import MediaType, preferred
from wherry.server.http.exchange import RequestHead
from wherry.server.natural import NaturalCodec
from wherry.server.v2.http.generate import BodyCodec
from wherry.server.v2.http.generate_codec import GenerateCodec
from wherry.server.v2.model_tensors import ModelTensors

pytestmark = pytest.mark.slow


@wherry.model(max_batch_size=2**20)
def mixed(
    file: list[bytes],
    x: Annotated[np.ndarray, wherry.FP32[-1]] | None = None,
    tags: list[list[str]] | None = None,
) -> list[str]:
    return [""] * len(file)


TENSORS = ModelTensors(mixed.config(), mixed.signature("mixed"))
CODECS: dict[str, BodyCodec] = {
    "natural": NaturalCodec(TENSORS, mixed.signature("mixed")),
    "generate": GenerateCodec(TENSORS),
}
PART = b'Content-Disposition: form-data; name="%b"\r\n\r\n'
FORM = "multipart/form-data; boundary=b"
URLENCODED = "application/x-www-form-urlencoded"

#: Content-Type; what stands before, is repeated, and stands behind.
BODIES: Sequence[tuple[str, bytes, bytes, bytes]] = (
    (FORM, b"", b"--b\r\n" + PART % b"x" + b"1\r\n", b"--b--"),
    (FORM, b"", b"--b\r\n" + PART % b"tags" + b"a\r\n", b"--b--"),
    (FORM, b"--b\r\n" + PART % b"file", b"\r\n--", b"\r\n--b--"),
    (FORM, b"--b\r\n" + PART % b"file", b"\r\n--bx", b"\r\n--b--"),
    (FORM, b"--b\r\n" + PART % b"file", b"\r\n--b\r", b"\r\n--b--"),
    (FORM, b"--b\r\n" + PART % b"file", b"\r", b"\r\n--b--"),
    (FORM, b"--b\r\n" + PART % b"file", b"\r\n--b-", b""),
    (FORM, b"--b\r\n" + PART % b"x", b"[", b"\r\n--b--"),
    (FORM, b"--b\r\n" + PART % b"x" + b"[1", b",1", b"]\r\n--b--"),
    (FORM, b"--b\r\n", b"a: b\r\n", b"\r\n\r\n--b--"),
    (FORM, b"--b\r\n", b"a", b""),
    (FORM, b"", b"\r\n", b"--b--"),
    (FORM, b"", b"\r\n-", b"--b--"),
    (FORM, b"--b--", b"--b\r\n", b""),
    ("multipart/form-data; boundary=" + "-" * 70, b"-" * 71, b"-", b""),
    (URLENCODED, b"file=", b"%41", b""),
    (URLENCODED, b"file=", b"%", b""),
    (URLENCODED, b"", b"a=1&", b""),
    (URLENCODED, b"", b";=&", b""),
    (URLENCODED, b" ", b" ", b"{"),
    ("image/jpeg", b"", b"x", b""),
    ("application/json", b'{"file":{"b64":"', b"YWJj", b'"}}'),
    ("application/json", b'{"file":{"b64":"', b"YWJj", b'\\n"}}'),
    ("application/json", b'{"file":[', b'{"b64":"YQ=="},', b'""]}'),
    ("application/json", b"[", b'{"file":"a"},', b'{"file":""}]'),
    ("application/json", b"", b"[", b""),
    ("application/json", b"", b'{"file":', b""),
    ("application/json", b'{"file":"', b'\\"', b'"}'),
    ("application/json", b"{", b'"file":"",', b'"file":""}'),
    ("application/json", b"{", b'"a":NaN,', b'"file":""}'),
    ("application/json", b'{"file":"","x":[', b'"NaN",', b"0]}"),
    ("application/json", b'{"file":"","tags":[', b'["a"],', b'"a"]}'),
)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("body", BODIES, ids=repr)
def test_a_body_of_any_type_costs_what_its_bytes_are_worth(
    codec: str, body: tuple[str, bytes, bytes, bytes]
) -> None:
    kind, before, unit, behind = body
    head = RequestHead("POST", "/", "", {"content-type": kind})

    def run(text: bytes) -> None:
        with contextlib.suppress(WherryError):
            CODECS[codec].read(head, text)

    assert_linear(
        run,
        lambda size: before + unit * (size // len(unit)) + behind,
        smallest=2**12,
        largest=2**19,
    )


@pytest.mark.parametrize("read", [MediaType.parse, lambda text: preferred(text, ["a/b"])])
@pytest.mark.parametrize(
    "unit", [";", ";a", ";a=", ';a="', ';a="\\', "a/b;", ",", "a/b,", ";q=", " ", "a", "\\", '"']
)
def test_a_header_costs_what_its_characters_are_worth(
    unit: str, read: Callable[[str], object]
) -> None:
    assert_linear(read, lambda size: "a/b" + unit * (size // len(unit)), largest=2**18)
