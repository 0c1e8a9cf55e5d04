"""What a request's bytes may cost to read: in proportion to their number, whatever they are."""

import contextlib
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from tests.costs import assert_linear
from tests.properties import crossed
from wherry.core.values.errors import WherryError
from wherry.server.v2.http.infer_codec import ModelCodec
from wherry.server.v2.model_tensors import ModelTensors

pytestmark = pytest.mark.slow

Make = Callable[[int], bytes]


@wherry.model(max_batch_size=8)
def numbers(x: Annotated[np.ndarray, wherry.FP32[-1]]) -> list[str]:
    return [""] * len(x)


@wherry.model(max_batch_size=8)
def texts(x: list[list[str]]) -> list[str]:
    return [""] * len(x)


@wherry.model(max_batch_size=8)
def objects(x: list[dict[str, Any]]) -> list[str]:
    return [""] * len(x)


CODECS = {
    name: ModelCodec(ModelTensors(model.config(), model.signature("m")))
    for name, model in (("numbers", numbers), ("texts", texts), ("objects", objects))
}


def refused(run: Callable[[], Any]) -> None:
    """What a client gets wrong may be refused; what is measured is the way to there."""
    with contextlib.suppress(WherryError):
        run()


#: Pieces that are repeated: of JSON, of what is nearly JSON, of none.
UNITS = (
    b'"', b'\\"', b'"\\', b"\\", b"N", b"NaN,", b"-", b"-Infinity,", b'"NaN",', b'"",', b"NaNaN",
    b'"\\u0000",', b"[", b"[],", b"{", b"{},", b"[[", b"]", b"[1,", b'{"a":', b'{"a":1},', b"0",
    b"9", b"1,", b"1e9,", b"0.1,", b" ", b"\n", b",", b":", b"null,", b"true,", b"/*", b"\0",
    b"\xff", b"\xc3\xa9", b"InfinityInfinity", b'"\\\\",', b'"\\ud800",',
)  # fmt: skip
#: What stands before and behind them in an infer request.
FRAMES = {
    "body": (b"", b""),
    "inputs": (b'{"inputs":[NaN ', b"]}"),
    "unterminated": (b'{"inputs":[NaN "', b""),
    "data": (
        b'{"inputs":[{"name":"x","datatype":"%s","shape":[1,1],"data":[NaN,',
        b"0]}]}",
    ),
    "shape": (b'{"inputs":[{"name":"x","datatype":"%s","data":[0],"shape":[', b"1]}]}"),
    "parameters": (b'{"parameters":{"a":[', b'0]},"inputs":[]}'),
    "unknown": (b'{"inputs":[],"unknown":[', b"0]}"),
    "name": (b'{"inputs":[{"name":"', b'","datatype":"FP32","shape":[]}]}'),
}


def repeated(unit: bytes, frame: tuple[bytes, bytes], datatype: bytes) -> Make:
    before, behind = frame
    before = before.replace(b"%s", datatype)
    return lambda size: before + unit * (size // len(unit)) + behind


@pytest.mark.parametrize(("frame", "unit"), crossed(FRAMES, UNITS), ids=repr)
def test_an_infer_request_costs_what_its_bytes_are_worth(frame: str, unit: bytes) -> None:
    for codec, datatype in ((CODECS["numbers"], b"FP32"), (CODECS["texts"], b"BYTES")):
        assert_linear(
            lambda body, codec=codec: refused(lambda: codec.decode(body, None)),  # type: ignore[misc]
            repeated(unit, FRAMES[frame], datatype),
            smallest=2**12,
            largest=2**17,
        )
