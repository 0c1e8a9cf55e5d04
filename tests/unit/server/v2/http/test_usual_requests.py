"""What is read and written the short way is the same as member by member."""

import json
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wherry
from wherry.core.models.model import Model
from wherry.core.values.errors import WherryError
from wherry.core.values.request import Columns, InferResponse
from wherry.server.v2.http.infer_codec import ModelCodec
from wherry.server.v2.http.usual_requests import MOST_HEADS
from wherry.server.v2.model_tensors import DecodedRequest, ModelTensors, RequestedOutput


@wherry.model(max_batch_size=4)
def texts(x: list[str]) -> list[str]:
    return x


@wherry.model(max_batch_size=4)
def scalars(x: list[int]) -> list[float]:
    return [1.0 for _ in x]


@wherry.model(max_batch_size=4)
def arrays(x: Annotated[np.ndarray, wherry.FP32[-1]]) -> Annotated[np.ndarray, wherry.FP32[-1]]:
    return x


@wherry.model(max_batch_size=4)
def objects(x: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return x


@wherry.model(max_batch_size=4)
def halves(x: Annotated[np.ndarray, wherry.FP16[2]]) -> Annotated[np.ndarray, wherry.FP16[2]]:
    return x


@wherry.model(max_batch_size=0)
def alone(x: Annotated[np.ndarray, wherry.INT8[-1, 2]]) -> Annotated[np.ndarray, wherry.INT8[-1]]:
    return np.array([0], np.int8)


MODELS: list[Model] = [texts, scalars, arrays, objects, halves, alone]


def codec_of(model: Model) -> ModelCodec:
    return ModelCodec(ModelTensors(model.config(), model.signature("m")))


CODECS = [codec_of(model) for model in MODELS]


def said(decode: Any, *what: Any) -> object:
    """What comes of it, as something that can be compared; an error by its text."""
    try:
        decoded: DecodedRequest = decode(*what)
    except WherryError as error:
        return type(error), str(error)
    columns = {
        name: (column.dtype, column.shape, column.tobytes())
        if isinstance(column, np.ndarray)
        else column
        for name, column in decoded.columns.items()
    }
    asked = [(one.codec.name, one.binary, one.classes) for one in decoded.requested_outputs or ()]
    return columns, decoded.rows, decoded.id, decoded.parameters, asked, decoded.output_names


ELEMENTS = st.one_of(
    st.sampled_from(["a", "é", "", "NaN", "{}"]),
    st.integers(-200, 200),
    st.sampled_from([0.5, 1e39, 2**63, 2**64]),
    st.booleans(),
    st.none(),
    st.just({"a": 1}),
    st.lists(st.integers(0, 3), max_size=2),
)
DATATYPES = st.sampled_from(["BYTES", "INT64", "FP32", "FP16", "INT8", "X"])
SHAPES = st.lists(st.integers(-1, 3), max_size=3)


@st.composite
def usual_or_not(draw: st.DrawFn) -> bytes:
    """A body that most models take, with a few things that may be otherwise."""
    codec = draw(st.sampled_from(CODECS))
    ((name, own),) = codec.inputs.items()
    data = draw(st.one_of(st.lists(ELEMENTS, max_size=4), st.lists(st.just("a"), max_size=3)))
    tensor: dict[str, Any] = {
        "name": draw(st.sampled_from([name, name, name, "y"])),
        "datatype": draw(st.one_of(st.just(own.datatype), DATATYPES)),
        "shape": draw(st.one_of(st.just([len(data)]), st.just([1, len(data)]), SHAPES)),
        "data": data,
    }
    if draw(st.integers(0, 5)) == 0:
        del tensor[draw(st.sampled_from(["data", "shape", "name"]))]
    if draw(st.integers(0, 5)) == 0:
        tensor["parameters"] = draw(st.sampled_from([{}, {"binary_data_size": 4}, {"a": 1}]))
    body: dict[str, Any] = {"inputs": [tensor] * draw(st.sampled_from([1, 1, 1, 1, 0, 2]))}
    more: dict[str, list[Any]] = {
        "id": ["7", 7],
        "parameters": [{}, {"priority": 1}, {"triton_x": 1}, {"binary_data_output": True}],
        "outputs": [[], [{"name": "output"}], [{"name": "z"}]],
    }
    for member, values in more.items():
        if draw(st.integers(0, 3)) == 0:
            body[member] = draw(st.sampled_from(values))
    return json.dumps(body).encode()


@given(usual_or_not(), st.sampled_from(CODECS))
def test_a_body_is_the_same_whichever_way_it_is_read(body: bytes, codec: ModelCodec) -> None:
    assert said(codec.decode, body) == said(codec.decode_in_full, body)


@pytest.mark.parametrize(
    ("model", "datatype", "shape", "data"),
    [
        (texts, "BYTES", [2], ["a", "b"]),
        (texts, "BYTES", [2, 1], ["a", "b"]),
        (scalars, "INT64", [1], [7]),
        (arrays, "FP32", [2, 1], [0.5, 1]),
        (objects, "BYTES", [1], [{"a": 1}]),
        (alone, "INT8", [1, 2], [1, 2]),
    ],
)
def test_a_usual_body_is_not_read_in_full(
    model: Model, datatype: str, shape: list[int], data: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = codec_of(model)
    monkeypatch.delattr(ModelCodec, "decode_in_full")
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "data": data}
    decoded = codec.decode(msgspec.json.encode({"id": "7", "inputs": [tensor]}))
    assert (decoded.id, list(decoded.columns)) == ("7", ["x"])


def binary(shape: list[int], **more: Any) -> tuple[bytes, bytes]:
    """JSON, and the data behind it."""
    data = np.arange(np.prod(shape), dtype=np.float32).tobytes()
    parameters = {"binary_data_size": len(data)}
    tensor = {"name": "x", "datatype": "FP32", "shape": shape, "parameters": parameters}
    outputs = [{"name": "output", "parameters": {"binary_data": True}}]
    return msgspec.json.encode({"inputs": [tensor], "outputs": outputs, **more}), data


def test_json_before_binary_data_that_comes_again_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codec = codec_of(arrays)
    head, data = binary([1, 3])
    first = said(codec.decode, head + data, len(head))
    monkeypatch.delattr(ModelCodec, "decode_in_full")
    assert said(codec.decode, head + data, len(head)) == first


@pytest.mark.parametrize("more", [{"id": "7"}, {"parameters": {"a": 1}}])
def test_what_a_client_says_once_is_read_each_time(more: dict[str, Any]) -> None:
    codec = codec_of(arrays)
    head, data = binary([1, 3], **more)
    for _ in range(2):
        decoded = codec.decode(head + data, len(head))
        assert decoded.id == more.get("id", "")
        assert decoded.parameters == more.get("parameters", {})


def test_other_data_behind_known_json_is_refused_as_before() -> None:
    codec = codec_of(arrays)
    head, data = binary([1, 3])
    codec.decode(head + data, len(head))
    for wrong in (data[:-4], data + b"1234"):
        refused = said(codec.decode, head + wrong, len(head))
        assert refused == said(codec.decode_in_full, head + wrong, len(head))
        assert "additional" in str(refused)


def test_no_more_heads_are_known_than_fit() -> None:
    codec = codec_of(arrays)
    for width in range(1, 3 * MOST_HEADS):
        head, data = binary([1, width])
        for _ in range(2):
            column = codec.decode(head + data, len(head)).columns["x"]
            assert isinstance(column, np.ndarray)
            assert column.shape == (1, width)


NUMBERS = st.sampled_from([0.5, -1.0, 3e38, np.nan, np.inf])
TEXTS = st.sampled_from(["a", "é\n", ""])


@given(
    st.sampled_from([texts, arrays, halves, scalars]),
    st.lists(NUMBERS, min_size=2, max_size=2),
    st.lists(TEXTS, min_size=1, max_size=3),
    st.sampled_from(["", "7"]),
    st.sampled_from([None, False, True]),
)
def test_an_answer_is_the_same_whichever_way_it_is_written(
    model: Model, numbers: list[float], words: list[str], id: str, is_binary: bool | None
) -> None:
    codec = codec_of(model)
    columns: Columns = {"output": np.array([numbers], np.float32)}
    if model is texts:
        columns = {"output": words}
    elif model is scalars:
        columns = {"output": np.array(numbers)}
    elif model is halves:
        columns = {"output": np.array([[1, 2]], np.float16)}
    wanted = None
    if is_binary is not None:
        wanted = [RequestedOutput(codec.outputs["output"], binary=is_binary)]
    decoded = DecodedRequest({}, 1, id, requested_outputs=wanted)
    usual = codec.encode_usual(InferResponse(columns), decoded, packed=False)
    if usual is None:
        assert model is halves or is_binary or not np.isfinite(numbers).all()
        return
    whole = codec.encode(columns, wanted, id)
    assert usual.headers == whole.headers
    bodies = [b if isinstance(b, bytes) else b"".join(b) for b in (usual.body, whole.body)]
    assert bodies[0] == bodies[1]
